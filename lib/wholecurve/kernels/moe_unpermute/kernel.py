"""The weighted sum in Triton: a program gathers the rows of its tokens, slot after slot."""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all
from wholecurve.kernels.moe_unpermute.spec import tile

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def moe_unpermute_kernel(
    y,  # [rows, hidden]
    inverse,  # [T, K] int32, contiguous
    weights,  # [T, K] fp32, contiguous
    out,  # [T, hidden], contiguous
    num_tokens,
    hidden,
    y_stride,
    TOP_K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program adds up BLOCK columns of ROWS tokens."""
    # 64 bits before the products: rows · hidden passes 2³¹ in a long prefill
    tokens = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = (tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    is_token, is_column = tokens < num_tokens, columns < hidden
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for slot in tl.static_range(TOP_K):
        rows = tl.load(inverse + (tokens * TOP_K + slot), mask=is_token, other=-1).to(tl.int64)
        # a slot without a row has the weight 0, whatever stands there
        share = tl.load(weights + (tokens * TOP_K + slot), mask=rows >= 0, other=0.0)
        values = tl.load(y + rows[:, None] * y_stride + columns, mask=(rows[:, None] >= 0) & is_column, other=0.0)
        total += share[:, None] * values.to(tl.float32)
    tl.store(
        out + tokens[:, None] * hidden + columns,
        total.to(out.dtype.element_ty),
        mask=is_token[:, None] & is_column,
    )


def launches(y, inverse, weights, config=None):
    """([launch], out) for arguments as in `wholecurve.kernels.moe_unpermute.moe_unpermute`."""
    (num_tokens, top_k), hidden = inverse.shape, y.shape[1]
    require(y.dtype in DTYPES, f"moe_unpermute: the Triton form takes {', '.join(map(str, DTYPES))}, y is {y.dtype}")
    require(y.stride(1) == 1 or hidden == 1, "moe_unpermute: last dimension of y is strided")
    require(inverse.is_contiguous(), "moe_unpermute: inverse must be contiguous")
    require(weights.is_contiguous(), "moe_unpermute: weights must be contiguous")
    out = torch.empty((num_tokens, hidden), dtype=y.dtype, device=y.device)
    rows, block, side_by_side = tile(hidden, **(config or {}))
    launch = Launch(
        moe_unpermute_kernel,
        (triton.cdiv(num_tokens, rows), side_by_side),
        (y, inverse, weights, out, num_tokens, hidden, y.stride(0)),
        dict(TOP_K=top_k, ROWS=rows, BLOCK=block, num_warps=4),
    )
    return [launch], out


def moe_unpermute_triton(y, inverse, weights, interpreted):
    """See `wholecurve.kernels.moe_unpermute.moe_unpermute`; interpreted: not on the GPU."""
    started, out = launches(y, inverse, weights)
    run_all(started, interpreted)
    return out
