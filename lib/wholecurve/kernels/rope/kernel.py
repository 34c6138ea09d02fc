"""Rotary embedding in Triton: the angles of a token are read once for several heads."""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all
from wholecurve.kernels.rope.spec import tile

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def load_angles(table, row, known, PAIRS: tl.constexpr, BLOCK_PAIRS: tl.constexpr):
    """One row of a table [max_position, PAIRS] as fp32 [1, BLOCK_PAIRS]; NaN where `known` says there is none."""
    pair = tl.arange(0, BLOCK_PAIRS)[None, :]
    # a position outside the table reads nothing and cannot pass for a rotated token
    return tl.load(table + row + pair, mask=(pair < PAIRS) & known, other=float("nan")).to(tl.float32)


@triton.jit
def load_pairs(
    x,
    rows,
    inside,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
):
    """(first, second) channel of every pair of some rows that start at `rows`, each [BLOCK_ROWS, BLOCK_PAIRS] fp32."""
    if INTERLEAVED:
        channel = tl.arange(0, 2 * BLOCK_PAIRS)[None, :]
        both = tl.load(x + rows + channel, mask=inside & (channel < 2 * PAIRS), other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(both, (BLOCK_ROWS, BLOCK_PAIRS, 2)))
    else:
        pair = tl.arange(0, BLOCK_PAIRS)[None, :]
        mask = inside & (pair < PAIRS)
        first = tl.load(x + rows + pair, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(x + (rows + PAIRS) + pair, mask=mask, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def store_pairs(
    out,
    rows,
    inside,
    first,
    second,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
):
    """Where `load_pairs` loads from, rounded to the dtype of `out`."""
    if INTERLEAVED:
        channel = tl.arange(0, 2 * BLOCK_PAIRS)[None, :]
        both = tl.reshape(tl.join(first, second), (BLOCK_ROWS, 2 * BLOCK_PAIRS)).to(out.dtype.element_ty)
        tl.store(out + rows + channel, both, mask=inside & (channel < 2 * PAIRS))
    else:
        pair = tl.arange(0, BLOCK_PAIRS)[None, :]
        mask = inside & (pair < PAIRS)
        tl.store(out + rows + pair, first.to(out.dtype.element_ty), mask=mask)
        tl.store(out + (rows + PAIRS) + pair, second.to(out.dtype.element_ty), mask=mask)


@triton.jit
def rope_kernel(
    x,  # [T, heads, HEAD_DIM], last dimension contiguous
    positions,  # [T]
    cos,  # [max_position, PAIRS], last dimension contiguous
    sin,  # [max_position, PAIRS], last dimension contiguous
    out,  # [T, heads, HEAD_DIM], contiguous
    heads,
    max_position,
    x_stride_t,
    x_stride_h,
    cos_stride,
    sin_stride,
    HEAD_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    OFFSET: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    INVERSE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """One program handles BLOCK_HEADS heads of one token."""
    # 64 bits before the products: tokens · heads · head size passes 2³¹, and so may a position times its stride
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1).to(tl.int64) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS))[:, None]
    inside = head < heads
    source, target = token * x_stride_t + head * x_stride_h, (token * heads + head) * HEAD_DIM
    position = tl.load(positions + token).to(tl.int64)
    known = (position >= 0) & (position < max_position)
    cosine = load_angles(cos, position * cos_stride, known, PAIRS, BLOCK_PAIRS)
    sine = load_angles(sin, position * sin_stride, known, PAIRS, BLOCK_PAIRS)
    if INVERSE:
        sine = -sine
    first, second = load_pairs(x, source + OFFSET, inside, PAIRS, INTERLEAVED, BLOCK_HEADS, BLOCK_PAIRS)
    turned, turned_second = first * cosine - second * sine, second * cosine + first * sine
    store_pairs(out, target + OFFSET, inside, turned, turned_second, PAIRS, INTERLEAVED, BLOCK_HEADS, BLOCK_PAIRS)
    if BLOCK_REST:
        rest = tl.arange(0, BLOCK_REST)[None, :]
        channel = tl.where(rest < OFFSET, rest, rest + 2 * PAIRS).to(tl.int64)
        mask = inside & (channel < HEAD_DIM)
        tl.store(out + target + channel, tl.load(x + source + channel, mask=mask, other=0.0), mask=mask)


def launches(x, positions, cos, sin, layout="half", inverse=False, offset=0, config=None):
    """([launch], out) for arguments as in `wholecurve.kernels.rope.rope`."""
    num_tokens, heads, head_dim = x.shape
    pairs = cos.shape[1]
    require_tables("rope", x, positions, cos, sin)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block_heads, block_pairs, block_rest, num_warps = tile(heads, head_dim, pairs, **(config or {}))
    launch = Launch(
        rope_kernel,
        (num_tokens, triton.cdiv(heads, block_heads)),
        (
            *(x, positions, cos, sin, out, heads, len(cos)),
            *(x.stride(0), x.stride(1), cos.stride(0), sin.stride(0)),
        ),
        dict(
            HEAD_DIM=head_dim,
            PAIRS=pairs,
            OFFSET=offset,
            INTERLEAVED=layout == "interleaved",
            INVERSE=inverse,
            BLOCK_HEADS=block_heads,
            BLOCK_PAIRS=block_pairs,
            BLOCK_REST=block_rest,
            num_warps=num_warps,
        ),
    )
    return [launch], out


def require_tables(operation, x, positions, cos, sin):
    """ValueError for what a rotating Triton form does not take."""
    require(x.dtype in DTYPES, f"{operation}: the Triton form takes {', '.join(map(str, DTYPES))}, x is {x.dtype}")
    require(cos.dtype in DTYPES, f"{operation}: the Triton form takes no tables of {cos.dtype}")
    require(positions.is_contiguous(), f"{operation}: positions must be contiguous")
    for name, table in (("cos", cos), ("sin", sin)):
        require(table.stride(1) == 1 or table.shape[1] == 1, f"{operation}: last dimension of {name} is strided")


def rope_triton(x, positions, cos, sin, layout, inverse, offset, interpreted):
    """See `wholecurve.kernels.rope.rope`; interpreted: not on the GPU."""
    started, out = launches(x, positions, cos, sin, layout, inverse, offset)
    run_all(started, interpreted)
    return out
