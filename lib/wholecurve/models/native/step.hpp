// One forward pass. Few tokens: all threads share each product, column panels apart, and meet after it. Many tokens: each thread
// takes blocks of rows through a whole layer, so that what a row needs stays in its cache, and they meet once per layer.
#pragma once
#include <algorithm>
#include <utility>

#include "attention.hpp"
#include "layers.hpp"

namespace wholecurve {

constexpr int64_t ALONE = 4;        // up to so many rows every thread norms for itself: cheaper than to meet
constexpr int64_t SHARED_ROWS = 80;  // up to so many tokens the threads share each product
constexpr int64_t BLOCK_ROWS = 128;  // of a thread's turn: its rows of every buffer stay in a second-level cache

template <class D>
class Step {
  typedef typename D::Element E;

 public:
  Step(Model<D>& model, const Batch& batch) : model_(model), batch_(batch), threads_(model.threads->count()) {
    const Sizes& sizes = model.sizes;
    shared_ = batch.tokens <= SHARED_ROWS;
    allocate();
    for (int64_t s = 0; s < batch.sequences; s++)
      for (int64_t row = batch.cu_q[s]; row < batch.cu_q[s + 1]; row++) {
        const int64_t slot = batch.slots[row];
        buffers_.places[row] = {s, slot / sizes.block_size, int32_t(slot % sizes.block_size), row + 1 == batch.cu_q[s + 1]};
      }
    if (shared_) plan_queries();
    for (int64_t r = 0; r < batch.rows; r++) last_.push_back({batch.logits_rows[r], 1});
    best_ = std::vector<std::pair<float, int64_t>>(threads_ * batch.rows, {-INFINITY, -1});
  }

  void operator()(int id) {
    bool sense = false;
    Turn turn{id, 0, sense, batch_.times ? batch_.times + id * PARTS : nullptr};
    if (shared_) few(turn);
    else many(turn);
  }

  void run() {
    model_.threads->reset();
    plan_phases();
    model_.threads->run(*this);
    for (int64_t r = 0; r < batch_.rows; r++) {
      std::pair<float, int64_t> found{-INFINITY, -1};
      for (int id = 0; id < threads_; id++) {
        const auto& other = best_[id * batch_.rows + r];
        if (other.first > found.first || (other.first == found.first && other.second < found.second)) found = other;
      }
      batch_.best[r] = found.second;
    }
  }

 private:
  // One thread's way through the step.
  struct Turn {
    int id;
    int64_t phase;
    bool& sense;
    int64_t* times;
  };
  void allocate() {
    const Sizes& s = model_.sizes;
    const int64_t T = batch_.tokens, wide = s.heads * s.head_dim, normed = shared_ && T <= ALONE ? threads_ : 1;
    int64_t at = 0;
    auto place = [&](int64_t bytes) { const int64_t here = at; at += padded(bytes, 64); return here; };
    const int64_t x = place(T * s.hidden * 4), n = place(normed * T * s.hidden * sizeof(E)), q = place(T * wide * sizeof(E)),
                  o = place(T * wide * sizeof(E)), h = place(T * s.inter_stride(sizeof(E)) * sizeof(E)), of = place(T * sizeof(Place));
    if (int64_t(model_.memory.size()) < at + 64) model_.memory = std::vector<char>(at + 64);
    char* base = model_.memory.data();
    base += (64 - reinterpret_cast<uintptr_t>(base) % 64) % 64;
    buffers_ = {(float*)(base + x), (E*)(base + n), (E*)(base + q), (E*)(base + o), (E*)(base + h), (Place*)(base + of)};
  }

  // Consecutive queries of one sequence from `row` on, at most as many as `attend` takes, all before `end`.
  Queries queries_from(int64_t row, int64_t end) const {
    const int64_t heads = model_.sizes.heads_per_kv(), most = heads <= ROWS ? ROWS / heads * SUBTILES : 1;
    const int64_t stop = std::min(end, batch_.cu_q[buffers_.places[row].sequence + 1]);
    return {row, std::min(most, stop - row)};
  }

  void plan_queries() {
    for (int64_t row = 0; row < batch_.tokens; row += queries_.back().count) queries_.push_back(queries_from(row, batch_.tokens));
  }

