// The parts of a decoder layer but attention, each for a range of rows: embedding, norm, products and what follows them.
#pragma once
#include "model.hpp"

namespace wholecurve {

// Rows [begin, end) of a product with one panel; after(row, 32 sums) takes each row of the result. `ahead` is what this thread
// multiplies with next: as many bytes of it as the panel has are fetched meanwhile.
template <class D, class After>
INLINE void product(const typename D::Element* a, int64_t width, const Packed<D>& b, int64_t panel, int64_t begin,
                    int64_t end, const typename D::Element* ahead, After&& after) {
  const auto* columns = b.panel(panel);
  const int64_t count = end - begin, tiles = ceil_div(count, ROWS);
  const int64_t bytes = b.steps * COLUMNS * D::GROUP * sizeof(*columns);  // of a panel; the tiles share fetching the next one
  alignas(64) float sums[ROWS * COLUMNS];
  for (int64_t t = 0; t < tiles; t++) {
    const int64_t first = begin + count * t / tiles, rows = begin + count * (t + 1) / tiles - first;
    const char* next = (const char*)ahead + bytes * t / tiles;
    with_rows(int(rows), [&]<int N>() {
      tile<D, N>(a + first * width, width, columns, columns + LANES * D::GROUP, COLUMNS * D::GROUP, b.steps, sums,
                 COLUMNS, {next, next + 64, bytes / b.steps / tiles});
    });
    for (int64_t r = 0; r < rows; r++) after(first + r, sums + r * COLUMNS);
  }
}

// normed = x / rms(x) * weight, one row.
template <class D>
inline void rms_norm(const float* x, const float* weight, const Sizes& sizes, float eps, typename D::Element* normed) {
  Lanes squares{};
  for (int64_t i = 0; i < sizes.hidden; i += LANES) squares = fma(load(x + i), load(x + i), squares);
  const float mean = sum(squares) / float(sizes.true_hidden);
  const Lanes factor = broadcast(1.0f / std::sqrt(mean + eps));
  for (int64_t i = 0; i < sizes.hidden; i += LANES) D::narrow(normed + i, load(x + i) * factor * load(weight + i));
}

template <class D>
inline void embed(const Model<D>& model, int64_t token, float* x) {
  const Sizes& sizes = model.sizes;
  if (model.embedding) {
    for (int64_t i = 0; i < sizes.hidden; i++)
      x[i] = i < sizes.true_hidden ? D::widen(model.embedding[token * sizes.true_hidden + i]) : 0.0f;
    return;
  }
  const auto* column = model.head.panel(token / COLUMNS) + token % COLUMNS * D::GROUP;
  for (int64_t step = 0; step < model.head.steps; step++)
    for (int g = 0; g < D::GROUP; g++) x[step * D::GROUP + g] = D::widen(column[step * COLUMNS * D::GROUP + g]);
}

// One row of one panel of q, k and v: rotated pairs (16 first halves, 16 second halves) or 32 values, to where they belong.
// Where a vector lies within one head, as with all usual head sizes, its place is worked out once per panel.
template <class D>
class StoreQKV {
  typedef typename D::Element E;

 public:
  StoreQKV(const Model<D>& model, const Layer<D>& layer, const Batch& batch, const Buffers<D>& buffers, int64_t panel)
      : model_(model), layer_(layer), batch_(batch), buffers_(buffers), sizes_(model.sizes) {
    rotates_ = panel < sizes_.rotated_panels();
    first_ = rotates_ ? panel * LANES : (panel - sizes_.rotated_panels()) * COLUMNS;
    const int64_t size = rotates_ ? sizes_.half() : sizes_.head_dim;
    within_one_ = size % (rotates_ ? LANES : COLUMNS) == 0;
    head_ = first_ / size, at_ = first_ % size;
  }

  void operator()(int64_t row, const float* sums) const {
    const Place place = buffers_.places[row];
    if (!rotates_) return store_values(place, sums);
    const int64_t half = sizes_.half(), pairs = (sizes_.heads + sizes_.kv_heads) * half;
    const float *cos = model_.cos + batch_.positions[row] * half, *sin = model_.sin + batch_.positions[row] * half;
    alignas(64) float c[LANES], s[LANES];
    const Lanes a = load(sums), b = load(sums + LANES);
    if (within_one_) {
      const Lanes turn = load(cos + at_), lean = load(sin + at_);
      put(row, place, head_, at_, fma(-b, lean, a * turn), fma(a, lean, b * turn));
      return;
    }
    for (int64_t i = 0; i < LANES; i++) {
      const int64_t at = first_ + i < pairs ? (first_ + i) % half : 0;
      c[i] = cos[at], s[i] = sin[at];
    }
    alignas(64) float left[LANES], right[LANES];
    store(left, fma(-b, load(s), a * load(c)));
    store(right, fma(a, load(s), b * load(c)));
    for (int64_t i = 0; i < LANES && first_ + i < pairs; i++)
      put_one(row, place, (first_ + i) / half, (first_ + i) % half, left[i], right[i]);
  }

