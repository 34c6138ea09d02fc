// Causal attention over the paged cache with an online softmax (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867;
// Dao et al. 2022, https://arxiv.org/abs/2205.14135), keys in tiles of 64 that every row walks through in the same order.
#pragma once
#include <algorithm>

#include "model.hpp"

namespace wholecurve {

constexpr int64_t KEYS = 64;  // of a tile of scores, from a multiple of 64 on whatever the batch: sums are cut alike
constexpr int SUBTILES = 8;   // of up to 12 rows that share a tile of keys and values while it is near
constexpr int64_t MOST_DIM = 256;

// Consecutive queries of one sequence, from `row` of the batch on.
struct Queries {
  int64_t row, count;
};

// What a row carries from tile to tile of keys: the largest score, the sum of weights, the weighted sum of values.
template <class D>
struct Attending {
  typedef typename D::Element E;
  alignas(64) E queries[SUBTILES][ROWS * MOST_DIM];
  alignas(64) float out[SUBTILES][ROWS * MOST_DIM];
  alignas(64) float top[SUBTILES][LANES];
  Lanes totals[SUBTILES][ROWS];
  alignas(64) E weights[ROWS * KEYS];
  alignas(64) float scores[ROWS * KEYS];
};

// Scores of one subtile become weights: masked, scaled, relative to the largest so far. seen[r] is the last key of the tile
// that row r sees; `scale` takes scores to powers of two. What was summed before is scaled down where a larger score appeared.
template <class D>
INLINE void weigh(Attending<D>& state, int t, int64_t rows, const int64_t* seen, int64_t vectors, float scale, int64_t width) {
  const IntLanes counting = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  alignas(64) float before[LANES] = {}, factors[LANES];
  float* top = state.top[t];
  for (int64_t r = 0; r < rows; r++) {
    float* s = state.scores + r * KEYS;
    Lanes most = broadcast(-INFINITY);
    for (int64_t v = 0; v < vectors; v++) {
      Lanes score = load(s + v * LANES);
      if (seen[r] < (v + 1) * LANES - 1) {
        score = counting > IntLanes{} + int32_t(seen[r] - v * LANES) ? broadcast(-INFINITY) : score;
        store(s + v * LANES, score);
      }
      most = larger(most, score);
    }
    before[r] = top[r];
    const float found = largest(most) * scale;
    top[r] = found > top[r] ? found : top[r];
  }
  store(factors, power_of_two(load(before) - load(top)));
  for (int64_t r = 0; r < rows; r++) {
    const Lanes minus_top = broadcast(-top[r]), factor = broadcast(factors[r]), scales = broadcast(scale);
    Lanes total = state.totals[t][r] * factor;
    for (int64_t v = 0; v < vectors; v++) {
      const Lanes weight = power_of_two(fma(load(state.scores + r * KEYS + v * LANES), scales, minus_top));
      total = total + weight;
      D::narrow(state.weights + r * KEYS + v * LANES, weight);
    }
    state.totals[t][r] = total;
    if (factors[r] != 1.0f)
      for (int64_t i = 0; i < width; i += LANES) {
        float* out = state.out[t] + r * width + i;
        store(out, load(out) * factor);
      }
  }
}

// Where the keys (vectors of 16) and values (blocks) of a tile lie, for one key-value head of a sequence's block table.
template <class D>
struct TileOfKeys {
  const typename D::Element *keys[KEYS / LANES] = {}, *values[KEYS / LANES] = {};

