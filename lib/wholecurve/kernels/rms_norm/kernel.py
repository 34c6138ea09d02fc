"""RMSNorm in Triton: whole rows in registers, several short rows per program."""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all
from wholecurve.kernels.rms_norm.spec import MAX_HIDDEN, tile

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def rms_norm_kernel(
    x,  # [T, hidden]
    weight,  # [hidden], any pointer without HAS_WEIGHT
    residual,  # [T, hidden], any pointer without HAS_RESIDUAL
    out,  # [T, hidden], contiguous
    new_residual,  # [T, hidden], contiguous, any pointer without HAS_RESIDUAL
    num_tokens,
    hidden,
    x_stride,
    residual_stride,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    GEMMA: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program handles ROWS whole rows."""
    # 64 bits before the product: tokens · width passes 2³¹ in long prefills
    rows = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows < num_tokens) & (columns < hidden)
    values = tl.load(x + rows * x_stride + columns, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        other = tl.load(residual + rows * residual_stride + columns, mask=inside, other=0.0)
        values = (values.to(tl.float32) + other.to(tl.float32)).to(values.dtype)
        tl.store(new_residual + rows * hidden + columns, values, mask=inside)
    wide = values.to(tl.float32)
    mean_square = tl.sum(wide * wide, axis=1, keep_dims=True) / hidden
    normed = wide * tl.rsqrt(mean_square + eps)
    if HAS_WEIGHT:
        scale = tl.load(weight + columns, mask=columns < hidden, other=0.0).to(tl.float32)
        if GEMMA:
            normed = normed * (1.0 + scale)
        else:
            normed = normed.to(values.dtype).to(tl.float32) * scale
    tl.store(out + rows * hidden + columns, normed.to(values.dtype), mask=inside)


def launches(x, weight, eps, residual=None, style="llama", config=None):
    """([launch], out or (out, new residual)) for arguments as in `wholecurve.kernels.rms_norm.rms_norm`."""
    num_tokens, hidden = x.shape
    require(x.dtype in DTYPES, f"rms_norm: the Triton form takes {', '.join(map(str, DTYPES))}, x is {x.dtype}")
    require(hidden <= MAX_HIDDEN, f"rms_norm: the Triton form takes rows up to {MAX_HIDDEN}, x has {hidden}")
    require(weight is None or weight.is_contiguous(), "rms_norm: weight must be contiguous")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    new_residual = None if residual is None else torch.empty_like(out)
    rows, block, num_warps = tile(hidden, **(config or {}))
    launch = Launch(
        rms_norm_kernel,
        (triton.cdiv(num_tokens, rows) if hidden else 0,),
        (
            *(x, x if weight is None else weight, x if residual is None else residual),
            *(out, out if residual is None else new_residual),
            *(num_tokens, hidden, x.stride(0), 0 if residual is None else residual.stride(0), eps),
        ),
        dict(
            HAS_RESIDUAL=residual is not None,
            HAS_WEIGHT=weight is not None,
            GEMMA=style == "gemma",
            ROWS=rows,
            BLOCK=block,
            num_warps=num_warps,
        ),
    )
    return [launch], out if residual is None else (out, new_residual)


def rms_norm_triton(x, weight, eps, residual, style, interpreted):
    """See `wholecurve.kernels.rms_norm.rms_norm`; interpreted: not on the GPU."""
    started, outputs = launches(x, weight, eps, residual, style)
    run_all(started, interpreted)
    return outputs
