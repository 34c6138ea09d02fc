"""Norm and rotation of q and k heads in Triton: one read and one write of each head."""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all
from wholecurve.kernels.rope.kernel import load_angles, load_pairs, require_tables, store_pairs
from wholecurve.kernels.rope.spec import tile


@triton.jit
def weighed(normed, scale, DTYPE: tl.constexpr, HAS_WEIGHT: tl.constexpr, GEMMA: tl.constexpr):
    """The normalised values times their weight, rounded to DTYPE as `rms_norm` does, in fp32."""
    if HAS_WEIGHT:
        if GEMMA:
            normed = normed * (1.0 + scale)
        else:
            normed = normed.to(DTYPE).to(tl.float32) * scale
    return normed.to(DTYPE).to(tl.float32)


@triton.jit
def norm_and_turn(
    x,  # [T, heads, HEAD_DIM], last dimension contiguous
    weight,  # [HEAD_DIM], any pointer without HAS_WEIGHT
    out,  # [T, heads, HEAD_DIM], contiguous
    token,
    block,
    heads,
    x_stride_t,
    x_stride_h,
    eps,
    cosine,
    sine,
    HAS_WEIGHT: tl.constexpr,
    GEMMA: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    OFFSET: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """Normalise and rotate BLOCK_HEADS heads of one token, those of block `block`."""
    DTYPE: tl.constexpr = out.dtype.element_ty
    head = (block.to(tl.int64) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS))[:, None]
    inside = head < heads
    source, target = token * x_stride_t + head * x_stride_h, (token * heads + head) * HEAD_DIM
    first, second = load_pairs(x, source + OFFSET, inside, PAIRS, INTERLEAVED, BLOCK_HEADS, BLOCK_PAIRS)
    squares = tl.sum(first * first, axis=1, keep_dims=True) + tl.sum(second * second, axis=1, keep_dims=True)
    if BLOCK_REST:
        rest = tl.arange(0, BLOCK_REST)[None, :]
        channel = tl.where(rest < OFFSET, rest, rest + 2 * PAIRS).to(tl.int64)
        mask = inside & (channel < HEAD_DIM)
        other = tl.load(x + source + channel, mask=mask, other=0.0).to(tl.float32)
        squares += tl.sum(other * other, axis=1, keep_dims=True)
    factor = tl.rsqrt(squares / HEAD_DIM + eps)
    first_scale, second_scale = cosine, sine  # of the right shape; not used without a weight
    if HAS_WEIGHT:
        start, there = tl.full((1, 1), OFFSET, tl.int64), tl.full((1, 1), 1, tl.int1)
        first_scale, second_scale = load_pairs(weight, start, there, PAIRS, INTERLEAVED, 1, BLOCK_PAIRS)
    first = weighed(first * factor, first_scale, DTYPE, HAS_WEIGHT, GEMMA)
    second = weighed(second * factor, second_scale, DTYPE, HAS_WEIGHT, GEMMA)
    turned, turned_second = first * cosine - second * sine, second * cosine + first * sine
    store_pairs(out, target + OFFSET, inside, turned, turned_second, PAIRS, INTERLEAVED, BLOCK_HEADS, BLOCK_PAIRS)
    if BLOCK_REST:
        scale = other
        if HAS_WEIGHT:
            scale = tl.load(weight + channel, mask=channel < HEAD_DIM, other=0.0).to(tl.float32)
        other = weighed(other * factor, scale, DTYPE, HAS_WEIGHT, GEMMA)
        tl.store(out + target + channel, other.to(DTYPE), mask=mask)


