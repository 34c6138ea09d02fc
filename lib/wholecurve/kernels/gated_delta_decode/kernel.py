"""The gated delta rule for few tokens in Triton: a block of the state stays in registers while the tokens pass."""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.gated_delta_decode.reference import L2NORM_EPS
from wholecurve.kernels.gated_delta_decode.spec import MAX_KEY_DIM, tile
from wholecurve.kernels.launch import Launch, run_all

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def decode_kernel(
    q,  # [B, Q, H, K]
    k,  # [B, Q, H, K]
    v,  # [B, Q, HV, V]
    g,  # [B, Q, HV]
    beta,  # [B, Q, HV]
    state,  # [num_slots, HV, K, V] fp32, slots any distance apart
    slots,  # [B]
    has_initial_state,  # [B], any pointer without HAS_FLAGS
    write_slots,  # [B, Q], contiguous, any pointer without HAS_WRITE_SLOTS
    out,  # [B, Q, HV, V], contiguous
    scale,
    num_tokens,
    q_stride_b,
    q_stride_t,
    q_stride_h,
    k_stride_b,
    k_stride_t,
    k_stride_h,
    v_stride_b,
    v_stride_t,
    v_stride_h,
    g_stride_b,
    g_stride_t,
    beta_stride_b,
    beta_stride_t,
    state_stride,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    L2NORM: tl.constexpr,
    EPS: tl.constexpr,
    HAS_FLAGS: tl.constexpr,
    HAS_WRITE_SLOTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program takes BLOCK_V columns of the state of one value head of one sequence through its tokens."""
    # 64 bits before the products: states pass 2³¹ elements
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    key_head = head // GROUP
    rows = tl.arange(0, BLOCK_K).to(tl.int64)
    columns = tl.program_id(2).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    row_inside, column_inside = rows < KEY_DIM, columns < VALUE_DIM
    inside = row_inside[:, None] & column_inside[None, :]
    slot = tl.load(slots + sequence).to(tl.int64)
    present = slot >= 0
    if HAS_FLAGS:
        present = present & (tl.load(has_initial_state + sequence) != 0)
    block = state + head * KEY_DIM * VALUE_DIM + rows[:, None] * VALUE_DIM + columns[None, :]
    held = tl.load(block + slot * state_stride, mask=inside & present, other=0.0)
    for index in range(num_tokens):
        token = tl.cast(index, tl.int64)
        row = sequence * num_tokens + token
        query = q + sequence * q_stride_b + token * q_stride_t + key_head * q_stride_h
        query = tl.load(query + rows, mask=row_inside, other=0.0).to(tl.float32)
        key = k + sequence * k_stride_b + token * k_stride_t + key_head * k_stride_h
        key = tl.load(key + rows, mask=row_inside, other=0.0).to(tl.float32)
        value = v + sequence * v_stride_b + token * v_stride_t + head * v_stride_h
        value = tl.load(value + columns, mask=column_inside, other=0.0).to(tl.float32)
        decay = tl.exp(tl.load(g + sequence * g_stride_b + token * g_stride_t + head))
        rate = tl.load(beta + sequence * beta_stride_b + token * beta_stride_t + head).to(tl.float32)
        if L2NORM:
            query = query * tl.rsqrt(tl.sum(query * query) + EPS)
            key = key * tl.rsqrt(tl.sum(key * key) + EPS)
        held = held * decay
        error = value - tl.sum(held * key[:, None], axis=0)
        held = held + key[:, None] * (error * rate)[None, :]
        found = tl.sum(held * (query * scale)[:, None], axis=0)
        answer = out + (row * tl.num_programs(1) + head) * VALUE_DIM
        tl.store(answer + columns, found.to(out.dtype.element_ty), mask=column_inside)
        if HAS_WRITE_SLOTS:
            target = tl.load(write_slots + row).to(tl.int64)
            tl.store(block + target * state_stride, held, mask=inside & (target >= 0))
    if not HAS_WRITE_SLOTS:
        tl.store(block + slot * state_stride, held, mask=inside & (slot >= 0))


def launches(
    q,
    k,
    v,
    g,
    beta,
    state,
    slots,
    scale,
    l2norm=False,
    has_initial_state=None,
    write_slots=None,
    config=None,
):
    """([launch], out) for arguments as in `wholecurve.kernels.gated_delta_decode.gated_delta_decode`."""
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if q.dim() == 3:
        q, k, v, g, beta = (tensor[:, None] for tensor in (q, k, v, g, beta))
    num_sequences, num_tokens, num_heads, key_dim = q.shape
    num_value_heads, value_dim = v.shape[2:]
    require_layout("gated_delta_decode", q, k, v, g, beta, state, slots, has_initial_state)
    require(write_slots is None or write_slots.is_contiguous(), "gated_delta_decode: write_slots must be contiguous")
    block_k, block_v, num_warps = tile(key_dim, value_dim, **(config or {}))
    launch = Launch(
        decode_kernel,
        (num_sequences if num_tokens else 0, num_value_heads, triton.cdiv(value_dim, block_v)),
        (
            *(q, k, v, g, beta, state, slots),
            slots if has_initial_state is None else has_initial_state,
            slots if write_slots is None else write_slots,
            *(out, scale, num_tokens),
            *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *g.stride()[:2], *beta.stride()[:2]),
            state.stride(0),
        ),
        dict(
            GROUP=num_value_heads // num_heads,
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            L2NORM=l2norm,
            EPS=L2NORM_EPS,
            HAS_FLAGS=has_initial_state is not None,
            HAS_WRITE_SLOTS=write_slots is not None,
            BLOCK_K=block_k,
            BLOCK_V=block_v,
            num_warps=num_warps,
        ),
    )
    return [launch], out


def require_layout(operation, q, k, v, g, beta, state, slots, has_initial_state):
    """What the Triton forms of the gated delta rule ask of dtypes and strides."""
    require(q.dtype in DTYPES, f"{operation}: the Triton form takes {', '.join(map(str, DTYPES))}, q is {q.dtype}")
    key_dim = q.shape[-1]
    require(key_dim <= MAX_KEY_DIM, f"{operation}: the Triton form takes keys up to {MAX_KEY_DIM}, they have {key_dim}")
    for name, tensor in (("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta)):
        require(tensor.stride(-1) == 1 or tensor.shape[-1] == 1, f"{operation}: last dimension of {name} is strided")
    inner = state.new_empty((0, *state.shape[1:])).stride()[1:]
    require(state.stride()[1:] == inner or not state.numel(), f"{operation}: each slot of state must be contiguous")
    for name, tensor in (("slots", slots), ("has_initial_state", has_initial_state)):
        require(tensor is None or tensor.is_contiguous(), f"{operation}: {name} must be contiguous")


def gated_delta_decode_triton(
    q, k, v, g, beta, state, slots, scale, l2norm, has_initial_state, write_slots, interpreted
):
    """See `wholecurve.kernels.gated_delta_decode.gated_delta_decode`; interpreted: not on the GPU."""
    started, out = launches(q, k, v, g, beta, state, slots, scale, l2norm, has_initial_state, write_slots)
    run_all(started, interpreted)
    return out
