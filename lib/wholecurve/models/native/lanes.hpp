// Sixteen float32 lanes, and the two element types of a model: float32, and bfloat16 in pairs along the summed axis.
//
// Vector extensions of GCC and Clang, so that it compiles for any processor; AVX-512 BF16 has its dot instruction.
// Every operation is one rounding that is written here (-ffp-contract=off): a lane's bits never depend on the code around.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace wholecurve {

constexpr int LANES = 16;
typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t IntLanes __attribute__((vector_size(64)));
#define INLINE inline __attribute__((always_inline))

INLINE Lanes broadcast(float x) { return x - Lanes{}; }
INLINE Lanes load(const float* p) { Lanes v; std::memcpy(&v, p, sizeof v); return v; }
INLINE void store(float* p, Lanes v) { std::memcpy(p, &v, sizeof v); }

INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  return a * b + c;
#endif
}

INLINE Lanes larger(Lanes a, Lanes b) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

// both in a fixed order of halves
INLINE float sum(Lanes v) {
  float x[LANES];
  store(x, v);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) x[i] = x[i] + x[i + width];
  return x[0];
}

INLINE float largest(Lanes v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float x = v[0];
  for (int i = 1; i < LANES; i++) x = v[i] > x ? v[i] : x;
  return x;
#endif
}

// 2^x for x <= 0, relative error 2e-7; exactly 0 below -150. 2^x = 2^n 2^r with a whole n and |r| <= 1/2; 2^r by Taylor's polynomial
// of degree 6 in r ln 2.
INLINE Lanes power_of_two(Lanes x) {
  x = larger(x, broadcast(-200.0f));
#if defined(__AVX512F__)
  const Lanes n = (Lanes)_mm512_roundscale_ps((__m512)x, 0);
#else
  const Lanes magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Lanes n = (x + magic) - magic;
#endif
  const Lanes r = x - n;
  Lanes p = broadcast(1.540353e-4f);
  p = fma(p, r, broadcast(1.333355815e-3f));
  p = fma(p, r, broadcast(9.618129108e-3f));
  p = fma(p, r, broadcast(5.550410866e-2f));
  p = fma(p, r, broadcast(2.402265070e-1f));
  p = fma(p, r, broadcast(6.931471806e-1f));
  p = fma(p, r, broadcast(1.0f));
#if defined(__AVX512F__)
  return (Lanes)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  const IntLanes exponent = (IntLanes)(n + magic) - (IntLanes)magic;
  const Lanes result = (Lanes)((IntLanes)p + (exponent << 23));
  return (Lanes)((IntLanes)result & (IntLanes)(n >= broadcast(-126.0f)));
#endif
}

constexpr float LOG2_E = 1.44269504f;

INLINE uint16_t to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 64);  // NaN stays NaN
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

INLINE float from_bfloat16(uint16_t x) {
  uint32_t bits = uint32_t(x) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// An element type. GROUP elements along the summed axis lie side by side: a Weights vector holds GROUP of them for each of
// 16 columns, a Values scalar GROUP of them of one row.
struct Float32 {
  typedef float Element;
  typedef float Values;
  typedef Lanes Weights;
  static constexpr int GROUP = 1;
  static INLINE Weights weights(const Element* p) { return load(p); }
  static INLINE Lanes spread(const Element* p) { return broadcast(*p); }
  static INLINE Lanes dot(Lanes sum, Lanes row, Weights columns) { return fma(row, columns, sum); }
  static INLINE float widen(Element x) { return x; }
  static INLINE Element narrow(float x) { return x; }
  static INLINE void narrow(Element* p, Lanes v) { store(p, v); }
};

struct BFloat16 {
  typedef uint16_t Element;
  static constexpr int GROUP = 2;
  static INLINE float widen(Element x) { return from_bfloat16(x); }
  static INLINE Element narrow(float x) { return to_bfloat16(x); }
#if defined(__AVX512BF16__)
  typedef __m512i Weights;
  static INLINE Weights weights(const Element* p) { return _mm512_loadu_si512(p); }
  static INLINE Weights spread(const Element* p) {
    int32_t pair;
    std::memcpy(&pair, p, 4);
    return _mm512_set1_epi32(pair);
  }
  static INLINE Lanes dot(Lanes sum, Weights row, Weights columns) {
    return (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)row, (__m512bh)columns);
  }
  static INLINE void narrow(Element* p, Lanes v) {
    __m256bh packed = _mm512_cvtneps_pbh((__m512)v);
    std::memcpy(p, &packed, 32);
  }
#else
  struct Weights { Lanes first, second; };
  static INLINE Weights split(IntLanes pairs) { return {(Lanes)(pairs << 16), (Lanes)(pairs & int32_t(0xffff0000))}; }
  static INLINE Weights weights(const Element* p) {
    IntLanes pairs;
    std::memcpy(&pairs, p, sizeof pairs);
    return split(pairs);
  }
  static INLINE Weights spread(const Element* p) {
    int32_t pair;
    std::memcpy(&pair, p, 4);
    return split(pair - IntLanes{});
  }
  static INLINE Lanes dot(Lanes sum, Weights row, Weights columns) {
    return fma(row.second, columns.second, fma(row.first, columns.first, sum));
  }
  static INLINE void narrow(Element* p, Lanes v) {
    for (int i = 0; i < LANES; i++) p[i] = to_bfloat16(v[i]);
  }
#endif
};

}  // namespace wholecurve
