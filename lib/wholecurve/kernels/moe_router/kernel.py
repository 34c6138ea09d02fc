"""The router in Triton: whole rows of logits in registers, one maximum per chosen expert."""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all
from wholecurve.kernels.moe_router.spec import tile

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ID_BITS = tl.constexpr(16)
LAST_ID = tl.constexpr(0xFFFF)  # id ^ LAST_ID falls from the highest number to 0 while ids rise
SIGN_FLIP = tl.constexpr(0x7FFFFFFF)
NOT_CHOSEN = tl.constexpr(-(2**62))  # below every key


@triton.jit
def rank_keys(values, ids):
    """int64 keys in the order of fp32 values and, where those are equal, the lowest id on top."""
    values = tl.where(values == values, values, -float("inf"))
    values = tl.where(values == 0.0, 0.0, values)  # one zero: −0 is no other number
    bits = values.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ SIGN_FLIP, bits)
    return (ordered.to(tl.int64) << ID_BITS) | (ids ^ LAST_ID)


@triton.jit
def value_of(keys):
    """The fp32 values that `rank_keys` made keys of."""
    ordered = (keys >> ID_BITS).to(tl.int32)
    return tl.where(ordered < 0, ordered ^ SIGN_FLIP, ordered).to(tl.float32, bitcast=True)


@triton.jit
def log_1_plus(x):
    """log(1 + x) for 0 ≤ x ≤ 1: the logarithm itself would lose a small x in the 1."""
    s = x / (2.0 + x)  # at most 1/3, so that the first omitted term of 2·artanh(s) is below 2e-9
    t = s * s
    series = 1.0 / 13 + t * (1.0 / 15)
    series = 1.0 / 7 + t * (1.0 / 9 + t * (1.0 / 11 + t * series))
    return 2.0 * s * (1.0 + t * (1.0 / 3 + t * (1.0 / 5 + t * series)))


@triton.jit
def score(logits, real, SCORING: tl.constexpr):
    """Scores of a tile of logits [rows, columns]; real: the columns that are experts."""
    if SCORING == "softmax":
        logits = tl.where(real, logits, -float("inf"))
        powers = tl.exp(logits - tl.max(logits, axis=1, keep_dims=True))
        return powers / tl.sum(powers, axis=1, keep_dims=True)
    power = tl.exp(-tl.abs(logits))  # never overflows
    if SCORING == "sigmoid":
        return tl.where(logits < 0, power, 1.0) / (1.0 + power)
    return tl.sqrt(tl.maximum(logits, 0.0, propagate_nan=tl.PropagateNan.ALL) + log_1_plus(power))


