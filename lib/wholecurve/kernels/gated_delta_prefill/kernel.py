"""The gated delta rule over whole sequences in Triton, chunk by chunk: see `cpu.py` for the formulas.

Three kernels: every chunk by itself solves its triangular system; a sequence's state passes its chunks one after
another; every chunk by itself gives its outputs. Norms of q and k, decays and beta are factors of rows in fp32, so
that q, k and v enter the products unrounded.
"""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.cost import next_power_of_2
from wholecurve.kernels.forms import require
from wholecurve.kernels.gated_delta_decode.kernel import require_layout
from wholecurve.kernels.gated_delta_decode.reference import L2NORM_EPS
from wholecurve.kernels.gated_delta_prefill.spec import CHUNK, chunk_places, tile
from wholecurve.kernels.launch import Launch, run_all


@triton.jit
def chunk_at(place, cu_seqlens, num_sequences, CHUNK: tl.constexpr, BLOCK_B: tl.constexpr):
    """(first token, number of tokens) of the chunk at a place of the grid; 0 tokens or less where there is none.

    The chunks of sequence b are at the places from cu_seqlens[b] // CHUNK + b on: sequences never overlap, and the
    grid is known without reading a length.
    """
    sequences = tl.arange(0, BLOCK_B)
    starts = tl.load(cu_seqlens + sequences, mask=sequences < num_sequences, other=0).to(tl.int64)
    begun = (starts // CHUNK + sequences <= place) & (sequences < num_sequences)
    sequence = tl.sum(begun.to(tl.int64), axis=0) - 1
    start = tl.load(cu_seqlens + sequence).to(tl.int64)
    end = tl.load(cu_seqlens + (sequence + 1)).to(tl.int64)
    first = start + (place - start // CHUNK - sequence) * CHUNK
    return first, tl.minimum(end - first, CHUNK)


@triton.jit
def pair_logs(log_decay, CHUNK: tl.constexpr):
    """([CHUNK, CHUNK] with the log decays of the tokens j+1 … i at [i, j], 0 above the diagonal; [CHUNK] with those
    of the tokens after j), from log decays [CHUNK] that are 0 past the end.

    Each sum is taken by itself: as a difference of two cumulative sums it would lose digits after a strong decay,
    be NaN after one of −inf, and overflow in exp above the diagonal.
    """
    rows = tl.arange(0, CHUNK)
    steps = tl.where(rows[:, None] > rows[None, :], log_decay[:, None], 0.0)
    return tl.cumsum(steps, axis=0), tl.sum(steps, axis=0)


@triton.jit
def invert(below, HALF: tl.constexpr):
    """(I + below)⁻¹ of a strictly lower triangular tile [2 · HALF, 2 · HALF], in fp32.

    The two blocks on the diagonal at once by forward substitution, row by row; then the block below them,
    −X₁ L X₀. A sum of powers would take fewer steps, but they grow to binomial coefficients for equal keys.
    """
    index, half = tl.arange(0, HALF), tl.arange(0, 2)
    rows, columns = index[None, :, None], index[None, None, :]
    blocks = tl.reshape(below, [2, HALF, 2, HALF])
    block_row, block_column = half[:, None, None, None], half[None, None, :, None]
    diagonal = tl.sum(tl.where(block_row == block_column, blocks, 0.0), axis=2)  # [2, HALF, HALF]
    diagonal = tl.permute(diagonal, (0, 2, 1))
    inverse = tl.where(rows == columns, 1.0, tl.zeros([2, HALF, HALF], tl.float32))
    for row in range(1, HALF):
        weights = tl.sum(tl.where(columns == row, diagonal, 0.0), axis=2)  # [2, HALF], of earlier rows
        change = tl.sum(weights[:, :, None] * inverse, axis=1)
        inverse = tl.where(rows == row, inverse - change[:, None, :], inverse)
    corner = tl.sum(tl.sum(tl.where(block_row > block_column, blocks, 0.0), axis=2), axis=0)
    upper = tl.sum(tl.where(half[:, None, None] == 0, inverse, 0.0), axis=0)
    lower = tl.sum(tl.where(half[:, None, None] == 1, inverse, 0.0), axis=0)
    corner = tl.dot(lower, tl.dot(corner, upper, input_precision="ieee"), input_precision="ieee")
    off_diagonal = tl.where(block_row > block_column, -corner[None, :, None, :], 0.0)
    whole = tl.where(block_row == block_column, inverse[:, :, None, :], off_diagonal)
    return tl.reshape(whole, [2 * HALF, 2 * HALF])


@triton.jit
def prepare_kernel(
    k,  # [T, H, K]
    v,  # [T, HV, V]
    g,  # [T, HV]
    beta,  # [T, HV]
    cu_seqlens,  # [B + 1]
    w,  # [T, HV, K], contiguous: what the new values take from the state before the chunk
    u,  # [T, HV, V], contiguous: the new values of a chunk that starts from zeros
    decays,  # [T, HV] fp32, contiguous: of the tokens from the chunk's first to this one
    key_weights,  # [T, HV] fp32, contiguous: of the tokens after this one, times the norm of k
    num_sequences,
    k_stride_t,
    k_stride_h,
    v_stride_t,
    v_stride_h,
    g_stride,
    beta_stride,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    L2NORM: tl.constexpr,
    EPS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program solves the triangular system of one chunk for one value head."""
    # 64 bits before the products: tokens · heads · width passes 2³¹
    head, num_heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    first, count = chunk_at(tl.program_id(0).to(tl.int64), cu_seqlens, num_sequences, CHUNK, BLOCK_B)
    if count <= 0:
        return
    rows = tl.arange(0, CHUNK)
    row_inside = rows < count
    tokens = first + rows
    flat = tokens * num_heads + head
    keys = k + tokens[:, None] * k_stride_t + head // GROUP * k_stride_h
    products = tl.zeros([CHUNK, CHUNK], tl.float32)
    norm = tl.zeros([CHUNK], tl.float32)
    for block in range(0, KEY_DIM, BLOCK_K):
        channels = block + tl.arange(0, BLOCK_K).to(tl.int64)
        inside = row_inside[:, None] & (channels < KEY_DIM)[None, :]
        key = tl.load(keys + channels[None, :], mask=inside, other=0.0)
        products = tl.dot(key, tl.trans(key), products, input_precision="ieee")
        norm += tl.sum(key.to(tl.float32) * key.to(tl.float32), axis=1)
    norm = tl.rsqrt(norm + EPS) if L2NORM else tl.full([CHUNK], 1.0, tl.float32)
    log_decay = tl.load(g + tokens * g_stride + head, mask=row_inside, other=0.0)
    rate = tl.load(beta + tokens * beta_stride + head, mask=row_inside, other=0.0).to(tl.float32)
    pairs, after = pair_logs(log_decay, CHUNK)
    decay = tl.exp(tl.cumsum(log_decay, axis=0))
    tl.store(decays + flat, decay, mask=row_inside)
    tl.store(key_weights + flat, tl.exp(after) * norm, mask=row_inside)
    system = products * tl.exp(pairs) * (rate * norm)[:, None] * norm[None, :]
    inverse = invert(tl.where(rows[:, None] > rows[None, :], system, 0.0), CHUNK // 2)
    # both right-hand sides: their factors per token go into the columns of the inverse, before it is rounded
    solving = (inverse * (rate * decay * norm)[None, :]).to(k.dtype.element_ty)
    for block in range(0, KEY_DIM, BLOCK_K):
        channels = block + tl.arange(0, BLOCK_K).to(tl.int64)
        inside = row_inside[:, None] & (channels < KEY_DIM)[None, :]
        taken = tl.dot(solving, tl.load(keys + channels[None, :], mask=inside, other=0.0), input_precision="ieee")
        tl.store(w + flat[:, None] * KEY_DIM + channels[None, :], taken.to(w.dtype.element_ty), mask=inside)
    solving = (inverse * rate[None, :]).to(k.dtype.element_ty)
    for block in range(0, VALUE_DIM, BLOCK_V):
        columns = block + tl.arange(0, BLOCK_V).to(tl.int64)
        inside = row_inside[:, None] & (columns < VALUE_DIM)[None, :]
        values = v + tokens[:, None] * v_stride_t + head * v_stride_h + columns[None, :]
        value = tl.dot(solving, tl.load(values, mask=inside, other=0.0), input_precision="ieee")
        tl.store(u + flat[:, None] * VALUE_DIM + columns[None, :], value.to(u.dtype.element_ty), mask=inside)


@triton.jit
def state_kernel(
    k,  # [T, H, K]
    w,  # [T, HV, K], contiguous
    u,  # [T, HV, V], contiguous, overwritten with the new values
    decays,  # [T, HV] fp32, contiguous
    key_weights,  # [T, HV] fp32, contiguous
    cu_seqlens,  # [B + 1]
    state,  # [num_slots, HV, K, V] fp32, slots any distance apart
    slots,  # [B]
    has_initial_state,  # [B], any pointer without HAS_FLAGS
    chunk_states,  # [places, HV, K, V], contiguous: the state before each chunk
    k_stride_t,
    k_stride_h,
    state_stride,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HAS_FLAGS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program takes BLOCK_V columns of the state of one value head of one sequence through its chunks."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    num_heads = tl.num_programs(1)
    first = tl.load(cu_seqlens + sequence).to(tl.int64)
    end = tl.load(cu_seqlens + (sequence + 1)).to(tl.int64)
    if end <= first:
        return
    slot = tl.load(slots + sequence).to(tl.int64)
    present = slot >= 0
    if HAS_FLAGS:
        present = present & (tl.load(has_initial_state + sequence) != 0)
    rows, channels = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K)
    columns = tl.program_id(2).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    channel_inside, column_inside = channels < KEY_DIM, columns < VALUE_DIM
    inside = channel_inside[:, None] & column_inside[None, :]
    block = channels.to(tl.int64)[:, None] * VALUE_DIM + columns[None, :]
    owned = state + slot * state_stride + head * KEY_DIM * VALUE_DIM + block
    held = tl.load(owned, mask=inside & present, other=0.0)
    place = first // CHUNK + sequence
    for _ in range(0, tl.cdiv(end - first, CHUNK).to(tl.int32)):
        tl.store(
            chunk_states + (place * num_heads + head) * KEY_DIM * VALUE_DIM + block,
            held.to(chunk_states.dtype.element_ty),
            mask=inside,
        )
        tokens = first + rows
        row_inside = tokens < end
        flat = tokens * num_heads + head
        key_inside = row_inside[:, None] & channel_inside[None, :]
        value_inside = row_inside[:, None] & column_inside[None, :]
        taken = tl.load(w + flat[:, None] * KEY_DIM + channels[None, :], mask=key_inside, other=0.0)
        values = u + flat[:, None] * VALUE_DIM + columns[None, :]
        value = tl.load(values, mask=value_inside, other=0.0).to(tl.float32)
        value = value - tl.dot(taken, held.to(taken.dtype), input_precision="ieee")
        tl.store(values, value.to(u.dtype.element_ty), mask=value_inside)
        keys = k + tokens[:, None] * k_stride_t + head // GROUP * k_stride_h + channels[None, :]
        key = tl.load(keys, mask=key_inside, other=0.0)
        weighted = value * tl.load(key_weights + flat, mask=row_inside, other=0.0)[:, None]
        # the decay of the whole chunk: that of its last token, which in a short chunk is not row CHUNK − 1
        last = tl.minimum(first + CHUNK, end) - 1
        held = held * tl.load(decays + last * num_heads + head)
        held = tl.dot(tl.trans(key), weighted.to(key.dtype), held, input_precision="ieee")
        first += CHUNK
        place += 1
    tl.store(owned, held, mask=inside & (slot >= 0))


@triton.jit
def output_kernel(
    q,  # [T, H, K]
    k,  # [T, H, K]
    g,  # [T, HV]
    values,  # [T, HV, V], contiguous: the new values
    decays,  # [T, HV] fp32, contiguous
    chunk_states,  # [places, HV, K, V], contiguous
    cu_seqlens,  # [B + 1]
    out,  # [T, HV, V], contiguous
    scale,
    num_sequences,
    q_stride_t,
    q_stride_h,
    k_stride_t,
    k_stride_h,
    g_stride,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    L2NORM: tl.constexpr,
    EPS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program gives BLOCK_V columns of the outputs of one chunk for one value head."""
    place, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    num_heads = tl.num_programs(1)
    first, count = chunk_at(place, cu_seqlens, num_sequences, CHUNK, BLOCK_B)
    if count <= 0:
        return
    rows, channels = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K)
    columns = tl.program_id(2).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    row_inside, channel_inside, column_inside = rows < count, channels < KEY_DIM, columns < VALUE_DIM
    key_inside = row_inside[:, None] & channel_inside[None, :]
    value_inside = row_inside[:, None] & column_inside[None, :]
    tokens = first + rows
    flat = tokens * num_heads + head
    queries = q + tokens[:, None] * q_stride_t + head // GROUP * q_stride_h + channels[None, :]
    query = tl.load(queries, mask=key_inside, other=0.0)
    keys = k + tokens[:, None] * k_stride_t + head // GROUP * k_stride_h + channels[None, :]
    key = tl.load(keys, mask=key_inside, other=0.0)
    log_decay = tl.load(g + tokens * g_stride + head, mask=row_inside, other=0.0)
    pairs, _ = pair_logs(log_decay, CHUNK)
    weights = tl.dot(query, tl.trans(key), input_precision="ieee") * tl.exp(pairs)
    row_scale = tl.full([CHUNK], 1.0, tl.float32) * scale
    if L2NORM:
        weights = weights * tl.rsqrt(tl.sum(key.to(tl.float32) * key.to(tl.float32), axis=1) + EPS)[None, :]
        row_scale *= tl.rsqrt(tl.sum(query.to(tl.float32) * query.to(tl.float32), axis=1) + EPS)
    weights = tl.where(rows[:, None] >= rows[None, :], weights, 0.0).to(query.dtype)
    block = channels.to(tl.int64)[:, None] * VALUE_DIM + columns[None, :]
    held = tl.load(
        chunk_states + (place * num_heads + head) * KEY_DIM * VALUE_DIM + block,
        mask=channel_inside[:, None] & column_inside[None, :],
        other=0.0,
    )
    answer = tl.dot(query, held, input_precision="ieee")
    answer = answer * tl.load(decays + flat, mask=row_inside, other=0.0)[:, None]
    value = tl.load(values + flat[:, None] * VALUE_DIM + columns[None, :], mask=value_inside, other=0.0)
    answer = tl.dot(weights, value, answer, input_precision="ieee") * row_scale[:, None]
    answers = out + flat[:, None] * VALUE_DIM + columns[None, :]
    tl.store(answers, answer.to(out.dtype.element_ty), mask=value_inside)


def launches(
    q,
    k,
    v,
    g,
    beta,
    cu_seqlens,
    state,
    slots,
    scale,
    l2norm=False,
    has_initial_state=None,
    config=None,
):
    """([prepare, state, output], out) for arguments as in `wholecurve.kernels.gated_delta_prefill`."""
    (num_tokens, num_heads, key_dim), (num_value_heads, value_dim) = q.shape, v.shape[1:]
    num_sequences = slots.shape[0]
    require_layout("gated_delta_prefill", q, k, v, g, beta, state, slots, has_initial_state)
    require(cu_seqlens.is_contiguous(), "gated_delta_prefill: cu_seqlens must be contiguous")
    places, rows = chunk_places(num_tokens, num_sequences), (num_tokens, num_value_heads)
    out, u, w, chunk_states = (
        torch.empty(shape, dtype=q.dtype, device=q.device)
        for shape in (v.shape, v.shape, (*rows, key_dim), (places, num_value_heads, key_dim, value_dim))
    )
    decays, key_weights = (torch.empty(rows, dtype=torch.float32, device=q.device) for _ in range(2))
    tiles = tile(key_dim, value_dim, **(config or {}))
    sizes = dict(GROUP=num_value_heads // num_heads, KEY_DIM=key_dim, VALUE_DIM=value_dim, CHUNK=CHUNK)
    searching = dict(L2NORM=l2norm, EPS=L2NORM_EPS, BLOCK_B=next_power_of_2(num_sequences))
    prepare = Launch(
        prepare_kernel,
        (places, num_value_heads),
        (
            *(k, v, g, beta, cu_seqlens, w, u, decays, key_weights, num_sequences),
            *(*k.stride()[:2], *v.stride()[:2], g.stride(0), beta.stride(0)),
        ),
        sizes | searching | tiles.prepare,
    )
    passing = Launch(
        state_kernel,
        (num_sequences if num_tokens else 0, num_value_heads, triton.cdiv(value_dim, tiles.state["BLOCK_V"])),
        (
            *(k, w, u, decays, key_weights, cu_seqlens, state, slots),
            *(slots if has_initial_state is None else has_initial_state, chunk_states),
            *(*k.stride()[:2], state.stride(0)),
        ),
        sizes | dict(HAS_FLAGS=has_initial_state is not None) | tiles.state,
    )
    output = Launch(
        output_kernel,
        (places, num_value_heads, triton.cdiv(value_dim, tiles.output["BLOCK_V"])),
        (
            *(q, k, g, u, decays, chunk_states, cu_seqlens, out, scale, num_sequences),
            *(*q.stride()[:2], *k.stride()[:2], g.stride(0)),
        ),
        sizes | searching | tiles.output,
    )
    return [prepare, passing, output], out


def gated_delta_prefill_triton(
    q, k, v, g, beta, cu_seqlens, state, slots, scale, l2norm, has_initial_state, interpreted
):
    """See `wholecurve.kernels.gated_delta_prefill.gated_delta_prefill`; interpreted: not on the GPU."""
    started, out = launches(q, k, v, g, beta, cu_seqlens, state, slots, scale, l2norm, has_initial_state)
    run_all(started, interpreted)
    return out
