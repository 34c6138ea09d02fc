"""The permutation in Triton: a stable counting sort of the slots, then a copy of the rows.

Every position comes from whole numbers that are counted in a fixed order, so it does not depend on which program is
first, and nothing waits for the host.
"""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all
from wholecurve.kernels.moe_permute.spec import COUNTED, copy_tile, slots_per_program

COUNTS_OF_A_STEP = 2048  # counts that a placing program adds up at once


@triton.jit
def bins_of(experts, slots, num_slots, first_expert, NUM_EXPERTS: tl.constexpr):
    """The local expert of each slot; NUM_EXPERTS for one that is dropped and for one behind the last."""
    expert = tl.load(experts + slots, mask=slots < num_slots, other=-1).to(tl.int64) - first_expert
    here = (slots < num_slots) & (expert >= 0) & (expert < NUM_EXPERTS)
    return tl.where(here, expert, NUM_EXPERTS).to(tl.int32)


@triton.jit
def count_kernel(
    experts,  # [T, K], contiguous
    counts,  # [programs, E + 1] int32, contiguous
    num_slots,
    first_expert,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_BINS: tl.constexpr,
    BLOCK_SLOTS: tl.constexpr,
):
    """One program counts the experts of BLOCK_SLOTS slots, the dropped ones last."""
    program = tl.program_id(0).to(tl.int64)
    slots = program * BLOCK_SLOTS + tl.arange(0, BLOCK_SLOTS)
    found = bins_of(experts, slots, num_slots, first_expert, NUM_EXPERTS)
    # what lies behind the last slot counts as dropped, behind which nothing is placed
    histogram = tl.histogram(found, BLOCK_BINS)
    bins = tl.arange(0, BLOCK_BINS)
    tl.store(counts + program * (NUM_EXPERTS + 1) + bins, histogram, mask=bins <= NUM_EXPERTS)


@triton.jit
def place_kernel(
    experts,  # [T, K], contiguous
    counts,  # [programs, E + 1] int32, contiguous
    offsets,  # [E + 1] int32, contiguous
    order,  # [T·K] int32, contiguous
    inverse,  # [T, K] int32, contiguous
    num_slots,
    first_expert,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_BINS: tl.constexpr,
    BLOCK_SLOTS: tl.constexpr,
    BLOCK_PROGRAMS: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """One program places BLOCK_SLOTS slots; the first one also writes the offsets."""
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    bins = tl.arange(0, BLOCK_BINS)
    total, before = tl.zeros([BLOCK_BINS], tl.int32), tl.zeros([BLOCK_BINS], tl.int32)
    for first in range(0, programs, BLOCK_PROGRAMS):
        others = (first + tl.arange(0, BLOCK_PROGRAMS)).to(tl.int64)[:, None]
        step = tl.load(
            counts + others * (NUM_EXPERTS + 1) + bins[None, :],
            mask=(others < programs) & (bins[None, :] <= NUM_EXPERTS),
            other=0,
        )
        total += tl.sum(step, axis=0)
        before += tl.sum(tl.where(others < program, step, 0), axis=0)
    starts = tl.cumsum(total, axis=0) - total
    tl.store(offsets + bins, starts, mask=(bins <= NUM_EXPERTS) & (program == 0))
    lanes = tl.arange(0, BLOCK_SLOTS)
    slots = program * BLOCK_SLOTS + lanes
    own = bins_of(experts, slots, num_slots, first_expert, NUM_EXPERTS)
    earlier = tl.zeros([BLOCK_SLOTS], tl.int32)  # slots of the same expert before a slot, in this program
    for first in range(0, BLOCK_SLOTS, COUNTED):
        compared = first + tl.arange(0, COUNTED)
        others = bins_of(experts, program * BLOCK_SLOTS + compared, num_slots, first_expert, NUM_EXPERTS)
        same = (own[:, None] == others[None, :]) & (compared[None, :] < lanes[:, None])
        earlier += tl.sum(same.to(tl.int32), axis=1)
    rows = tl.gather(starts + before, own, axis=0) + earlier
    kept = own < NUM_EXPERTS
    # the dropped have rows too, behind the others, so that all of `order` is written
    tl.store(order + rows.to(tl.int64), tl.where(kept, slots, -1).to(tl.int32), mask=slots < num_slots)
    tl.store(inverse + slots, tl.where(kept, rows, -1), mask=slots < num_slots)


@triton.jit
def copy_kernel(
    x,  # [T, hidden]
    order,  # [T·K] int32, contiguous
    permuted,  # [T·K, hidden], contiguous
    num_slots,
    hidden,
    x_stride,
    TOP_K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program writes BLOCK columns of ROWS permuted rows."""
    # 64 bits before the products: slots · hidden passes 2³¹ in a long prefill
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slots = tl.load(order + rows, mask=rows < num_slots, other=-1)[:, None]
    rows = rows[:, None]
    columns = (tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (rows < num_slots) & (columns < hidden)
    tokens = (slots // TOP_K).to(tl.int64)
    values = tl.load(x + tokens * x_stride + columns, mask=inside & (slots >= 0), other=0.0)
    tl.store(permuted + rows * hidden + columns, values, mask=inside)


def launches(x, experts, num_experts, first_expert=0, config=None):
    """([count, place, copy], (permuted, offsets, order, inverse)) for arguments as in
    `wholecurve.kernels.moe_permute.moe_permute`.
    """
    (num_tokens, hidden), top_k = x.shape, experts.shape[1]
    num_slots = num_tokens * top_k
    require(x.stride(1) == 1 or hidden == 1, "moe_permute: last dimension of x is strided")
    require(experts.is_contiguous(), "moe_permute: experts must be contiguous")
    block_slots = slots_per_program(num_slots)
    programs = max(1, triton.cdiv(num_slots, block_slots))  # one without slots still writes the offsets
    counts = torch.empty((programs, num_experts + 1), dtype=torch.int32, device=x.device)
    offsets = torch.empty(num_experts + 1, dtype=torch.int32, device=x.device)
    order = torch.empty(num_slots, dtype=torch.int32, device=x.device)
    inverse = torch.empty((num_tokens, top_k), dtype=torch.int32, device=x.device)
    permuted = torch.empty((num_slots, hidden), dtype=x.dtype, device=x.device)
    block_bins = triton.next_power_of_2(num_experts + 1)
    sort = dict(
        NUM_EXPERTS=num_experts,
        BLOCK_BINS=block_bins,
        BLOCK_SLOTS=block_slots,
        num_warps=block_slots // 32,
        num_stages=1,
    )
    rows, block, copies_per_row = copy_tile(hidden, **(config or {}))
    return [
        Launch(count_kernel, (programs,), (experts, counts, num_slots, first_expert), sort),
        Launch(
            place_kernel,
            (programs,),
            (experts, counts, offsets, order, inverse, num_slots, first_expert),
            sort | dict(BLOCK_PROGRAMS=max(1, COUNTS_OF_A_STEP // block_bins), COUNTED=COUNTED),
        ),
        Launch(
            copy_kernel,
            (triton.cdiv(num_slots, rows), copies_per_row),
            (x, order, permuted, num_slots, hidden, x.stride(0)),
            dict(TOP_K=top_k, ROWS=rows, BLOCK=block, num_warps=4),
        ),
    ], (permuted, offsets, order, inverse)


def moe_permute_triton(x, experts, num_experts, first_expert, interpreted):
    """See `wholecurve.kernels.moe_permute.moe_permute`; interpreted: not on the GPU."""
    started, outputs = launches(x, experts, num_experts, first_expert)
    run_all(started, interpreted)
    return outputs