  void plan_phases() {
    const Sizes& s = model_.sizes;
    const Layer<D>& l = model_.layers[0];
    const int64_t T = batch_.tokens, attention = int64_t(queries_.size()) * s.kv_heads;
    const int64_t phases = shared_ ? s.layers * 7 + 3 : s.layers + 7;
    if (model_.num_shares < phases * threads_) {
      model_.num_shares = phases * threads_;
      model_.shares = std::make_unique<Share[]>(model_.num_shares);
    }
    Share* shares = model_.shares.get();
    auto next = [&](int64_t count) {
      deal(shares, count, threads_);
      shares += threads_;
    };
    if (shared_) {
      next(T);  // embedding
      for (int64_t layer = 0; layer < s.layers; layer++) {
        if (T > ALONE) next(T);
        next(l.qkv.panels);
        next(attention);
        next(l.output.panels);
        if (T > ALONE) next(T);
        next(l.gate_up.panels);
        next(l.down.panels);
      }
      next(batch_.rows);
      next(model_.head.panels);
      return;
    }
    plan_blocks();
    for (int64_t layer = 0; layer < s.layers; layer++) next(int64_t(blocks_.size()));
    next(int64_t(last_.size()) * s.kv_heads);
    next(l.output.panels);
    next(batch_.rows);
    next(l.gate_up.panels);
    next(l.down.panels);
    next(batch_.rows);
    next(model_.head.panels);
  }

  Share* shares_of(Turn& turn) { return model_.shares.get() + turn.phase++ * threads_; }

  void meet(Turn& turn) {
    Timer timer(turn.times, WAITING);
    model_.threads->barrier(turn.sense);
  }

  template <class F>
  void phase(Turn& turn, Part part, F&& f) {
    {
      Timer timer(turn.times, part);
      take_from(shares_of(turn), turn.id, threads_, f);
    }
    meet(turn);
  }

  // ---- few tokens ----

  const E* norm_all(Turn& turn, const float* weight) {
    const Sizes& s = model_.sizes;
    if (batch_.tokens <= ALONE) {
      Timer timer(turn.times, NORM);
      E* own = buffers_.normed + turn.id * batch_.tokens * s.hidden;
      for (int64_t row = 0; row < batch_.tokens; row++) norm(row, weight, own);
      return own;
    }
    phase(turn, NORM, [&](int64_t row) { norm(row, weight, buffers_.normed); });
    return buffers_.normed;
  }

  void norm(int64_t row, const float* weight, E* to) {
    const int64_t width = model_.sizes.hidden;
    rms_norm<D>(buffers_.x + row * width, weight, model_.sizes, model_.eps, to + row * width);
  }

  void few(Turn& turn) {
    const Sizes& s = model_.sizes;
    const int64_t T = batch_.tokens, wide = s.heads * s.head_dim;
    phase(turn, EMBEDDING, [&](int64_t row) { embed(model_, batch_.token_ids[row], buffers_.x + row * s.hidden); });
    for (int64_t l = 0; l < s.layers; l++) {
      const Layer<D>& layer = model_.layers[l];
      const Packed<D>& following = l + 1 < s.layers ? model_.layers[l + 1].qkv : model_.head;
      const E* normed = norm_all(turn, layer.attention_norm);
      phase(turn, QKV, [&](int64_t i) { project(layer, normed, i, 0, T, ahead(turn, layer.qkv, i, layer.output)); });
      phase(turn, ATTENTION, [&](int64_t i) { attend_to(layer, queries_, i); });
      phase(turn, OUTPUT, [&](int64_t i) {
        add(buffers_.attended, wide, layer.output, i, 0, T, ahead(turn, layer.output, i, layer.gate_up));
      });
      normed = norm_all(turn, layer.mlp_norm);
      phase(turn, GATE_UP, [&](int64_t i) { gate(layer, normed, i, 0, T, ahead(turn, layer.gate_up, i, layer.down)); });
      phase(turn, DOWN, [&](int64_t i) {
        add(buffers_.activated, s.inter_stride(sizeof(E)), layer.down, i, 0, T, ahead(turn, layer.down, i, following));
      });
    }
    predict(turn, batch_.logits_rows);
  }

  // What a thread multiplies with after this panel: the next one, or after its share its first one of the next matrix.
  const E* ahead(const Turn& turn, const Packed<D>& now, int64_t panel, const Packed<D>& then) const {
    const bool is_last = panel + 1 == now.panels * (turn.id + 1) / threads_;
    return is_last ? then.panel(then.panels * turn.id / threads_) : now.panel(panel + 1);
  }

  void project(const Layer<D>& layer, const E* normed, int64_t panel, int64_t begin, int64_t end, const E* ahead) {
    product<D>(normed, model_.sizes.hidden, layer.qkv, panel, begin, end, ahead,
               StoreQKV<D>(model_, layer, batch_, buffers_, panel));
  }

