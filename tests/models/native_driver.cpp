// Runs steps of small random models without Python, for compilers' sanitizers: every buffer is as large as the interface says and
// no larger. Prints nothing and returns 0 where all is well, 1 where a row's bits
// depend on its batch, 2 where the NaNs that the cache was full of reach a logit.
#include <cstdio>
#include <random>

#include "llama.cpp"

struct Shape {
  int64_t hidden, inter, heads, kv_heads, head_dim, layers, vocab, block_size;
  bool tied;
};

struct Chunk {
  int64_t sequence, start, count;
};

constexpr int64_t POSITIONS = 300;

class Driver {
 public:
  Driver(const Shape& shape, int threads) : shape_(shape), threads_(threads) {
    const int64_t hidden = padded(shape.hidden, COLUMNS), inter = padded(shape.inter, LANES), half = shape.head_dim / 2;
    const int64_t wide = shape.heads * shape.head_dim, rotated = ceil_div((shape.heads + shape.kv_heads) * half, LANES);
    const int64_t qkv = rotated + ceil_div(shape.kv_heads * shape.head_dim, COLUMNS), panels = hidden / COLUMNS;
    pointers_ = {floats(POSITIONS * half), floats(POSITIONS * half), norm(hidden)};
    pointers_.push_back(shape.tied ? nullptr : elements(shape.vocab * shape.hidden));
    pointers_.push_back(elements(ceil_div(shape.vocab, COLUMNS) * COLUMNS * hidden));
    for (int64_t layer = 0; layer < shape.layers; layer++) {
      pointers_.push_back(norm(hidden));
      pointers_.push_back(elements(qkv * COLUMNS * hidden));
      pointers_.push_back(elements(panels * COLUMNS * wide));
      pointers_.push_back(norm(hidden));
      pointers_.push_back(elements(inter / LANES * COLUMNS * hidden));
      pointers_.push_back(elements(panels * COLUMNS * inter));
    }
    const int64_t sizes[] = {hidden,       shape.hidden, inter,      shape.heads,      shape.kv_heads, shape.head_dim,
                             shape.layers, shape.vocab,  shape.block_size, threads};
    model_ = create(sizes, 1e-5, pointers_.data());
    width_ = ceil_div(POSITIONS, shape.block_size);
    const int64_t rows = SEQUENCES * width_ * shape.kv_heads * shape.block_size;
    for (int64_t layer = 0; layer < shape.layers; layer++) {
      caches_.emplace_back(rows * shape.head_dim, E(0x7fff));
      caches_.emplace_back(rows * padded(shape.head_dim, LANES), E(0x7fff));
    }
  }

  ~Driver() { destroy(model_); }

  // Logits of all tokens of the chunks, or with `last` of each chunk's last.
  std::vector<float> logits(const std::vector<Chunk>& chunks, bool last = false) {
    std::vector<int64_t> ids, positions, rows, cu_q{0}, lengths, table, slots;
    for (const Chunk& chunk : chunks) {
      for (int64_t at = chunk.start; at < chunk.start + chunk.count; at++) {
        if (!last || at + 1 == chunk.start + chunk.count) rows.push_back(int64_t(ids.size()));
        ids.push_back((at * 7 + at * at * 3 + chunk.sequence * 11) % shape_.vocab);
        positions.push_back(at);
        slots.push_back(block(chunk.sequence, at / shape_.block_size) * shape_.block_size + at % shape_.block_size);
      }
      cu_q.push_back(int64_t(ids.size()));
      lengths.push_back(chunk.start + chunk.count);
      for (int64_t i = 0; i < width_; i++)
        table.push_back(i * shape_.block_size < lengths.back() ? block(chunk.sequence, i) : -1);
    }
    std::vector<float> out(rows.size() * shape_.vocab);
    std::vector<int64_t> best(rows.size()), times(threads_ * PARTS);
    std::vector<void*> pointers = {ids.data(),     positions.data(), rows.data(), cu_q.data(), lengths.data(), table.data(),
                                   slots.data(),   out.data(),       best.data(), times.data()};
    for (auto& cache : caches_) pointers.push_back(cache.data());
    const int64_t numbers[] = {int64_t(ids.size()), int64_t(chunks.size()), int64_t(rows.size()), width_};
    if (!step(model_, numbers, pointers.data())) std::abort();
    return out;
  }

 private:
  static constexpr int64_t SEQUENCES = 4;
  int64_t block(int64_t sequence, int64_t i) const { return i * SEQUENCES + sequence; }

  float random() { return std::normal_distribution<float>(0.0f, 0.3f)(generator_); }
  const void* floats(int64_t count) {
    floats_.emplace_back(count);
    for (float& x : floats_.back()) x = random();
    return floats_.back().data();
  }
  const void* norm(int64_t count) { return floats(count); }
  // Padding too, which is zero in a packed matrix: what is asked for here are accesses and bits, not meaning.
  const void* elements(int64_t count) {
    elements_.emplace_back(count);
    for (E& x : elements_.back()) x = D::narrow(random());
    return elements_.back().data();
  }

  const Shape shape_;
  const int threads_;
  std::mt19937 generator_{1};
  std::vector<std::vector<float>> floats_;
  std::vector<std::vector<E>> elements_, caches_;
  std::vector<const void*> pointers_;
  int64_t width_;
  void* model_;
};

int main() {
  const Shape shapes[] = {{40, 56, 6, 2, 8, 2, 61, 16, false}, {64, 100, 4, 1, 10, 1, 64, 32, true}, {32, 16, 13, 1, 64, 2, 33, 64, true}};
  for (const Shape& shape : shapes)
    for (int threads : {1, 3}) {
      Driver driver(shape, threads);
      driver.logits({});
      const auto together = driver.logits({{0, 0, 130}, {1, 0, 1}, {2, 0, 17}, {3, 0, 64}});
      std::vector<float> apart;
      for (const Chunk& chunk : {Chunk{0, 0, 81}, {0, 81, 1}, {0, 82, 48}, {1, 0, 1}, {2, 0, 3}, {2, 3, 14}, {3, 0, 64}}) {
        const auto part = driver.logits({chunk});
        apart.insert(apart.end(), part.begin(), part.end());
      }
      for (float logit : together)
        if (!std::isfinite(logit)) return 2;
      if (together.size() != apart.size() || std::memcmp(together.data(), apart.data(), apart.size() * sizeof(float))) return 1;
      for (int64_t t = 0; t < 3; t++) driver.logits({{0, 130 + t, 1}, {1, 1 + t, 1}, {2, 17 + 2 * t, 2}, {3, 64 + t, 1}}, true);
      driver.logits({{0, 133, 100}}, true);
    }
  return 0;
}
