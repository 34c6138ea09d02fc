"""The gate of Engram in Triton: norms, product, gate and sum of a stream in one pass."""

import math

import torch
import triton
import triton.language as tl

from wholecurve.kernels.engram_gate.spec import MAX_WIDTH, tile
from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def engram_gate_kernel(
    hidden,  # [T, S, D]
    keys,  # [T, S, D]
    value,  # [T, D]
    hidden_weight,  # [S, D]
    key_weight,  # [S, D]
    out,  # [T, S, D], contiguous
    num_tokens,
    width,
    hidden_stride_t,
    hidden_stride_s,
    keys_stride_t,
    keys_stride_s,
    value_stride,
    hidden_weight_stride,
    key_weight_stride,
    eps,
    score_scale,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program handles one stream of TOKENS tokens."""
    # 64 bits before the products: tokens · streams · width passes 2³¹ in long prefills
    tokens = (tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS))[:, None]
    stream, streams = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    columns = tl.arange(0, BLOCK)[None, :]
    in_row = columns < width
    inside = (tokens < num_tokens) & in_row
    h = tl.load(hidden + tokens * hidden_stride_t + stream * hidden_stride_s + columns, mask=inside, other=0.0)
    k = tl.load(keys + tokens * keys_stride_t + stream * keys_stride_s + columns, mask=inside, other=0.0)
    h, k = h.to(tl.float32), k.to(tl.float32)
    h_weight = tl.load(hidden_weight + stream * hidden_weight_stride + columns, mask=in_row, other=0.0).to(tl.float32)
    k_weight = tl.load(key_weight + stream * key_weight_stride + columns, mask=in_row, other=0.0).to(tl.float32)
    h_norm = tl.rsqrt(tl.sum(h * h, axis=1, keep_dims=True) / width + eps)
    k_norm = tl.rsqrt(tl.sum(k * k, axis=1, keep_dims=True) / width + eps)
    product = (h * h_norm * h_weight) * (k * k_norm * k_weight)
    score = tl.sum(product, axis=1, keep_dims=True) * score_scale
    root = tl.sqrt(tl.maximum(tl.abs(score), 1e-6))
    gate = tl.sigmoid(tl.where(score > 0, root, tl.where(score < 0, -root, score)))
    v = tl.load(value + tokens * value_stride + columns, mask=inside, other=0.0).to(tl.float32)
    places = (tokens * streams + stream) * width + columns
    tl.store(out + places, (h + gate * v).to(out.dtype.element_ty), mask=inside)


def launches(hidden, keys, value, hidden_weight, key_weight, eps, config=None):
    """([launch], out) for arguments as in `wholecurve.kernels.engram_gate.engram_gate`."""
    num_tokens, streams, width = hidden.shape
    require(
        hidden.dtype in DTYPES,
        f"engram_gate: the Triton form takes {', '.join(map(str, DTYPES))}, hidden is {hidden.dtype}",
    )
    require(width <= MAX_WIDTH, f"engram_gate: the Triton form takes streams up to {MAX_WIDTH}, hidden has {width}")
    out = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
    tokens, block, num_warps = tile(width, **(config or {}))
    launch = Launch(
        engram_gate_kernel,
        (triton.cdiv(num_tokens, tokens) if width else 0, streams),
        (
            *(hidden, keys, value, hidden_weight, key_weight, out, num_tokens, width),
            *(*hidden.stride()[:2], *keys.stride()[:2], value.stride(0), hidden_weight.stride(0), key_weight.stride(0)),
            *(eps, 1 / math.sqrt(max(1, width))),
        ),
        dict(TOKENS=tokens, BLOCK=block, num_warps=num_warps),
    )
    return [launch], out


def engram_gate_triton(hidden, keys, value, hidden_weight, key_weight, eps, interpreted):
    """See `wholecurve.kernels.engram_gate.engram_gate`; interpreted: not on the GPU."""
    started, out = launches(hidden, keys, value, hidden_weight, key_weight, eps)
    run_all(started, interpreted)
    return out
