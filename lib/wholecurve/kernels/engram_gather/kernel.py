"""The lookup of Engram in Triton: rows copied from a table on the GPU, or across the link from pinned host memory."""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.engram_gather.spec import tile
from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all

MAX_WIDTH = 16384


@triton.jit
def engram_gather_kernel(
    table,  # [num_rows, width], on the GPU or in pinned host memory
    rows,  # [asked], contiguous
    scales,  # [num_rows, num_groups] fp32, or uint8 exponents with EXPONENTS; any pointer without HAS_SCALES
    out,  # [asked, width], contiguous
    asked,
    num_rows,
    width,
    num_groups,
    group_width,
    table_stride,
    HAS_SCALES: tl.constexpr,
    EXPONENTS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One program handles ROWS of the rows that are asked for, whole."""
    # 64 bits before the products: tables and results pass 2³¹ elements
    places = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    asked_for = places < asked
    picked = tl.load(rows + places, mask=asked_for, other=-1)
    exists = (picked >= 0) & (picked < num_rows)
    groups, lanes = tl.arange(0, GROUPS), tl.arange(0, GROUP)
    columns = (groups.to(tl.int64)[:, None] * group_width + lanes[None, :])[None, :, :]
    in_group = (groups < num_groups)[None, :, None] & (lanes < group_width)[None, None, :]
    values = tl.load(
        table + picked[:, None, None] * table_stride + columns, mask=exists[:, None, None] & in_group, other=0.0
    )
    if HAS_SCALES:
        factors = tl.load(
            scales + picked[:, None] * num_groups + groups[None, :],
            mask=exists[:, None] & (groups < num_groups)[None, :],
            other=0,
        )
        if EXPONENTS:
            # 2^(e − 127) is the float32 with that exponent; e = 0 is half the smallest normal one, 255 means NaN
            bits = tl.where(factors == 0, 0x400000, factors.to(tl.int32) << 23)
            factors = tl.where(factors == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)
        values = values.to(tl.float32) * factors[:, :, None]
    tl.store(
        out + places[:, None, None] * width + columns,
        values.to(out.dtype.element_ty),
        mask=asked_for[:, None, None] & in_group,
    )


def launches(table, rows, scales=None, out_dtype=None, config=None):
    """([launch], out) for arguments as in `wholecurve.kernels.engram_gather.engram_gather`."""
    width, asked = table.shape[1], rows.numel()
    require(width <= MAX_WIDTH, f"engram_gather: the Triton form takes rows up to {MAX_WIDTH}, the table has {width}")
    require(rows.is_contiguous(), "engram_gather: rows must be contiguous")
    require(scales is None or scales.is_contiguous(), "engram_gather: scales must be contiguous")
    for name, tensor in (("table", table), ("scales", scales)):
        require(
            tensor is None or tensor.device == rows.device or tensor.is_pinned(),
            f"engram_gather: {name} must be on {rows.device} or in pinned host memory",
        )
    if out_dtype is None:
        out_dtype = table.dtype if scales is None else torch.bfloat16
    out = torch.empty(rows.shape[0], rows.shape[1] * width, dtype=out_dtype, device=rows.device)
    num_groups = 1 if scales is None else scales.shape[1]
    exponents = scales is not None and scales.dtype == torch.float8_e8m0fnu
    block_rows, block_groups, block_group = tile(width, None if scales is None else num_groups, **(config or {}))
    launch = Launch(
        engram_gather_kernel,
        (triton.cdiv(asked, block_rows) if width else 0,),
        (
            *(table, rows, table if scales is None else scales.view(torch.uint8) if exponents else scales, out),
            *(asked, table.shape[0], width, num_groups, width // max(1, num_groups), table.stride(0)),
        ),
        dict(
            HAS_SCALES=scales is not None,
            EXPONENTS=exponents,
            ROWS=block_rows,
            GROUPS=block_groups,
            GROUP=block_group,
            num_warps=4,
        ),
    )
    return [launch], out


def engram_gather_triton(table, rows, scales, out_dtype, interpreted):
    """See `wholecurve.kernels.engram_gather.engram_gather`; interpreted: not on the GPU."""
    started, out = launches(table, rows, scales, out_dtype)
    run_all(started, interpreted)
    return out
