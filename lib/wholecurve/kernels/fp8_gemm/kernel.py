"""The block-scaled fp8 product in Triton: matrix units sum 128 products, registers sum the scaled rest in float32.

A tensor core of Hopper adds fp8 products with about 14 bits (DeepSeek-V3 report, section 3.3.2), so nothing longer
than a block of 128 stays in its accumulator: each `tl.dot` starts from zero and ends in a float32 sum.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from wholecurve.kernels.forms import require
from wholecurve.kernels.fp8_gemm.spec import BLOCK, CONFIGS, DEFAULT, WITHOUT_TMA
from wholecurve.kernels.launch import Launch, run_all
from wholecurve.kernels.tma import describable, has_tma

GROUP_M = 8  # tiles below each other that run together, so that they share their rows of b in the cache


@triton.jit
def fp8_gemm_kernel(
    a,  # [T, K'] float8_e4m3fn: a pointer, or with TMA a descriptor of tiles [BLOCK_M, BLOCK_K]
    b,  # [N, K'] float8_e4m3fn: a pointer, or with TMA a descriptor of tiles [BLOCK_N, BLOCK_K]
    a_scales,  # [T, ⌈K' / BLOCK_K⌉] fp32
    b_scales,  # [⌈N / BLOCK_K⌉, ⌈K' / BLOCK_K⌉] fp32
    out,  # [T, N], contiguous
    num_tokens,
    out_features,
    in_features,
    a_stride,
    b_stride,
    a_scales_stride_t,
    a_scales_stride_k,
    b_scales_stride_n,
    b_scales_stride_k,
    TMA: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """One program handles one tile of BLOCK_M tokens and BLOCK_N out_features, over all of in_features."""
    tiles_m, tiles_n = tl.cdiv(num_tokens, BLOCK_M), tl.cdiv(out_features, BLOCK_N)
    group, place = tl.program_id(0) // (GROUP_M * tiles_n), tl.program_id(0) % (GROUP_M * tiles_n)
    height = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    tile_m, tile_n = group * GROUP_M + place % height, place // height
    # 64 bits before the products: weights and long prefills pass 2³¹ elements
    rows = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_inside, column_inside = rows < num_tokens, columns < out_features
    lanes = tl.arange(0, BLOCK_K)
    b_scale_row = b_scales + tile_n.to(tl.int64) * BLOCK_N // BLOCK_K * b_scales_stride_n
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for block in range(0, tl.cdiv(in_features, BLOCK_K)):
        wide_block = tl.cast(block, tl.int64)
        if TMA:
            left = a.load([tile_m * BLOCK_M, block * BLOCK_K])
            right = b.load([tile_n * BLOCK_N, block * BLOCK_K])
        else:
            inside = lanes < in_features - block * BLOCK_K
            left = tl.load(
                a + rows[:, None] * a_stride + (wide_block * BLOCK_K + lanes)[None, :],
                mask=row_inside[:, None] & inside[None, :],
                other=0.0,
            )
            right = tl.load(
                b + columns[:, None] * b_stride + (wide_block * BLOCK_K + lanes)[None, :],
                mask=column_inside[:, None] & inside[None, :],
                other=0.0,
            )
        row_scales = tl.load(
            a_scales + rows * a_scales_stride_t + wide_block * a_scales_stride_k, mask=row_inside, other=0.0
        )
        scales = row_scales * tl.load(b_scale_row + wide_block * b_scales_stride_k)
        acc += tl.dot(left, tl.trans(right)) * scales[:, None]
    tl.store(
        out + rows[:, None] * out_features + columns[None, :],
        acc.to(out.dtype.element_ty),
        mask=row_inside[:, None] & column_inside[None, :],
    )


def launches(a, a_scales, b, b_scales, out_dtype=torch.bfloat16, config=None):
    """([launch], out) for arguments as in `wholecurve.kernels.fp8_gemm.fp8_gemm`."""
    (num_tokens, in_features), out_features = a.shape, b.shape[0]
    if config is None:
        config = CONFIGS[DEFAULT if has_tma(a.device) and describable(a) and describable(b) else WITHOUT_TMA]
    block_m, block_n, tma = config["block_m"], config["block_n"], config["tma"]
    require(
        not tma or (describable(a) and describable(b)),
        "fp8_gemm: a plan with tensor descriptors needs rows of a and b at multiples of 16 bytes, "
        f"they have strides {a.stride()} and {b.stride()}",
    )
    out = torch.empty(num_tokens, out_features, dtype=out_dtype, device=a.device)
    left, right = a, b
    if tma:
        left = TensorDescriptor.from_tensor(a, [block_m, BLOCK])
        right = TensorDescriptor.from_tensor(b, [block_n, BLOCK])
    launch = Launch(
        fp8_gemm_kernel,
        (triton.cdiv(num_tokens, block_m) * triton.cdiv(out_features, block_n),),
        (
            *(left, right, a_scales, b_scales, out, num_tokens, out_features, in_features),
            *(a.stride(0), b.stride(0), *a_scales.stride(), *b_scales.stride()),
        ),
        dict(
            TMA=tma,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=BLOCK,
            GROUP_M=GROUP_M,
            num_warps=config["num_warps"],
            num_stages=config["num_stages"],
        ),
    )
    return [launch], out


def fp8_gemm_triton(a, a_scales, b, b_scales, out_dtype, plan, interpreted):
    """See `wholecurve.kernels.fp8_gemm.fp8_gemm`; interpreted: not on the GPU."""
    started, out = launches(a, a_scales, b, b_scales, out_dtype, plan)
    run_all(started, interpreted)
    return out