  // The i-th of all pairs of queries and key-value heads; the one after it is upcoming.
  void attend_to(const Layer<D>& layer, const std::vector<Queries>& all, int64_t i) {
    const int64_t heads = model_.sizes.kv_heads, next = std::min(i + 1, int64_t(all.size()) * heads - 1);
    attend_to(layer, all[i / heads], i % heads, upcoming(all[next / heads], next % heads));
  }

  Upcoming upcoming(const Queries& queries, int64_t kv_head) const {
    const int64_t* table = batch_.block_table + buffers_.places[queries.row].sequence * batch_.table_width;
    return {table, kv_head, batch_.positions[queries.row + queries.count - 1]};
  }

  void attend_to(const Layer<D>& layer, const Queries& queries, int64_t kv_head, const Upcoming& upcoming) {
    const int64_t group = model_.sizes.heads_per_kv();
    for (int64_t head = 0; head < group; head += ROWS) {
      const int64_t heads = group - head < ROWS ? group - head : ROWS;
      attend(model_, layer, batch_, buffers_, queries, kv_head * group + head, heads, upcoming);
    }
  }

  void add(const E* a, int64_t width, const Packed<D>& weight, int64_t panel, int64_t begin, int64_t end, const E* ahead) {
    float* x = buffers_.x + panel * COLUMNS;
    const int64_t stride = model_.sizes.hidden;
    product<D>(a, width, weight, panel, begin, end, ahead, [&](int64_t row, const float* sums) {
      float* to = x + row * stride;
      store(to, load(to) + load(sums));
      store(to + LANES, load(to + LANES) + load(sums + LANES));
    });
  }

  void gate(const Layer<D>& layer, const E* normed, int64_t panel, int64_t begin, int64_t end, const E* ahead) {
    E* to = buffers_.activated + panel * LANES;
    const int64_t stride = model_.sizes.inter_stride(sizeof(E));
    product<D>(normed, model_.sizes.hidden, layer.gate_up, panel, begin, end, ahead,
               [&](int64_t row, const float* sums) { activate<D>(sums, to + row * stride); });
  }

  // Logits of the rows wanted; `from` names their rows in x, null where they stand at the front.
  void predict(Turn& turn, const int64_t* from) {
    const Sizes& s = model_.sizes;
    const int64_t R = batch_.rows;
    phase(turn, NORM, [&](int64_t r) {
      const float* x = buffers_.x + (from ? from[r] : r) * s.hidden;
      rms_norm<D>(x, model_.norm, s, model_.eps, buffers_.normed + r * s.hidden);
    });
    auto* best = best_.data() + turn.id * R;
    phase(turn, HEAD, [&](int64_t panel) {
      const int64_t first = panel * COLUMNS, count = s.vocab - first < COLUMNS ? s.vocab - first : COLUMNS;
      product<D>(buffers_.normed, s.hidden, model_.head, panel, 0, R, model_.head.panel(panel + 1),
                 [&](int64_t r, const float* sums) {
        if (batch_.logits) std::memcpy(batch_.logits + r * s.vocab + first, sums, count * sizeof(float));
        auto& found = best[r];
        // A NaN as the first argument gives way: it must not hide what is larger than what was found.
        const Lanes tops = larger(load(sums), larger(load(sums + LANES), broadcast(-INFINITY)));
        const float top = count == COLUMNS ? largest(tops) : INFINITY;
        if (!(top < found.first))
          for (int64_t i = 0; i < count; i++)
            if (sums[i] > found.first || (sums[i] == found.first && first + i < found.second))
              found = {sums[i], first + i};
      });
    });
  }

  // ---- many tokens ----

  // Blocks of rows, about equal, later ones first: they see more keys.
  void plan_blocks() {
    const int64_t count = padded(std::max<int64_t>(1, ceil_div(batch_.tokens, BLOCK_ROWS)), threads_);
    for (int64_t i = count; i-- > 0;) {
      const int64_t begin = batch_.tokens * i / count, end = batch_.tokens * (i + 1) / count;
      if (begin < end) blocks_.push_back({begin, end});
    }
  }

  void many(Turn& turn) {
    const Sizes& s = model_.sizes;
    const int64_t layers = s.layers;
    blocks(turn, [&](int64_t begin, int64_t end) {
      {
        Timer timer(turn.times, EMBEDDING);
        for (int64_t row = begin; row < end; row++) embed(model_, batch_.token_ids[row], buffers_.x + row * s.hidden);
      }
      enter(turn, model_.layers[0], begin, end);
    });
    for (int64_t l = 0; l + 1 < layers; l++)
      blocks(turn, [&](int64_t begin, int64_t end) {
        attend_block(turn, model_.layers[l], begin, end);
        leave(turn, model_.layers[l], begin, end);
        enter(turn, model_.layers[l + 1], begin, end);
      });
    if (batch_.rows) finish(turn);
  }

