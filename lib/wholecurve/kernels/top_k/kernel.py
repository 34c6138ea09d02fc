"""Top-k in Triton: a radix select by histograms, one digit after another from the top, then one pass that compacts.

The number of passes over a row is fixed, and no count depends on the order in which threads arrive.
"""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all
from wholecurve.kernels.top_k.spec import tile


@triton.jit
def load_keys(row_scores, columns, length):
    """Unsigned keys in the order of the scores: −0 as +0, NaN as +inf, −inf (and what is outside) the smallest."""
    inside = columns < length
    bits = tl.load(row_scores + columns.to(tl.int64), mask=inside, other=-float("inf")).to(tl.uint32, bitcast=True)
    bits = tl.where(bits == 0x80000000, 0, bits)
    bits = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7F800000, bits)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def top_k_kernel(
    scores,  # [T, S]
    lengths,  # [T], any pointer without HAS_LENGTHS
    out,  # [T, k], contiguous
    width,
    k,
    row_stride,
    HAS_LENGTHS: tl.constexpr,
    WHOLE: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program handles one row."""
    LOWEST: tl.constexpr = 0x007FFFFF  # the key of −inf
    row = tl.program_id(0).to(tl.int64)
    row_scores, row_out = scores + row * row_stride, out + row * k
    length = width
    if HAS_LENGTHS:
        length = tl.minimum(tl.load(lengths + row).to(tl.int32), width)
    lanes = tl.arange(0, BLOCK)
    if WHOLE:
        keys = load_keys(row_scores, lanes, length)

    # the key of the last score that is taken, digit by digit, and how many are `wanted` of those that begin like it;
    # where there are not as many no digit is found, and every key is larger than 0
    digits = tl.arange(0, 1 << BITS)
    last_key = tl.full([], 0, tl.uint32)
    wanted = k
    for step in tl.static_range(32 // BITS):
        counts = tl.zeros([1 << BITS], tl.int32)
        for first in tl.range(0, length, BLOCK, num_stages=STAGES):
            if not WHOLE:
                keys = load_keys(row_scores, first + lanes, length)
            counted = keys > LOWEST
            if step > 0:
                counted = counted & ((keys >> (32 - BITS * step)) == last_key)
            digit = ((keys >> (32 - BITS * (step + 1))) & ((1 << BITS) - 1)).to(tl.int32)
            counts += tl.histogram(digit, 1 << BITS, counted)
        total = tl.sum(counts)
        above = total - tl.cumsum(counts, 0)
        found = (above < wanted) & (above + counts >= wanted)
        wanted -= tl.sum(tl.where(found, above, 0))
        last_key = (last_key << BITS) | tl.sum(tl.where(found, digits, 0)).to(tl.uint32)

    larger_before, equal_before = 0, 0
    for first in tl.range(0, length, BLOCK, num_stages=STAGES):
        if not WHOLE:
            keys = load_keys(row_scores, first + lanes, length)
        larger, equal = (keys > last_key) & (keys > LOWEST), (keys == last_key) & (keys > LOWEST)
        # two counts in one scan: a block has less than 2¹⁵ of each
        ones = larger.to(tl.int32) + (equal.to(tl.int32) << 16)
        before = tl.cumsum(ones, 0) - ones
        larger_so_far, equal_so_far = larger_before + (before & 0xFFFF), equal_before + (before >> 16)
        taken = larger | (equal & (equal_so_far < wanted))
        place = larger_so_far + tl.minimum(equal_so_far, wanted)
        tl.store(row_out + place.to(tl.int64), first + lanes, mask=taken)
        in_block = tl.sum(ones)
        larger_before += in_block & 0xFFFF
        equal_before += in_block >> 16
    num_taken = larger_before + tl.minimum(equal_before, wanted)
    for first in range(0, k, BLOCK):
        places = first + lanes
        tl.store(row_out + places.to(tl.int64), -1, mask=(places >= num_taken) & (places < k))


def launches(scores, k, lengths=None, config=None):
    """([launch], out) for arguments as in `wholecurve.kernels.top_k.top_k`."""
    num_rows, width = scores.shape
    require(lengths is None or lengths.is_contiguous(), "top_k: lengths must be contiguous")
    out = torch.empty((num_rows, k), dtype=torch.int32, device=scores.device)
    bits, block, num_warps, stages = tile(width, **(config or {}))
    launch = Launch(
        top_k_kernel,
        (num_rows,),
        (scores, scores if lengths is None else lengths, out, width, k, scores.stride(0)),
        dict(
            HAS_LENGTHS=lengths is not None,
            WHOLE=width <= block,
            BITS=bits,
            BLOCK=block,
            STAGES=stages,
            num_warps=num_warps,
        ),
    )
    return [launch], out


def top_k_triton(scores, k, lengths, interpreted):
    """See `wholecurve.kernels.top_k.top_k`; interpreted: not on the GPU."""
    started, out = launches(scores, k, lengths)
    run_all(started, interpreted)
    return out