@triton.jit
def in_best_groups(
    keys,  # tile [rows, groups · members]
    NUM_GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Which columns lie in the TOP_GROUPS groups with the largest sum of their two best."""
    members = tl.reshape(keys, [ROWS, BLOCK_G, BLOCK_S])
    best = tl.max(members, axis=2)
    second = tl.max(tl.where(members == best[:, :, None], NOT_CHOSEN, members), axis=2)
    groups = tl.arange(0, BLOCK_G)[None, :]
    group_keys = tl.where(groups < NUM_GROUPS, rank_keys(value_of(best) + value_of(second), groups), NOT_CHOSEN)
    chosen = tl.zeros([ROWS, BLOCK_G], tl.int32)
    for _ in tl.static_range(TOP_GROUPS):
        taken = group_keys == tl.max(group_keys, axis=1, keep_dims=True)
        chosen = tl.where(taken, 1, chosen)
        group_keys = tl.where(taken, NOT_CHOSEN, group_keys)
    spread = tl.broadcast_to(chosen[:, :, None], [ROWS, BLOCK_G, BLOCK_S])
    return tl.reshape(spread, [ROWS, BLOCK_G * BLOCK_S]) != 0


@triton.jit
def moe_router_kernel(
    logits,  # [T, E]
    bias,  # [E], contiguous, any pointer without HAS_BIAS
    weights,  # [T, K] fp32, contiguous
    experts,  # [T, K] int32, contiguous
    num_tokens,
    logits_stride,
    scale,
    NUM_EXPERTS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    TOP_K: tl.constexpr,
    SCORING: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One program routes ROWS tokens."""
    rows = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    # every group fills up to BLOCK_S columns, so that groups of any size are a rectangle
    columns = tl.arange(0, BLOCK_G * BLOCK_S)[None, :]
    group, member = columns // BLOCK_S, columns % BLOCK_S
    ids = group * (NUM_EXPERTS // NUM_GROUPS) + member
    real = (group < NUM_GROUPS) & (member < NUM_EXPERTS // NUM_GROUPS)
    values = tl.load(logits + rows * logits_stride + ids.to(tl.int64), mask=(rows < num_tokens) & real, other=0.0).to(
        tl.float32
    )
    scores = score(values, real, SCORING)
    choice = scores if NUM_GROUPS > 1 else values
    if HAS_BIAS:
        choice = scores + tl.load(bias + ids.to(tl.int64), mask=real, other=0.0).to(tl.float32)
    keys = tl.where(real, rank_keys(choice, ids), NOT_CHOSEN)
    if NUM_GROUPS > 1:
        keys = tl.where(in_best_groups(keys, NUM_GROUPS, TOP_GROUPS, ROWS, BLOCK_G, BLOCK_S), keys, NOT_CHOSEN)
    slots = tl.arange(0, BLOCK_K)[None, :]
    chosen_experts = tl.zeros([ROWS, BLOCK_K], tl.int32)
    chosen_weights = tl.zeros([ROWS, BLOCK_K], tl.float32)
    for slot in tl.static_range(TOP_K):
        best = tl.max(keys, axis=1, keep_dims=True)
        taken = keys == best
        expert = ((best & LAST_ID) ^ LAST_ID).to(tl.int32)
        weight = tl.sum(tl.where(taken, scores, 0.0), axis=1, keep_dims=True)
        keys = tl.where(taken, NOT_CHOSEN, keys)
        chosen_experts = tl.where(slots == slot, expert, chosen_experts)
        chosen_weights = tl.where(slots == slot, weight, chosen_weights)
    if RENORMALIZE:
        chosen_weights = chosen_weights / (tl.sum(chosen_weights, axis=1, keep_dims=True) + 1e-20)
    inside = (rows < num_tokens) & (slots < TOP_K)
    tl.store(weights + rows * TOP_K + slots, chosen_weights * scale, mask=inside)
    tl.store(experts + rows * TOP_K + slots, chosen_experts, mask=inside)


def launches(
    logits,
    top_k,
    scoring="softmax",
    bias=None,
    num_groups=None,
    top_groups=None,
    renormalize=True,
    scale=1.0,
    config=None,
):
    """([launch], (weights, experts)) for arguments as in `wholecurve.kernels.moe_router.moe_router`."""
    num_tokens, num_experts = logits.shape
    for name, tensor in (("logits", logits), ("bias", bias)):
        require(
            tensor is None or tensor.dtype in DTYPES,
            f"moe_router: the Triton form takes {', '.join(map(str, DTYPES))} {name}, not these",
        )
    require(bias is None or bias.is_contiguous(), "moe_router: bias must be contiguous")
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=logits.device)
    experts = torch.empty((num_tokens, top_k), dtype=torch.int32, device=logits.device)
    rows, block_groups, block_members, num_warps = tile(num_experts, num_groups, **(config or {}))
    launch = Launch(
        moe_router_kernel,
        (triton.cdiv(num_tokens, rows),),
        (
            *(logits, logits if bias is None else bias, weights, experts),
            *(num_tokens, logits.stride(0), scale),
        ),
        dict(
            NUM_EXPERTS=num_experts,
            NUM_GROUPS=num_groups or 1,
            TOP_GROUPS=top_groups or 1,
            TOP_K=top_k,
            SCORING=scoring,
            HAS_BIAS=bias is not None,
            RENORMALIZE=renormalize,
            ROWS=rows,
            BLOCK_G=block_groups,
            BLOCK_S=block_members,
            BLOCK_K=triton.next_power_of_2(top_k),
            num_warps=num_warps,
        ),
    )
    return [launch], (weights, experts)


def moe_router_triton(logits, top_k, scoring, bias, num_groups, top_groups, renormalize, scale, interpreted):
    """See `wholecurve.kernels.moe_router.moe_router`; interpreted: not on the GPU."""
    started, outputs = launches(logits, top_k, scoring, bias, num_groups, top_groups, renormalize, scale)
    run_all(started, interpreted)
    return outputs
