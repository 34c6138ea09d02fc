// What a step works on: the model's packed weights, its paged cache, the flat batch, and the buffers between two products.
#pragma once
#include <memory>

#include "threads.hpp"
#include "tiles.hpp"
#include "work.hpp"

namespace wholecurve {

INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE int64_t padded(int64_t size, int64_t multiple) { return ceil_div(size, multiple) * multiple; }

// A matrix in panels of 32 output columns: [panels][steps][32][GROUP], steps = inner / GROUP.
template <class D>
struct Packed {
  const typename D::Element* data;
  int64_t panels, steps;
  const typename D::Element* panel(int64_t i) const { return data + i * steps * COLUMNS * D::GROUP; }
};

// Sizes are counts of elements; `hidden` and `inter` are padded to whole vectors, with zeros.
struct Sizes {
  int64_t hidden, true_hidden, inter, heads, kv_heads, head_dim, layers, vocab, block_size;
  int64_t half() const { return head_dim / 2; }
  int64_t rotated_panels() const { return ceil_div((heads + kv_heads) * half(), LANES); }
  int64_t value_panels() const { return ceil_div(kv_heads * head_dim, COLUMNS); }
  int64_t value_width() const { return padded(head_dim, LANES); }
  int64_t key_block() const { return head_dim * block_size; }         // elements of a block of one key-value head
  int64_t value_block() const { return value_width() * block_size; }
  // An odd number of cache lines apart: rows at a power of two would all fall into a few sets of the first-level cache.
  int64_t inter_stride(int64_t itemsize) const { return inter + 64 / itemsize * (1 - inter * itemsize / 64 % 2); }
  int64_t heads_per_kv() const { return heads / kv_heads; }
};

template <class D>
struct Layer {
  const float *attention_norm, *mlp_norm;
  Packed<D> qkv, output, gate_up, down;
  // keys [blocks][kv heads][head_dim / GROUP][block_size][GROUP], values [blocks][kv heads][block_size / GROUP][width][GROUP]
  typename D::Element *keys = nullptr, *values = nullptr;
};

template <class D>
struct Model {
  Sizes sizes;
  float eps, scale;
  const float *cos, *sin;  // [max_position, head_dim / 2]
  const float* norm;
  const typename D::Element* embedding;  // [vocab, true_hidden], null where it is the head
  Packed<D> head;
  std::vector<Layer<D>> layers;
  std::unique_ptr<Threads> threads;
  std::vector<char> memory;         // of the buffers below, grown as needed
  std::unique_ptr<Share[]> shares;  // of all phases of a step
  int64_t num_shares = 0;
};

// One flat batch, see wholecurve.models.batch: T tokens, S sequences, R rows whose logits are wanted.
struct Batch {
  int64_t tokens, sequences, rows, table_width;
  const int64_t *token_ids, *positions, *logits_rows, *cu_q, *context_lens, *block_table, *slots;
  float* logits;  // [R, vocab], null where only the largest is asked for
  int64_t* best;  // [R], lowest id of the largest logit, -1 where all are -inf or NaN
  int64_t* times;  // [threads, parts of work.hpp] nanoseconds to add to, or null
};

// Where a token of the batch belongs: its sequence, and the cache's block and offset that its keys and values go to.
struct Place {
  int64_t sequence, block;
  int32_t offset;
  bool is_last;  // new token of its sequence
};

// Buffers of one step. Rows of `normed`, `attended` and `activated` are what products read, in the element type.
template <class D>
struct Buffers {
  typedef typename D::Element E;
  float* x;         // [T, hidden] residual stream
  E* normed;        // [T, hidden]
  E* queries;       // [T, heads · head_dim]
  E* attended;      // [T, heads · head_dim]
  E* activated;     // [T, inter_stride]
  Place* places;    // [T]
};

}  // namespace wholecurve