  template <class F>
  void blocks(Turn& turn, F&& f) {
    take_from(shares_of(turn), turn.id, threads_, [&](int64_t i) { f(blocks_[i].first, blocks_[i].second); });
    meet(turn);
  }

  void attend_block(Turn& turn, const Layer<D>& layer, int64_t begin, int64_t end) {
    Timer timer(turn.times, ATTENTION);
    for (int64_t kv_head = 0; kv_head < model_.sizes.kv_heads; kv_head++)
      for (int64_t row = begin; row < end;) {
        const Queries queries = queries_from(row, end);
        attend_to(layer, queries, kv_head, upcoming(queries, kv_head));
        row += queries.count;
      }
  }

  void norm_block(Turn& turn, const float* weight, int64_t begin, int64_t end) {
    Timer timer(turn.times, NORM);
    for (int64_t row = begin; row < end; row++) norm(row, weight, buffers_.normed);
  }

  // Norm, q, k and v of rows [begin, end).
  void enter(Turn& turn, const Layer<D>& layer, int64_t begin, int64_t end) {
    norm_block(turn, layer.attention_norm, begin, end);
    Timer timer(turn.times, QKV);
    for (int64_t panel = 0; panel < layer.qkv.panels; panel++) project(layer, buffers_.normed, panel, begin, end, layer.qkv.panel(panel + 1));
  }

  // What follows the attention of rows [begin, end).
  void leave(Turn& turn, const Layer<D>& layer, int64_t begin, int64_t end) {
    const Sizes& s = model_.sizes;
    {
      Timer timer(turn.times, OUTPUT);
      for (int64_t panel = 0; panel < layer.output.panels; panel++)
        add(buffers_.attended, s.heads * s.head_dim, layer.output, panel, begin, end, layer.output.panel(panel + 1));
    }
    norm_block(turn, layer.mlp_norm, begin, end);
    {
      Timer timer(turn.times, GATE_UP);
      for (int64_t panel = 0; panel < layer.gate_up.panels; panel++) gate(layer, buffers_.normed, panel, begin, end, layer.gate_up.panel(panel + 1));
    }
    Timer timer(turn.times, DOWN);
    for (int64_t panel = 0; panel < layer.down.panels; panel++)
      add(buffers_.activated, s.inter_stride(sizeof(E)), layer.down, panel, begin, end, layer.down.panel(panel + 1));
  }

  // The last layer after its keys and values: only for the rows whose logits are wanted, moved to the front.
  void finish(Turn& turn) {
    const Sizes& s = model_.sizes;
    const Layer<D>& layer = model_.layers.back();
    const int64_t R = batch_.rows, wide = s.heads * s.head_dim;
    phase(turn, ATTENTION, [&](int64_t i) { attend_to(layer, last_, i); });
    if (turn.id == 0)
      for (int64_t r = 0; r < R; r++) {  // ascending, so that no row is overwritten before it is moved
        const int64_t row = batch_.logits_rows[r];
        std::memmove(buffers_.x + r * s.hidden, buffers_.x + row * s.hidden, s.hidden * sizeof(float));
        std::memmove(buffers_.attended + r * wide, buffers_.attended + row * wide, wide * sizeof(E));
      }
    meet(turn);
    phase(turn, OUTPUT, [&](int64_t i) {
      add(buffers_.attended, wide, layer.output, i, 0, R, ahead(turn, layer.output, i, layer.gate_up));
    });
    phase(turn, NORM, [&](int64_t row) { norm(row, layer.mlp_norm, buffers_.normed); });
    phase(turn, GATE_UP, [&](int64_t i) {
      gate(layer, buffers_.normed, i, 0, R, ahead(turn, layer.gate_up, i, layer.down));
    });
    phase(turn, DOWN, [&](int64_t i) {
      add(buffers_.activated, s.inter_stride(sizeof(E)), layer.down, i, 0, R, ahead(turn, layer.down, i, model_.head));
    });
    predict(turn, nullptr);
  }

  Model<D>& model_;
  const Batch& batch_;
  const int threads_;
  bool shared_;
  Buffers<D> buffers_;
  std::vector<Queries> queries_, last_;
  std::vector<std::pair<int64_t, int64_t>> blocks_;  // rows [first, second)
  std::vector<std::pair<float, int64_t>> best_;      // [threads][R]
};

}  // namespace wholecurve
