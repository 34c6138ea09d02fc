/* RMSNorm, rotary embedding and gated activation on a CPU: one pass over memory each, in plain C.

   What each function computes is defined by the `reference.py` of its kernel; the order of roundings is theirs.
   Loops are written so that a compiler turns them into vector instructions; products and sums must stay apart
   (-ffp-contract=off) where the definition has two roundings. Every function takes one packed record of 8-byte
   fields, which Python fills in one call. Strides are in elements. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0
#error "float arithmetic is carried out in a wider type, which rounds elsewhere than the definition says"
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

enum { BFLOAT16, FLOAT16, FLOAT32, NONE };           /* dtypes */
enum { SILU, SILU_ALPHA, GELU_TANH };                /* activations */
enum { LLAMA, GEMMA };                               /* styles of a norm */
enum { HALF, INTERLEAVED };                          /* layouts of a rotation */
enum { LANES = 32, MAX_PAIRS = 512, MAX_HEAD = 1024 };

typedef char pointers_have_8_bytes[sizeof(void *) == 8 ? 1 : -1];

/* ---- numbers of each dtype, read as float and rounded to nearest even ---- */

INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

INLINE float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* The carry of a NaN whose low bits are set could make it a number. `exact` says that the value comes from 16-bit
   numbers alone: then those bits of a NaN are 0, and the test can be left out. */
INLINE uint32_t nearest_bfloat16(float value, int exact) {
  uint32_t bits = bits_of(value);
  bits += 0x7fff + ((bits >> 16) & 1);
  return exact || value == value ? bits : 0x7fc00000;
}

INLINE float get(const void *from, int64_t index, int dtype) {
  if (dtype == BFLOAT16) return float_of((uint32_t)((const uint16_t *)from)[index] << 16);
#ifdef __FLT16_MAX__
  if (dtype == FLOAT16) return (float)((const _Float16 *)from)[index];
#endif
  return ((const float *)from)[index];
}

INLINE void put(void *to, int64_t index, float value, int dtype, int exact) {
  if (dtype == BFLOAT16) {
    ((uint16_t *)to)[index] = (uint16_t)(nearest_bfloat16(value, exact) >> 16);
    return;
  }
#ifdef __FLT16_MAX__
  if (dtype == FLOAT16) {
    ((_Float16 *)to)[index] = (_Float16)value;
    return;
  }
#endif
  ((float *)to)[index] = value;
}

INLINE float rounded(float value, int dtype, int exact) {
  if (dtype == BFLOAT16) return float_of(nearest_bfloat16(value, exact) & 0xffff0000);
#ifdef __FLT16_MAX__
  if (dtype == FLOAT16) return (float)(_Float16)value;
#endif
  return value;
}

INLINE int64_t size_of(int dtype) { return dtype == FLOAT32 ? 4 : 2; }

INLINE const void *at(const void *base, int64_t elements, int dtype) {
  return (const char *)base + elements * size_of(dtype);
}

INLINE void *place(void *base, int64_t elements, int dtype) { return (char *)base + elements * size_of(dtype); }

/* Dtypes that this library takes, as a set of bits. */
int native_dtypes(void) {
#ifdef __FLT16_MAX__
  return 1 << BFLOAT16 | 1 << FLOAT16 | 1 << FLOAT32;
#else
  return 1 << BFLOAT16 | 1 << FLOAT32;
#endif
}

/* ---- threads: those of the OpenMP runtime that torch has brought, so that there is never a second pool ---- */

static void (*run_on_threads)(void (*)(void *), void *, unsigned, unsigned);
static int (*thread_number)(void);
static int (*number_of_threads)(void);

void native_threads(void *parallel, void *number, void *count) {
  memcpy(&run_on_threads, &parallel, sizeof parallel);
  memcpy(&thread_number, &number, sizeof number);
  memcpy(&number_of_threads, &count, sizeof count);
}

struct share {
  void (*rows)(const void *call, int64_t first, int64_t end);
  const void *call;
  int64_t count;
};

static void run_share(void *given) {
  const struct share *all = given;
  int64_t number = thread_number(), threads = number_of_threads();
  all->rows(all->call, all->count * number / threads, all->count * (number + 1) / threads);
}

