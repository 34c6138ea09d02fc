// The arithmetic of lanes.hpp and layers.hpp over whole arrays, whose lengths are multiples of 16.
#include "layers.hpp"

using namespace wholecurve;

extern "C" {

void powers(const float* x, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES) store(out + i, power_of_two(load(x + i)));
}

void narrowed(const float* x, uint16_t* vectors, uint16_t* scalars, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES) BFloat16::narrow(vectors + i, load(x + i));
  for (int64_t i = 0; i < count; i++) scalars[i] = BFloat16::narrow(x[i]);
}

void widened(const uint16_t* x, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i++) out[i] = BFloat16::widen(x[i]);
}

// gate_up: 16 gates, then their 16 ups.
void activated(const float* gate_up, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES) activate<Float32>(gate_up + 2 * i, out + i);
}

// Largest and sum of each 16, and the first lane of one dot of two elements, for x and y read as bfloat16 pairs.
void reduced(const float* x, float* tops, float* sums, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES) {
    tops[i / LANES] = largest(load(x + i));
    sums[i / LANES] = sum(load(x + i));
  }
}

// out[i] = out[i] + row[0] * columns[2 i] + row[1] * columns[2 i + 1]
void dots(const uint16_t* rows, const uint16_t* columns, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES)
    store(out + i, BFloat16::dot(load(out + i), BFloat16::spread(rows + i / LANES * 2), BFloat16::weights(columns + 2 * i)));
}

}
