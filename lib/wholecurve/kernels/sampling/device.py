"""Device functions that sampling and verification share: random words, penalised logits, weights, ordered keys."""

import math

import triton
import triton.language as tl

LOG2_E = tl.constexpr(math.log2(math.e))
# below float32's smallest normal number, which a GPU may flush to 0, a temperature is greedy
TINY = tl.constexpr(2.0**-126)
NEVER = tl.constexpr(2**31 - 1)
LOWEST_KEY = tl.constexpr(-0x7F800001)  # of −inf
INFINITY_KEY = tl.constexpr(0x7F800000)  # of +inf


@triton.jit
def random_words(seed, step, STREAM: tl.constexpr):
    """`philox` of philox.py: four uint32 words of each int64 step."""
    low, high = step.to(tl.uint32), (step >> 32).to(tl.uint32)
    return tl.philox(seed, low, high, low * 0 + STREAM, low * 0)


@triton.jit
def uniform(high, low):
    """`uniform` of philox.py: float64 in [0, 1) from two words."""
    return (high.to(tl.float64) * 2097152.0 + (low >> 11).to(tl.float64)) * 1.1102230246251565e-16


@triton.jit
def load_logits(
    logits,  # [rows, V]
    counts,  # [rows, V] integers, any pointer without HAS_PENALTIES
    penalties,  # [rows, 3] fp32, any pointer without HAS_PENALTIES
    row,
    start,
    vocab,
    row_stride,
    count_stride,
    HAS_PENALTIES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """(token ids from `start` on, their logits, their penalised logits), fp32; −inf past the vocabulary and for NaN."""
    lanes = tl.arange(0, CHUNK)
    ids = start.to(tl.int32) + lanes  # places in one row, where 64 bits would only take registers
    inside = ids < vocab
    raw = tl.load(logits + (row * row_stride + start) + lanes, mask=inside, other=-float("inf")).to(tl.float32)
    raw = tl.where(raw == raw, raw, -float("inf"))
    values = raw
    if HAS_PENALTIES:
        repetition = tl.load(penalties + row * 3)
        presence = tl.load(penalties + row * 3 + 1)
        frequency = tl.load(penalties + row * 3 + 2)
        counted = tl.where((repetition != 1.0) | (presence != 0.0) | (frequency != 0.0), vocab, 0)
        count = tl.load(counts + (row * count_stride + start) + lanes, mask=ids < counted, other=0).to(tl.int32)
        repeated = tl.where(raw > 0, raw / repetition, raw * repetition)
        generated = count >> 1  # the lowest bit is the prompt's
        subtracted = frequency * generated.to(tl.float32) + tl.where(generated > 0, presence, 0.0)
        values = tl.where(count > 0, repeated, raw) - subtracted
    return ids, raw, values


@triton.jit
def weights_of(values, top, scale):
    """2^((values − top) · scale), the softmax without its denominator: 1 at the top, also at +inf, and 0 for −inf."""
    finite_top = tl.where(top == -float("inf"), 0.0, top)
    weights = tl.where(values == top, 1.0, tl.exp2((values - finite_top) * scale))
    return tl.where(values > -float("inf"), weights, 0.0)


@triton.jit
def scale_of(temperature):
    """Of logits to exponents of 2; any finite number for a greedy row, which has no use for weights."""
    return LOG2_E / tl.where(temperature >= TINY, temperature, 1.0)


@triton.jit
def kept(values, ids, threshold, last):
    """Whether tokens pass the row's filter: above the threshold, or at it and not after the last such token."""
    return (values > threshold) | ((values == threshold) & (ids <= last))


@triton.jit
def value_of(key, LOW: tl.constexpr):
    """The float32 number at an unsigned 32-bit key (int64), whose order is that of the numbers. Keys below −inf give
    −inf and those above +inf give NaN. The LOW lowest bits are 0, as in every number that was bfloat16 or float16.
    """
    # NaN is what no number reaches
    ordered = tl.minimum(tl.maximum(key - 2147483648, LOWEST_KEY), INFINITY_KEY + (1 << LOW))
    bits = tl.where(ordered >= 0, ordered, ordered ^ 0x7FFFFFFF)
    return (bits & -(1 << LOW)).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def row_top(tops, row, chunks, BLOCK_CHUNKS: tl.constexpr):
    """The largest value of a row, from those of its chunks, tops [rows, chunks]."""
    lanes = tl.arange(0, BLOCK_CHUNKS)
    return tl.max(tl.load(tops + row * chunks + lanes, mask=lanes < chunks, other=-float("inf")), axis=0)


@triton.jit
def drawn(weights, ids, target):
    """The first token at which the running sum of the weights passes the target; the last one with a weight where
    rounding lets none pass it, −1 where no token has a weight.
    """
    has_weight = weights > 0
    passed = has_weight & (tl.cumsum(weights, axis=0) > target)
    first = tl.min(tl.where(passed, ids, NEVER), axis=0)
    return tl.where(first == NEVER, tl.max(tl.where(has_weight, ids, -1), axis=0), first)