/* Whole rows go to each thread, so that what a row gives never depends on how many there are. */
static void for_rows(void (*rows)(const void *, int64_t, int64_t), const void *call, int64_t count, int64_t threads) {
  if (threads < 2 || !run_on_threads) {
    rows(call, 0, count);
    return;
  }
  struct share all = {rows, call, count};
  run_on_threads(run_share, &all, (unsigned)threads, 0);
}

/* ---- RMSNorm ---- */

/* Sum of squares of a row in LANES partial sums: the order depends on the width alone. With a residual the row is
   the rounded sum, which is stored. */
INLINE float sum_of_squares(const void *x, const void *residual, void *restrict summed, int64_t width, int dtype) {
  float sums[LANES] = {0};
  int64_t whole = width - width % LANES;
  for (int64_t start = 0; start < whole; start += LANES)
    for (int64_t lane = 0; lane < LANES; lane++) {
      float value = get(x, start + lane, dtype);
      if (residual) {
        value = rounded(value + get(residual, start + lane, dtype), dtype, 1);
        put(summed, start + lane, value, dtype, 1);
      }
      sums[lane] += value * value;
    }
  for (int64_t index = whole; index < width; index++) {
    float value = get(x, index, dtype);
    if (residual) {
      value = rounded(value + get(residual, index, dtype), dtype, 1);
      put(summed, index, value, dtype, 1);
    }
    sums[index - whole] += value * value;
  }
  for (int step = LANES / 2; step; step /= 2)
    for (int lane = 0; lane < step; lane++) sums[lane] += sums[lane + step];
  return sums[0];
}

INLINE void scaled(const void *x, const void *weight, void *restrict out, float factor, int64_t width, int dtype,
                   int weight_dtype, int style) {
  int exact = weight_dtype != FLOAT32;
  for (int64_t index = 0; index < width; index++) {
    float value = get(x, index, dtype) * factor;
    if (weight_dtype != NONE) {
      float weighed = get(weight, index, weight_dtype);
      value = style == GEMMA ? value * (1.0f + weighed) : rounded(value, dtype, 1) * weighed;
    }
    put(out, index, value, dtype, exact);
  }
}

INLINE void scaled_by_kind(const void *x, const void *weight, void *out, float factor, int64_t width, int dtype,
                           int64_t weight_dtype, int64_t style) {
  if (weight_dtype == NONE) scaled(x, weight, out, factor, width, dtype, NONE, LLAMA);
  else if (weight_dtype == dtype) {
    if (style == GEMMA) scaled(x, weight, out, factor, width, dtype, dtype, GEMMA);
    else scaled(x, weight, out, factor, width, dtype, dtype, LLAMA);
  } else if (style == GEMMA) scaled(x, weight, out, factor, width, dtype, FLOAT32, GEMMA);
  else scaled(x, weight, out, factor, width, dtype, FLOAT32, LLAMA);
}

INLINE void norm_row(const void *x, const void *residual, void *summed, const void *weight, void *out, int64_t width,
                     float eps, int dtype, int64_t weight_dtype, int64_t style) {
  float sum;
  if (residual) {
    sum = sum_of_squares(x, residual, summed, width, dtype);
    x = summed;
  } else {
    sum = sum_of_squares(x, NULL, NULL, width, dtype);
  }
  float factor = 1.0f / sqrtf(sum / (float)width + eps);
  scaled_by_kind(x, weight, out, factor, width, dtype, weight_dtype, style);
}

struct rms_norm_call {
  const void *x, *weight, *residual;
  void *out, *summed;
  int64_t rows, width, x_stride, residual_stride, dtype, weight_dtype, style, threads;
  double eps;
};

INLINE void norm_rows(const struct rms_norm_call *c, int64_t first, int64_t end, int dtype) {
  for (int64_t row = first; row < end; row++) {
    const void *residual = c->residual ? at(c->residual, row * c->residual_stride, dtype) : NULL;
    void *summed = c->residual ? place(c->summed, row * c->width, dtype) : NULL;
    norm_row(at(c->x, row * c->x_stride, dtype), residual, summed, c->weight, place(c->out, row * c->width, dtype),
             c->width, (float)c->eps, dtype, c->weight_dtype, c->style);
  }
}

