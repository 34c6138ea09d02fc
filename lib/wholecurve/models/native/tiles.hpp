// Products in registers: up to 12 rows times 32 columns, each element one sum in one order.
//
// An element of a product is summed along the inner axis from front to back in one accumulator, whatever tile it is in. That is
// why a row's bits do not depend on the number of rows: tokens are the same alone, batched, chunked and speculated.
#pragma once
#include "lanes.hpp"

namespace wholecurve {

constexpr int ROWS = 12;     // 24 accumulators, 2 columns, the rest for broadcasts: 32 registers of AVX-512
constexpr int COLUMNS = 32;  // of a panel: two vectors

// What is read next, asked for while a tile is computed: two lines per group, `step` bytes after those of the group before.
struct Ahead {
  const char *first, *second;
  int64_t step;
};

// out[row][0 … 32) = sum over `steps` groups of a[row][...] times the columns at first and second, `stride` elements apart from
// group to group; rows are `row_stride` elements apart.
//
// Never inlined: constants of what surrounds it would take registers from the sums.
template <class D, int N>
__attribute__((noinline)) void tile(const typename D::Element* a, int64_t row_stride, const typename D::Element* first,
                 const typename D::Element* second, int64_t stride, int64_t steps, float* out, int64_t out_stride,
                 Ahead ahead) {
  Lanes sums[N][2];
  const typename D::Element* rows[(N + 2) / 3];  // every third one: with the stride as index they fit into registers
  for (int r = 0; r < N; r++) sums[r][0] = sums[r][1] = Lanes{};
  for (int r = 0; r < N; r += 3) rows[r / 3] = a + r * row_stride;
  for (int64_t i = 0; i < steps; i++) {
    typename D::Weights left = D::weights(first + i * stride), right = D::weights(second + i * stride);
    __builtin_prefetch(ahead.first + i * ahead.step, 0, 2);
    __builtin_prefetch(ahead.second + i * ahead.step, 0, 2);
#pragma GCC unroll 12
    for (int r = 0; r < N; r++) {
      auto row = D::spread(rows[r / 3] + r % 3 * row_stride);
      sums[r][0] = D::dot(sums[r][0], row, left);
      sums[r][1] = D::dot(sums[r][1], row, right);
    }
#pragma GCC unroll 4
    for (auto& row : rows) row += D::GROUP;
  }
  for (int r = 0; r < N; r++) {
    store(out + r * out_stride, sums[r][0]);
    store(out + r * out_stride + LANES, sums[r][1]);
  }
}

// out[row][0 … 32), rows `width` apart, += rows times several blocks of columns, `steps` groups in each block. `ahead` are the
// blocks that are read next; the columns at `offset` fetch theirs from `ahead_offset` on.
template <class D, int N>
__attribute__((noinline)) void tile_over_blocks(const typename D::Element* a, int64_t row_stride, const typename D::Element* const* blocks,
                             int64_t num_blocks, int64_t offset, int64_t stride, int64_t steps, int64_t last_steps,
                             float* out, int64_t width, int vectors, const typename D::Element* const* ahead,
                             int64_t ahead_offset) {
  Lanes sums[N][2];
  for (int r = 0; r < N; r++) {
    sums[r][0] = load(out + r * width);
    sums[r][1] = vectors > 1 ? load(out + r * width + LANES) : Lanes{};
  }
  const int64_t second = vectors > 1 ? LANES * D::GROUP : 0;
  for (int64_t block = 0; block < num_blocks; block++) {
    const auto* columns = blocks[block] + offset;
    const typename D::Element* rows[(N + 2) / 3];
    for (int r = 0; r < N; r += 3) rows[r / 3] = a + r * row_stride + block * steps * D::GROUP;
    const int64_t count = block + 1 < num_blocks ? steps : last_steps;
    const char* next = (const char*)(ahead[block] + ahead_offset);
    for (int64_t i = 0; i < count; i++) {
      __builtin_prefetch(next + i * 128, 0, 2);
      __builtin_prefetch(next + i * 128 + 64, 0, 2);
      typename D::Weights left = D::weights(columns + i * stride), right = D::weights(columns + i * stride + second);
#pragma GCC unroll 12
      for (int r = 0; r < N; r++) {
        auto row = D::spread(rows[r / 3] + r % 3 * row_stride);
        sums[r][0] = D::dot(sums[r][0], row, left);
        sums[r][1] = D::dot(sums[r][1], row, right);
      }
#pragma GCC unroll 4
      for (auto& row : rows) row += D::GROUP;
    }
  }
  for (int r = 0; r < N; r++) {
    store(out + r * width, sums[r][0]);
    if (vectors > 1) store(out + r * width + LANES, sums[r][1]);
  }
}

// Calls f with a compile-time number of rows from 1 to 12.
template <class F>
INLINE void with_rows(int rows, F&& f) {
  switch (rows) {
#define CASE(n) case n: f.template operator()<n>(); break;
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
  }
}

}  // namespace wholecurve
