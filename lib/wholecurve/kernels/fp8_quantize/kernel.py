"""Block-wise fp8 quantisation in Triton: maximum, scale and quotients of a block without a second look at memory."""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.fp8_quantize.spec import tile
from wholecurve.kernels.launch import Launch, run_all

MAX_BLOCK = 16384


@triton.jit
def fp8_quantize_kernel(
    x,  # [M, K']
    q,  # [M, K'] float8_e4m3fn, contiguous
    scales,  # [⌈M / BLOCK_M⌉, ⌈K' / BLOCK_K⌉] fp32, contiguous
    num_rows,
    in_features,
    x_stride,
    POWER_OF_2: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One program handles BLOCKS blocks below each other, of BLOCK_M rows and BLOCK_K columns each."""
    # 64 bits before the products: rows · width passes 2³¹ in weights and long prefills
    blocks, column = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS), tl.program_id(1).to(tl.int64)
    rows = (blocks[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :])[:, :, None]
    columns = (column * BLOCK_K + tl.arange(0, BLOCK_K))[None, None, :]
    inside = (rows < num_rows) & (columns < in_features)
    # zeros outside x do not change a maximum of magnitudes
    values = tl.load(x + rows * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    # the maximum of a GPU skips NaN
    magnitude = tl.where(values == values, tl.abs(values), float("inf"))
    largest = tl.max(tl.max(magnitude, axis=2), axis=1)
    # rounded division, so that every form has the same bits; 2⁻¹²⁶ is the smallest normal number
    scale = tl.maximum(tl.div_rn(largest, 448.0), 1.1754943508222875e-38)
    if POWER_OF_2:
        # adding all mantissa bits carries into the exponent unless they are all 0
        scale = ((scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    quotients = tl.div_rn(values, tl.broadcast_to(scale[:, None, None], values.shape))
    tl.store(q + rows * in_features + columns, quotients.to(q.dtype.element_ty), mask=inside)
    tl.store(scales + blocks * tl.cdiv(in_features, BLOCK_K) + column, scale, mask=blocks < tl.cdiv(num_rows, BLOCK_M))


def launches(x, block=(1, 128), scale_format="float32", config=None):
    """([launch], (q, scales)) for arguments as in `wholecurve.kernels.fp8_quantize.fp8_quantize`."""
    (num_rows, in_features), (block_rows, block_columns) = x.shape, block
    require(
        block_rows * block_columns <= MAX_BLOCK,
        f"fp8_quantize: the Triton form takes blocks up to {MAX_BLOCK} elements, block is {tuple(block)}",
    )
    grid_of_blocks = (triton.cdiv(num_rows, block_rows), triton.cdiv(in_features, block_columns))
    q = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(grid_of_blocks, dtype=torch.float32, device=x.device)
    blocks, num_warps = tile(block, **(config or {}))
    launch = Launch(
        fp8_quantize_kernel,
        (triton.cdiv(grid_of_blocks[0], blocks), grid_of_blocks[1]),
        (x, q, scales, num_rows, in_features, x.stride(0)),
        dict(
            POWER_OF_2=scale_format == "ue8m0",
            BLOCKS=blocks,
            BLOCK_M=block_rows,
            BLOCK_K=block_columns,
            num_warps=num_warps,
        ),
    )
    return [launch], (q, scales)


def fp8_quantize_triton(x, block, scale_format, interpreted):
    """See `wholecurve.kernels.fp8_quantize.fp8_quantize`; interpreted: not on the GPU."""
    started, outputs = launches(x, block, scale_format)
    run_all(started, interpreted)
    return outputs