static void rms_norm_rows(const void *given, int64_t first, int64_t end) {
  const struct rms_norm_call *c = given;
  if (c->dtype == BFLOAT16) norm_rows(c, first, end, BFLOAT16);
  else if (c->dtype == FLOAT16) norm_rows(c, first, end, FLOAT16);
  else norm_rows(c, first, end, FLOAT32);
}

int native_rms_norm(const struct rms_norm_call *c) {
  for_rows(rms_norm_rows, c, c->rows, c->threads);
  return 0;
}

/* ---- rotary embedding ---- */

/* One head. step: the dtype that each product is rounded to, float where the tables are wider than x. */
INLINE void turn(const void *x, void *restrict out, const float *cosine, const float *sine, int64_t pairs, int dtype,
                 int step, int layout) {
  for (int64_t pair = 0; pair < pairs; pair++) {
    int64_t first = layout == HALF ? pair : 2 * pair, second = layout == HALF ? pair + pairs : 2 * pair + 1;
    float a = get(x, first, dtype), b = get(x, second, dtype);
    put(out, first, rounded(a * cosine[pair], step, 0) - rounded(b * sine[pair], step, 0), dtype, 0);
    put(out, second, rounded(b * cosine[pair], step, 0) + rounded(a * sine[pair], step, 0), dtype, 0);
  }
}

INLINE void turn_head(const void *x, void *out, const float *cosine, const float *sine, int64_t pairs, int64_t offset,
                      int64_t head_dim, int dtype, int64_t rounds, int64_t layout) {
  int64_t end = offset + 2 * pairs;
  if (offset) memcpy(out, x, (size_t)(offset * size_of(dtype)));
  if (end < head_dim)
    memcpy(place(out, end, dtype), at(x, end, dtype), (size_t)((head_dim - end) * size_of(dtype)));
  x = at(x, offset, dtype);
  out = place(out, offset, dtype);
  if (layout == HALF) {
    if (rounds) turn(x, out, cosine, sine, pairs, dtype, dtype, HALF);
    else turn(x, out, cosine, sine, pairs, dtype, FLOAT32, HALF);
  } else if (rounds) turn(x, out, cosine, sine, pairs, dtype, dtype, INTERLEAVED);
  else turn(x, out, cosine, sine, pairs, dtype, FLOAT32, INTERLEAVED);
}

struct rope_call {
  const void *x, *positions, *cosines, *sines, *weight;
  void *out;
  int64_t tokens, heads, head_dim, pairs, token_stride, head_stride, position_stride, wide_positions, cosine_stride,
      sine_stride, offset, inverse, layout, dtype, table_dtype, weight_dtype, style, norms, threads;
  double eps;
};

INLINE int64_t position_of(const struct rope_call *c, int64_t token) {
  int64_t index = token * c->position_stride;
  return c->wide_positions ? ((const int64_t *)c->positions)[index] : ((const int32_t *)c->positions)[index];
}

INLINE void table_row(const void *table, float *restrict row, int64_t pairs, int64_t dtype) {
  if (dtype == BFLOAT16) for (int64_t pair = 0; pair < pairs; pair++) row[pair] = get(table, pair, BFLOAT16);
  else if (dtype == FLOAT16) for (int64_t pair = 0; pair < pairs; pair++) row[pair] = get(table, pair, FLOAT16);
  else for (int64_t pair = 0; pair < pairs; pair++) row[pair] = get(table, pair, FLOAT32);
}

