// The C face of a Llama-family step: pack matrices, make a model, attach its cache, run a step. Compiled once per element type
// (-DELEMENT=Float32 or BFloat16); wholecurve.models.native loads it.
#include "step.hpp"

using namespace wholecurve;
typedef ELEMENT D;
typedef D::Element E;

extern "C" {

// target [rows / 32][inner / GROUP][32][GROUP] from source [.., source_inner]: row r of the product is row order[r] of the source,
// zeros where that is -1 and beyond source_inner.
void pack(const E* source, int64_t source_inner, const int64_t* order, int64_t rows, int64_t inner, E* target) {
  for (int64_t panel = 0; panel < rows / COLUMNS; panel++)
    for (int64_t step = 0; step < inner / D::GROUP; step++)
      for (int64_t column = 0; column < COLUMNS; column++)
        for (int g = 0; g < D::GROUP; g++) {
          const int64_t from = order[panel * COLUMNS + column], at = step * D::GROUP + g;
          *target++ = from >= 0 && at < source_inner ? source[from * source_inner + at] : E(0);
        }
}

// sizes: hidden (padded), true hidden, inter (padded), heads, kv heads, head_dim, layers, vocab, block_size, threads.
// pointers: cos, sin, final norm, embedding (or null), head, then per layer attention norm, qkv, output, mlp norm, gate_up, down.
void* create(const int64_t* sizes, double eps, const void* const* pointers) {
  auto* model = new Model<D>;
  Sizes& s = model->sizes;
  s = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[7], sizes[8]};
  model->eps = float(eps);
  model->scale = 1.0f / std::sqrt(float(s.head_dim));
  const int64_t wide = s.heads * s.head_dim, outputs = ceil_div(s.true_hidden, COLUMNS);
  auto matrix = [](const void* data, int64_t panels, int64_t inner) { return Packed<D>{(const E*)data, panels, inner / D::GROUP}; };
  model->cos = (const float*)*pointers++;
  model->sin = (const float*)*pointers++;
  model->norm = (const float*)*pointers++;
  model->embedding = (const E*)*pointers++;
  model->head = matrix(*pointers++, ceil_div(s.vocab, COLUMNS), s.hidden);
  for (int64_t i = 0; i < s.layers; i++) {
    Layer<D> layer;
    layer.attention_norm = (const float*)*pointers++;
    layer.qkv = matrix(*pointers++, s.rotated_panels() + s.value_panels(), s.hidden);
    layer.output = matrix(*pointers++, outputs, wide);
    layer.mlp_norm = (const float*)*pointers++;
    layer.gate_up = matrix(*pointers++, s.inter / LANES, s.hidden);
    layer.down = matrix(*pointers++, outputs, s.inter);
    model->layers.push_back(layer);
  }
  model->threads = std::make_unique<Threads>(int(sizes[9]));
  return model;
}

void destroy(void* model) { delete (Model<D>*)model; }

// numbers: tokens, sequences, rows, table width. pointers: token_ids, positions, logits_rows, cu_q, context_lens, block_table, slots,
// logits (or null), best, times (or null), then keys and values of each layer. False, and nothing is done, where logits_rows do not
// ascend within the tokens: they are moved to the front in place.
bool step(void* handle, const int64_t* numbers, void* const* pointers) {
  auto& model = *(Model<D>*)handle;
  auto ints = [&](int i) { return (const int64_t*)pointers[i]; };
  const Batch batch{numbers[0], numbers[1], numbers[2], numbers[3], ints(0), ints(1), ints(2), ints(3),
                    ints(4),    ints(5),    ints(6),    (float*)pointers[7], (int64_t*)pointers[8],
                    (int64_t*)pointers[9]};
  for (int64_t r = 0; r < batch.rows; r++)
    if (batch.logits_rows[r] < (r ? batch.logits_rows[r - 1] + 1 : 0) || batch.logits_rows[r] >= batch.tokens) return false;
  for (size_t i = 0; i < model.layers.size(); i++) {
    model.layers[i].keys = (E*)pointers[10 + 2 * i];
    model.layers[i].values = (E*)pointers[11 + 2 * i];
  }
  Step<D>(model, batch).run();
  return true;
}

}