 private:
  E* query(int64_t row, int64_t head) const { return buffers_.queries + (row * sizes_.heads + head) * sizes_.head_dim; }
  E* keys(Place place, int64_t head) const {
    return layer_.keys + (place.block * sizes_.kv_heads + head - sizes_.heads) * sizes_.key_block();
  }

  // 16 pairs of one head, from `at` on.
  void put(int64_t row, Place place, int64_t head, int64_t at, Lanes left, Lanes right) const {
    const int64_t half = sizes_.half();
    if (head < sizes_.heads) {
      E* q = query(row, head) + at;
      D::narrow(q, left);
      D::narrow(q + half, right);
      return;
    }
    alignas(64) E narrowed[2][LANES];
    D::narrow(narrowed[0], left);
    D::narrow(narrowed[1], right);
    for (int part = 0; part < 2; part++) {
      E* to = keys(place, head) + ((at + part * half) / D::GROUP * sizes_.block_size + place.offset) * D::GROUP;
      for (int i = 0; i < LANES; i += D::GROUP)
        std::memcpy(to + i * sizes_.block_size, narrowed[part] + i, D::GROUP * sizeof(E));
    }
  }

  void put_one(int64_t row, Place place, int64_t head, int64_t at, float left, float right) const {
    const int64_t half = sizes_.half();
    if (head < sizes_.heads) {
      E* q = query(row, head) + at;
      q[0] = D::narrow(left), q[half] = D::narrow(right);
      return;
    }
    E* to = keys(place, head);
    for (int64_t i : {at, at + half})
      to[(i / D::GROUP * sizes_.block_size + place.offset) * D::GROUP + i % D::GROUP] = D::narrow(i == at ? left : right);
  }

  // The other token of a group may hold what a freed block left, even infinities, which weight 0 does not silence: the last
  // token of a sequence clears it.
  void store_values(Place place, const float* sums) const {
    alignas(64) E narrowed[COLUMNS];
    D::narrow(narrowed, load(sums));
    D::narrow(narrowed + LANES, load(sums + LANES));
    const int64_t width = sizes_.value_width(), in_group = place.offset % D::GROUP;
    E* block = layer_.values + place.block * sizes_.kv_heads * sizes_.value_block();
    block += place.offset / D::GROUP * width * D::GROUP + in_group;
    const bool clears = place.is_last && in_group + 1 < D::GROUP;
    auto put = [&](E* to, int64_t i) {
      to[0] = narrowed[i];
      if (clears) to[1] = 0;
    };
    if (within_one_) {
      E* to = block + head_ * sizes_.value_block() + at_ * D::GROUP;
      for (int64_t i = 0; i < COLUMNS; i++) put(to + i * D::GROUP, i);
      return;
    }
    for (int64_t i = 0; i < COLUMNS && first_ + i < sizes_.kv_heads * sizes_.head_dim; i++) {
      const int64_t head = (first_ + i) / sizes_.head_dim, at = (first_ + i) % sizes_.head_dim;
      put(block + head * sizes_.value_block() + at * D::GROUP, i);
    }
  }

  const Model<D>& model_;
  const Layer<D>& layer_;
  const Batch& batch_;
  const Buffers<D>& buffers_;
  const Sizes& sizes_;
  bool rotates_, within_one_;
  int64_t first_, head_, at_;
};

// SwiGLU of 16 gates and 16 ups.
template <class D>
INLINE void activate(const float* sums, typename D::Element* out) {
  const Lanes gate = load(sums), up = load(sums + LANES), zero{}, one = broadcast(1.0f);
  const Lanes e = power_of_two((gate > zero ? -gate : gate) * broadcast(LOG2_E));
  const Lanes sigmoid = (gate > zero ? one : e) / (one + e);
  D::narrow(out, gate * sigmoid * up);
}

}  // namespace wholecurve