/* The heads of some tokens; normalised first (and rounded) where `norms` says so. */
INLINE void turn_tokens(const struct rope_call *c, int64_t begin, int64_t end, int dtype) {
  float cosine[MAX_PAIRS], sine[MAX_PAIRS], normed[MAX_HEAD];
  for (int64_t token = begin; token < end; token++) {
    int64_t position = position_of(c, token);
    table_row(at(c->cosines, position * c->cosine_stride, (int)c->table_dtype), cosine, c->pairs, c->table_dtype);
    table_row(at(c->sines, position * c->sine_stride, (int)c->table_dtype), sine, c->pairs, c->table_dtype);
    if (c->inverse) for (int64_t pair = 0; pair < c->pairs; pair++) sine[pair] = -sine[pair];
    for (int64_t head = 0; head < c->heads; head++) {
      const void *x = at(c->x, token * c->token_stride + head * c->head_stride, dtype);
      void *out = place(c->out, (token * c->heads + head) * c->head_dim, dtype);
      if (c->norms) {
        norm_row(x, NULL, NULL, c->weight, normed, c->head_dim, (float)c->eps, dtype, c->weight_dtype, c->style);
        x = normed;
      }
      turn_head(x, out, cosine, sine, c->pairs, c->offset, c->head_dim, dtype, c->dtype == c->table_dtype, c->layout);
    }
  }
}

static void rope_rows(const void *given, int64_t first, int64_t end) {
  const struct rope_call *c = given;
  if (c->dtype == BFLOAT16) turn_tokens(c, first, end, BFLOAT16);
  else if (c->dtype == FLOAT16) turn_tokens(c, first, end, FLOAT16);
  else turn_tokens(c, first, end, FLOAT32);
}

/* 1, and nothing is written, when a position leaves a table of `length` rows. */
int native_rope(const struct rope_call *c, int64_t length) {
  for (int64_t token = 0; token < c->tokens; token++) {
    int64_t position = position_of(c, token);
    if (position < 0 || position >= length) return 1;
  }
  for_rows(rope_rows, c, c->tokens, c->threads);
  return 0;
}

/* ---- gated activation ---- */

#ifdef FP_FAST_FMAF
#define MULTIPLY_ADD(a, b, c) fmaf(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif

/* x + whole · ln 2, exact but for one rounding. A 16-bit result does not see the second part of ln 2. */
INLINE float plus_ln2_times(float whole, float x, int dtype) {
#ifdef FP_FAST_FMAF
  x = fmaf(whole, 0.69314718f, x);
  return dtype == FLOAT32 ? fmaf(whole, -1.9046542e-9f, x) : x;
#else
  (void)dtype;
  return x + whole * 0.693359375f - whole * 2.12194440e-4f; /* the first product is exact */
#endif
}

/* x between −89 and 87. Bits of floats are in order as whole numbers, signed ones for the upper bound and unsigned ones
   for the lower: two instructions, where comparisons of floats become eight. NaN becomes anything. */
INLINE float bounded(float x) {
  int32_t above = (int32_t)bits_of(x), most = 0x42ae0000 /* 87 */;
  uint32_t below = (uint32_t)(above < most ? above : most), least = 0xc2b20000 /* −89 */;
  return float_of(below < least ? below : least);
}

/* An activation rounded to its dtype. The true one is never in the middle of two numbers (it is transcendental), so
   that where this approximation to it is, either will do: two instructions instead of five. */
INLINE float rounded_activation(float value, int dtype) {
  return dtype == BFLOAT16 ? float_of((bits_of(value) + 0x8000) & 0xffff0000) : rounded(value, dtype, 1);
}

/* gate / (1 + exp(−exponent)), to about 2 ulp. Below −88.7 the exponential is infinite and the answer −0, or NaN for a
   gate of −inf, as in torch. What NaN becomes on the way does not matter, since the gate is NaN as well. */
INLINE float gated(float gate, float exponent, int dtype) {
  float x = bounded(exponent);
  /* 1.5 · 2^23 + 126: the sum's low bits are a whole number plus the bias of an exponent */
  float shifted = MULTIPLY_ADD(x, -1.44269504f, 12583038.0f);
  float whole = shifted - 12583038.0f;
  float rest = plus_ln2_times(whole, x, dtype);
  /* 2 exp(−rest): least largest relative error on |rest| < ½ ln 2. Doubled, since 2^128 is not a number. */
  float series = MULTIPLY_ADD(-1.65802884e-2f, rest, 8.3797704e-2f);
  series = MULTIPLY_ADD(series, rest, -3.3335288e-1f);
  series = MULTIPLY_ADD(series, rest, 9.9998286e-1f);
  series = MULTIPLY_ADD(series, rest, -1.9999994f);
  series = MULTIPLY_ADD(series, rest, 2.0f);
  float scale = float_of(bits_of(shifted) << 23); /* 2^(whole − 1) */
  return gate / MULTIPLY_ADD(series, scale, 1.0f);
}