  TileOfKeys(const Sizes& sizes, const Layer<D>& layer, const int64_t* table, int64_t kv_head, int64_t start, int64_t last) {
    for (int64_t v = 0; v < KEYS / LANES; v++) {
      const int64_t key = std::min(start + v * LANES, last), block = table[key / sizes.block_size] * sizes.kv_heads + kv_head;
      keys[v] = layer.keys + block * sizes.key_block() + key % sizes.block_size / LANES * LANES * D::GROUP;
      values[std::min(start + v * LANES, last) % KEYS / sizes.block_size] = layer.values + block * sizes.value_block();
    }
    for (int64_t v = 1; v < KEYS / LANES; v++)
      if (!values[v]) values[v] = values[v - 1];
  }
};

// What a thread attends to next, to fetch its first keys in time.
struct Upcoming {
  const int64_t* table;
  int64_t kv_head, last;
};

// Attention of queries over all keys up to each one's own, for `heads` query heads from `head` on of one key-value head. A row is
// a query and a head; 12 rows are a subtile, and all subtiles meet a tile of keys before the next one is fetched.
template <class D>
inline void attend(const Model<D>& model, const Layer<D>& layer, const Batch& batch, const Buffers<D>& buffers,
                   const Queries& queries, int64_t head, int64_t heads, const Upcoming& upcoming) {
  typedef typename D::Element E;
  const Sizes& sizes = model.sizes;
  const int64_t dim = sizes.head_dim, width = sizes.value_width(), size = sizes.block_size, row = queries.row;
  const int64_t kv_head = head / sizes.heads_per_kv(), each = heads <= ROWS ? ROWS / heads : 1;
  const int64_t* table = batch.block_table + buffers.places[row].sequence * batch.table_width;
  const int64_t last = batch.positions[row + queries.count - 1];
  const int subtiles = int(ceil_div(queries.count, each));
  static thread_local Attending<D> state;
  auto count_of = [&](int t) { return std::min(each, queries.count - t * each); };
  for (int t = 0; t < subtiles; t++) {
    const int64_t rows = count_of(t) * heads;
    for (int64_t r = 0; r < rows; r++) {
      const int64_t query = row + t * each + r / heads;
      std::memcpy(state.queries[t] + r * dim, buffers.queries + (query * sizes.heads + head + r % heads) * dim,
                  dim * sizeof(E));
      state.totals[t][r] = Lanes{};
    }
    for (int64_t r = 0; r < LANES; r++) state.top[t][r] = r < rows ? -INFINITY : 0.0f;
    std::fill(state.out[t], state.out[t] + rows * width, 0.0f);
  }
  TileOfKeys<D> next(sizes, layer, table, kv_head, 0, last);
  for (int64_t start = 0; start <= last; start += KEYS) {
    const TileOfKeys<D> here = next;
    next = start + KEYS <= last ? TileOfKeys<D>(sizes, layer, table, kv_head, start + KEYS, last)
                                : TileOfKeys<D>(sizes, layer, upcoming.table, upcoming.kv_head, 0, upcoming.last);
    for (int t = 0; t < subtiles; t++) {
      const int64_t rows = count_of(t) * heads, end = batch.positions[row + t * each + count_of(t) - 1];
      if (end < start) continue;
      const int64_t keys = std::min(end + 1 - start, KEYS), vectors = ceil_div(keys, LANES);
      int64_t seen[ROWS];
      for (int64_t r = 0; r < rows; r++) seen[r] = batch.positions[row + t * each + r / heads] - start;
      with_rows(int(rows), [&]<int N>() {
        for (int64_t v = 0; v < vectors; v += 2)
          tile<D, N>(state.queries[t], dim, here.keys[v], here.keys[v + 1 < vectors ? v + 1 : v], size * D::GROUP,
                     dim / D::GROUP, state.scores + v * LANES, KEYS,
                     {(const char*)next.keys[v], (const char*)next.keys[v + 1], int64_t(size * D::GROUP * sizeof(E))});
      });
      weigh(state, t, rows, seen, vectors, model.scale * LOG2_E, width);
      const int64_t blocks = ceil_div(keys, size), rest = ceil_div(keys - (blocks - 1) * size, D::GROUP);
      with_rows(int(rows), [&]<int N>() {
        for (int64_t i = 0; i < width; i += COLUMNS)
          tile_over_blocks<D, N>(state.weights, KEYS, here.values, blocks, i * D::GROUP, width * D::GROUP, size / D::GROUP,
                                 rest, state.out[t] + i, width, width - i > LANES ? 2 : 1, next.values,
                                 i * size);
      });
    }
  }
  for (int t = 0; t < subtiles; t++)
    for (int64_t r = 0; r < count_of(t) * heads; r++) {
      const int64_t query = row + t * each + r / heads;
      E* target = buffers.attended + (query * sizes.heads + head + r % heads) * dim;
      const float factor = 1.0f / sum(state.totals[t][r]);
      for (int64_t i = 0; i < dim; i++) target[i] = D::narrow(state.out[t][r * width + i] * factor);
    }
}

}  // namespace wholecurve
