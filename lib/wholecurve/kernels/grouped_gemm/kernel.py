"""The grouped product in Triton: one program per tile, which finds its expert in the offsets.

The grid follows from shapes alone, so nothing waits for the number of rows that each expert got. Expert e begins at
slot offsets[e] // BLOCK_M + e of row tiles: at least as many slots as tiles lie between two experts, and a program
finds the expert of its slot without a table. Slots without rows end at once.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from wholecurve.kernels.forms import require
from wholecurve.kernels.grouped_gemm.spec import SLOTS_TOGETHER, block_experts, num_slots, tile
from wholecurve.kernels.inputs import dtype_name
from wholecurve.kernels.launch import Launch, run_all
from wholecurve.kernels.tma import describable, has_tma

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def grouped_gemm_kernel(
    x,  # [rows, in_features], a descriptor with TMA
    weights,  # [E, out_features, in_features]; with TMA a descriptor of [E · out_features, in_features]
    offsets,  # [E + 1] int32, contiguous
    out,  # [rows, out_features], contiguous
    rows,
    out_features,
    in_features,
    x_stride,
    weights_stride_expert,
    weights_stride_row,
    slots,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SLOTS_TOGETHER: tl.constexpr,
    TMA: tl.constexpr,
):
    """One program computes BLOCK_M rows of one expert by BLOCK_N columns, or zeroes such a tile behind the last one."""
    # programs that run together share SLOTS_TOGETHER tiles of rows and few experts, whose weights stay in the cache
    column_tiles = tl.cdiv(out_features, BLOCK_N)
    program = tl.program_id(0)
    first_slot = program // (SLOTS_TOGETHER * column_tiles) * SLOTS_TOGETHER
    together = tl.minimum(slots - first_slot, SLOTS_TOGETHER)
    within = program % (SLOTS_TOGETHER * column_tiles)
    slot, column_tile = first_slot + within % together, within // together
    experts = tl.arange(0, BLOCK_E)
    starts = tl.load(offsets + experts, mask=experts <= NUM_EXPERTS, other=0)
    begun = (starts // BLOCK_M + experts <= slot) & (experts <= NUM_EXPERTS)
    expert = tl.sum(begun.to(tl.int32), axis=0) - 1  # NUM_EXPERTS stands for the rows behind the last one
    wide_expert = expert.to(tl.int64)  # before the products: experts · out_features · in_features passes 2³¹
    start = tl.load(offsets + wide_expert)
    end = tl.load(offsets + (wide_expert + 1), mask=expert < NUM_EXPERTS, other=rows)
    first_row = start + (slot - start // BLOCK_M - expert) * BLOCK_M
    if first_row >= end:
        return
    row = first_row.to(tl.int64) + tl.arange(0, BLOCK_M)
    column = column_tile.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    summed = tl.where(expert < NUM_EXPERTS, in_features, 0)
    if TMA:
        first_weight = expert * out_features + column_tile * BLOCK_N
        for first in range(0, summed, BLOCK_K):
            # rows of the next expert and columns of the next matrix come along; they are not stored
            acc = tl.dot(x.load([first_row, first]), weights.load([first_weight, first]).T, acc, input_precision="ieee")
    else:
        depth = tl.arange(0, BLOCK_K)
        x_rows = x + row[:, None] * x_stride + depth[None, :]
        matrix = weights + wide_expert * weights_stride_expert
        weight_columns = matrix + column[None, :] * weights_stride_row + depth[:, None]
        step = tl.full([], BLOCK_K, tl.int64)
        for first in range(0, summed, BLOCK_K):
            inside = depth < in_features - first
            left = tl.load(x_rows, mask=(row[:, None] < end) & inside[None, :], other=0.0)
            right = tl.load(weight_columns, mask=(column[None, :] < out_features) & inside[:, None], other=0.0)
            acc = tl.dot(left, right, acc, input_precision="ieee")
            x_rows += step
            weight_columns += step
    tl.store(
        out + row[:, None] * out_features + column[None, :],
        acc.to(out.dtype.element_ty),
        mask=(row[:, None] < end) & (column[None, :] < out_features),
    )


def launches(x, weights, offsets, config=None):
    """([launch], out) for arguments as in `wholecurve.kernels.grouped_gemm.grouped_gemm`.

    A config with "tma": True is refused with a ValueError where `fits_descriptors` says no.
    """
    (rows, in_features), (num_experts, out_features, _) = x.shape, weights.shape
    require(x.dtype in DTYPES, f"grouped_gemm: the Triton form takes {', '.join(map(str, DTYPES))}, x is {x.dtype}")
    for name, tensor in (("x", x), ("weights", weights)):
        require(tensor.stride(-1) == 1 or in_features == 1, f"grouped_gemm: last dimension of {name} is strided")
    require(offsets.is_contiguous(), "grouped_gemm: offsets must be contiguous")
    require(
        num_experts * out_features < 2**31,
        f"grouped_gemm: {num_experts} experts of {out_features} columns, their product must be below 2³¹",
    )
    block_m, block_n, block_k, num_warps, num_stages, tma = tile(dtype_name(x.dtype), **(config or {}))
    if tma is None:
        tma = has_tma(x.device) and fits_descriptors(x, weights)
    out = torch.empty((rows, out_features), dtype=x.dtype, device=x.device)
    slots = num_slots(rows, num_experts, block_m)
    operands = (x, weights)
    if tma:
        require(
            fits_descriptors(x, weights),
            "grouped_gemm: descriptors need 16-byte aligned rows, adjacent experts and at least one element",
        )
        operands = (
            TensorDescriptor.from_tensor(x, [block_m, block_k]),
            TensorDescriptor.from_tensor(weights.view(-1, in_features), [block_n, block_k]),
        )
    launch = Launch(
        grouped_gemm_kernel,
        (slots * triton.cdiv(out_features, block_n),),
        (
            *(*operands, offsets, out, rows, out_features, in_features),
            *(x.stride(0), weights.stride(0), weights.stride(1), slots),
        ),
        dict(
            NUM_EXPERTS=num_experts,
            BLOCK_E=block_experts(num_experts),
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            SLOTS_TOGETHER=SLOTS_TOGETHER,
            TMA=tma,
            num_warps=num_warps,
            num_stages=num_stages,
        ),
    )
    return [launch], out


def fits_descriptors(x, weights):
    """Whether tensor descriptors can describe both, with all experts as one matrix."""
    together = weights.stride(0) == weights.shape[1] * weights.stride(1)
    return describable(x) and describable(weights) and together


def grouped_gemm_triton(x, weights, offsets, interpreted):
    """See `wholecurve.kernels.grouped_gemm.grouped_gemm`; interpreted: not on the GPU."""
    started, out = launches(x, weights, offsets)
    run_all(started, interpreted)
    return out