struct gated_activation_call {
  const void *gate_up;
  void *out;
  int64_t rows, width, stride, dtype, activation, threads;
  double limit, alpha; /* limit: infinity for none */
};

INLINE float gated_product(float gate, float up, float limit, float alpha, int dtype, int activation, int has_limit) {
  if (has_limit) { /* comparisons, so that NaN stays */
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
  }
  float exponent = gate;
  if (activation == GELU_TANH) exponent = 1.5957691216f * (gate + 0.044715f * gate * gate * gate); /* 2 √(2/π) */
  if (activation == SILU_ALPHA) {
    exponent = alpha * gate;
    up += 1.0f;
  }
  return rounded_activation(gated(gate, exponent, dtype), dtype) * up;
}

/* As gated_product, of two bfloat16 numbers in one word: half the instructions that taking them apart needs. */
INLINE uint32_t gated_pair(uint32_t gates, uint32_t ups, float limit, float alpha, int activation, int has_limit) {
  float low = gated_product(float_of(gates << 16), float_of(ups << 16), limit, alpha, BFLOAT16, activation, has_limit);
  float high = gated_product(float_of(gates & 0xffff0000), float_of(ups & 0xffff0000), limit, alpha, BFLOAT16,
                             activation, has_limit);
  return nearest_bfloat16(low, 1) >> 16 | (nearest_bfloat16(high, 1) & 0xffff0000);
}

INLINE int hold_words(const void *one, const void *other, const void *third) {
  return ((uintptr_t)one | (uintptr_t)other | (uintptr_t)third) % 4 == 0;
}

INLINE void gated_rows(const struct gated_activation_call *c, int64_t first, int64_t end, int dtype, int activation,
                       int has_limit) {
  float limit = rounded((float)c->limit, dtype, 0), alpha = (float)c->alpha;
  int64_t width = c->width; /* c itself might change with every number that is written, as far as C knows */
  for (int64_t row = first; row < end; row++) {
    const void *gates = at(c->gate_up, row * c->stride, dtype), *ups = at(gates, width, dtype);
    void *restrict out = place(c->out, row * width, dtype);
    int64_t start = 0;
    if (dtype == BFLOAT16 && hold_words(gates, ups, out)) { /* then the width is even */
      const uint32_t *gate_words = gates, *up_words = ups;
      uint32_t *restrict out_words = out;
      for (int64_t pair = 0; pair < width / 2; pair++)
        out_words[pair] = gated_pair(gate_words[pair], up_words[pair], limit, alpha, activation, has_limit);
      start = width;
    }
    for (int64_t index = start; index < width; index++) {
      float gate = get(gates, index, dtype), up = get(ups, index, dtype);
      put(out, index, gated_product(gate, up, limit, alpha, dtype, activation, has_limit), dtype, 1);
    }
  }
}

INLINE void gated_by_kind(const struct gated_activation_call *c, int64_t first, int64_t end, int dtype) {
  int64_t kind = c->activation, has_limit = c->limit < INFINITY;
  if (kind == SILU && !has_limit) gated_rows(c, first, end, dtype, SILU, 0);
  else if (kind == SILU) gated_rows(c, first, end, dtype, SILU, 1);
  else if (kind == SILU_ALPHA) gated_rows(c, first, end, dtype, SILU_ALPHA, 1);
  else gated_rows(c, first, end, dtype, GELU_TANH, 1);
}

static void gated_activation_rows(const void *given, int64_t first, int64_t end) {
  const struct gated_activation_call *c = given;
  if (c->dtype == BFLOAT16) gated_by_kind(c, first, end, BFLOAT16);
  else if (c->dtype == FLOAT16) gated_by_kind(c, first, end, FLOAT16);
  else gated_by_kind(c, first, end, FLOAT32);
}

int native_gated_activation(const struct gated_activation_call *c) {
  for_rows(gated_activation_rows, c, c->rows, c->threads);
  return 0;
}