@triton.jit
def qk_norm_rope_kernel(
    q,  # [T, num_heads, HEAD_DIM], last dimension contiguous
    k,  # [T, num_kv_heads, HEAD_DIM], last dimension contiguous
    q_weight,  # [HEAD_DIM], any pointer without HAS_Q_WEIGHT
    k_weight,  # [HEAD_DIM], any pointer without HAS_K_WEIGHT
    positions,  # [T]
    cos,  # [max_position, PAIRS], last dimension contiguous
    sin,  # [max_position, PAIRS], last dimension contiguous
    q_out,  # [T, num_heads, HEAD_DIM], contiguous
    k_out,  # [T, num_kv_heads, HEAD_DIM], contiguous
    num_heads,
    num_kv_heads,
    q_blocks,
    max_position,
    q_stride_t,
    q_stride_h,
    k_stride_t,
    k_stride_h,
    cos_stride,
    sin_stride,
    eps,
    HAS_Q_WEIGHT: tl.constexpr,
    HAS_K_WEIGHT: tl.constexpr,
    GEMMA: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    OFFSET: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """One program handles BLOCK_HEADS heads of one token: of q in its first q_blocks programs, of k in the others."""
    # 64 bits before the products: tokens · heads · head size passes 2³¹, and so may a position times its stride
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + token).to(tl.int64)
    known = (position >= 0) & (position < max_position)
    cosine = load_angles(cos, position * cos_stride, known, PAIRS, BLOCK_PAIRS)
    sine = load_angles(sin, position * sin_stride, known, PAIRS, BLOCK_PAIRS)
    # fmt: off
    if block < q_blocks:
        norm_and_turn(
            q, q_weight, q_out, token, block, num_heads, q_stride_t, q_stride_h, eps, cosine, sine,
            HAS_Q_WEIGHT, GEMMA, HEAD_DIM, PAIRS, OFFSET, INTERLEAVED, BLOCK_HEADS, BLOCK_PAIRS, BLOCK_REST,
        )
    else:
        norm_and_turn(
            k, k_weight, k_out, token, block - q_blocks, num_kv_heads, k_stride_t, k_stride_h, eps, cosine, sine,
            HAS_K_WEIGHT, GEMMA, HEAD_DIM, PAIRS, OFFSET, INTERLEAVED, BLOCK_HEADS, BLOCK_PAIRS, BLOCK_REST,
        )
    # fmt: on


def launches(q, k, q_weight, k_weight, eps, positions, cos, sin, style="llama", layout="half", offset=0, config=None):
    """([launch], (q, k)) for arguments as in `wholecurve.kernels.qk_norm_rope.qk_norm_rope`."""
    (num_tokens, num_heads, head_dim), num_kv_heads, pairs = q.shape, k.shape[1], cos.shape[1]
    require_tables("qk_norm_rope", q, positions, cos, sin)
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        require(weight is None or weight.is_contiguous(), f"qk_norm_rope: {name} must be contiguous")
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    block_heads, block_pairs, block_rest, num_warps = tile(num_heads, head_dim, pairs, **(config or {}))
    q_blocks, k_blocks = triton.cdiv(num_heads, block_heads), triton.cdiv(num_kv_heads, block_heads)
    launch = Launch(
        qk_norm_rope_kernel,
        (num_tokens, q_blocks + k_blocks),
        (
            *(q, k, q if q_weight is None else q_weight, k if k_weight is None else k_weight),
            *(positions, cos, sin, q_out, k_out, num_heads, num_kv_heads, q_blocks, len(cos)),
            *(*q.stride()[:2], *k.stride()[:2], cos.stride(0), sin.stride(0), eps),
        ),
        dict(
            HAS_Q_WEIGHT=q_weight is not None,
            HAS_K_WEIGHT=k_weight is not None,
            GEMMA=style == "gemma",
            HEAD_DIM=head_dim,
            PAIRS=pairs,
            OFFSET=offset,
            INTERLEAVED=layout == "interleaved",
            BLOCK_HEADS=block_heads,
            BLOCK_PAIRS=block_pairs,
            BLOCK_REST=block_rest,
            num_warps=num_warps,
        ),
    )
    return [launch], (q_out, k_out)


def qk_norm_rope_triton(q, k, q_weight, k_weight, eps, positions, cos, sin, style, layout, offset, interpreted):
    """See `wholecurve.kernels.qk_norm_rope.qk_norm_rope`; interpreted: not on the GPU."""
    started, outputs = launches(q, k, q_weight, k_weight, eps, positions, cos, sin, style, layout, offset)
    run_all(started, interpreted)
    return outputs
