"""Paged decode attention in Triton: split the context, attend per split, merge the splits.

Flash-Decoding (Dao et al. 2023, https://pytorch.org/blog/flash-decoding/) with a split of fixed size: how a
sequence is cut depends on its own length only, so its bits do not depend on the batch it runs in.
"""

import math

import torch
import triton
import triton.language as tl

from wholecurve.kernels.decode_attention.spec import most_splits, tile
from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2))


@triton.jit
def power_of_2(exponent, top):
    """2^(exponent − top) of exponents up to top; 0 where both are −inf, whose difference is NaN."""
    return tl.exp2(exponent - tl.where(top == -float("inf"), 0.0, top))


@triton.jit
def first_key(context, QUERIES: tl.constexpr, WINDOW: tl.constexpr):
    """The first key that any of the last QUERIES tokens sees; WINDOW 0: no window."""
    return tl.maximum(context - QUERIES - WINDOW + 1, 0) if WINDOW > 0 else 0


@triton.jit
def tanh(x):
    """tanh to a few units in the last place: 1 − 2 / (e^2x + 1) cancels near 0, where a series takes over."""
    square = x * x
    series = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    decay = tl.exp(-2 * tl.abs(x))
    far = (1 - decay) / (1 + decay)
    return tl.where(tl.abs(x) < 0.25, series, tl.where(x < 0, -far, far))


@triton.jit
def close_softmax(top, total, sink, value_scale):
    """(factor of the accumulator, LSE) once every key is in; top and sink are logits in base 2."""
    closed_top = tl.maximum(top, sink)
    weight = power_of_2(top, closed_top)
    total = total * weight + power_of_2(sink, closed_top)
    # a row that saw nothing has an empty sum: its output is 0, not 0/0, and its LSE −inf
    denominator = tl.where(total == 0, 1.0, total)
    return weight * value_scale / denominator, (closed_top + tl.log2(denominator)) * LN_2


@triton.jit
def load_channels(cache, rows, FIRST: tl.constexpr, dims, inside, SIZE: tl.constexpr):
    """Channels FIRST + dims of the cached tokens that start at `rows`; 0 past SIZE and where not inside."""
    return tl.load(cache + (rows + FIRST) + dims, mask=inside & (FIRST + dims < SIZE), other=0.0)


@triton.jit
def store_channels(target, rows, FIRST: tl.constexpr, dims, values, inside, SIZE: tl.constexpr):
    """The converse of `load_channels` for rows [N] and values [N, dims]."""
    mask = inside[:, None] & (FIRST + dims < SIZE)[None, :]
    tl.store(target + (rows + FIRST)[:, None] + dims[None, :], values.to(target.dtype.element_ty), mask=mask)


@triton.jit
def attend_split_kernel(
    q,  # [B, QUERIES, H, K_DIM]
    k_cache,  # [num_blocks, BLOCK_SIZE, G, K_DIM]
    v_cache,  # [num_blocks, BLOCK_SIZE, G, V_DIM]
    block_table,  # [B, max_blocks]
    context_lens,  # [B]
    k_scale,  # [G] fp32, any pointer without HAS_K_SCALE
    v_scale,  # [G] fp32, any pointer without HAS_V_SCALE
    sinks,  # [H], any pointer without HAS_SINKS
    out,  # [B, QUERIES, H, V_DIM], contiguous
    lse,  # [B, QUERIES, H] fp32, contiguous, any pointer without HAS_LSE
    partial_out,  # [B, QUERIES, H, num_splits, V_DIM] fp32, contiguous, any pointer when DIRECT
    partial_top,  # [B, QUERIES, H, num_splits] fp32, contiguous, in base 2, any pointer when DIRECT
    partial_sum,  # [B, QUERIES, H, num_splits] fp32, contiguous, any pointer when DIRECT
    score_scale,  # to the logits in base 2, or to the argument of the tanh with HAS_CAP
    cap_log2,
    value_scale,
    q_stride_b,
    q_stride_q,
    q_stride_h,
    k_stride_block,
    k_stride_token,
    k_stride_g,
    v_stride_block,
    v_stride_token,
    v_stride_g,
    table_stride,
    num_heads,
    num_splits,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    WINDOW: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_K_SCALE: tl.constexpr,
    HAS_V_SCALE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
    DIRECT: tl.constexpr,
    SPLIT: tl.constexpr,
    ROW_TILES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    REST_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    REST_V: tl.constexpr,
):
    """One program handles one split of one sequence for BLOCK_ROWS of the GROUP · QUERIES rows (query tokens × query
    heads) that share a key-value head. When DIRECT the split is the only one and the program gives the output.
    """
    # 64 bits before the products: caches and partial results pass 2³¹ elements
    sequence, split = tl.program_id(2).to(tl.int64), tl.program_id(1)
    # neighbouring programs take neighbouring heads, which lie side by side in a page
    kv_head = (tl.program_id(0) // ROW_TILES).to(tl.int64)
    context = tl.load(context_lens + sequence).to(tl.int32)
    first = first_key(context, QUERIES, WINDOW)
    start = first + split * SPLIT
    if not DIRECT and start >= context:  # the merge never reads this split
        return
    end = tl.minimum(context, start + SPLIT)

    rows = (tl.program_id(0) % ROW_TILES) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    row_inside = rows < GROUP * QUERIES
    query_tokens, heads = rows // GROUP, kv_head * GROUP + rows % GROUP
    row_positions = context - QUERIES + query_tokens
    q_rows = sequence * q_stride_b + query_tokens.to(tl.int64) * q_stride_q + heads * q_stride_h
    dims_k, rest_k = tl.arange(0, BLOCK_K), tl.arange(0, REST_K)
    dims_v, rest_v = tl.arange(0, BLOCK_V), tl.arange(0, REST_V)
    query = load_channels(q, q_rows[:, None], 0, dims_k[None, :], row_inside[:, None], K_DIM)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_V], tl.float32)
    if BLOCK_K < K_DIM:
        query_rest = load_channels(q, q_rows[:, None], BLOCK_K, rest_k[None, :], row_inside[:, None], K_DIM)
    if BLOCK_V < V_DIM:
        acc_rest = tl.zeros([BLOCK_ROWS, REST_V], tl.float32)
    if HAS_K_SCALE:
        score_scale *= tl.load(k_scale + kv_head)
    top = tl.full([BLOCK_ROWS], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)

    for position in range(start, end, BLOCK_TOKENS):
        positions = position + tl.arange(0, BLOCK_TOKENS)
        inside = positions < end
        entries = sequence * table_stride + positions // BLOCK_SIZE
        pages = tl.load(block_table + entries, mask=inside, other=0).to(tl.int64)
        tokens = (positions % BLOCK_SIZE).to(tl.int64)
        # keys come transposed, [K_DIM, tokens]
        k_rows = (pages * k_stride_block + tokens * k_stride_token + kv_head * k_stride_g)[None, :]
        k = load_channels(k_cache, k_rows, 0, dims_k[:, None], inside[None, :], K_DIM).to(query.dtype)
        scores = tl.dot(query, k, input_precision="ieee")
        if BLOCK_K < K_DIM:
            k = load_channels(k_cache, k_rows, BLOCK_K, rest_k[:, None], inside[None, :], K_DIM).to(query.dtype)
            scores = tl.dot(query_rest, k, scores, input_precision="ieee")
        scores *= score_scale
        if HAS_CAP:
            scores = cap_log2 * tanh(scores)
        seen = inside[None, :]
        if QUERIES > 1:
            seen &= positions[None, :] <= row_positions[:, None]
            if WINDOW > 0:
                seen &= positions[None, :] > row_positions[:, None] - WINDOW
        scores = tl.where(seen, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        weights = power_of_2(scores, new_top[:, None])
        rescale = power_of_2(top, new_top)
        total = total * rescale + tl.sum(weights, axis=1)
        top = new_top
        weights = weights.to(query.dtype)
        v_rows = (pages * v_stride_block + tokens * v_stride_token + kv_head * v_stride_g)[:, None]
        v = load_channels(v_cache, v_rows, 0, dims_v[None, :], inside[:, None], V_DIM).to(query.dtype)
        acc = tl.dot(weights, v, acc * rescale[:, None], input_precision="ieee")
        if BLOCK_V < V_DIM:
            v = load_channels(v_cache, v_rows, BLOCK_V, rest_v[None, :], inside[:, None], V_DIM).to(query.dtype)
            acc_rest = tl.dot(weights, v, acc_rest * rescale[:, None], input_precision="ieee")

    out_rows = (sequence * QUERIES + query_tokens) * num_heads + heads
    if DIRECT:
        sink = tl.full([BLOCK_ROWS], -float("inf"), tl.float32)
        if HAS_SINKS:
            sink = tl.load(sinks + heads, mask=row_inside, other=0.0).to(tl.float32) * LOG2_E
        if HAS_V_SCALE:
            value_scale *= tl.load(v_scale + kv_head)
        factor, logarithm = close_softmax(top, total, sink, value_scale)
        acc *= factor[:, None]
        if BLOCK_V < V_DIM:
            acc_rest *= factor[:, None]
        if HAS_LSE:
            tl.store(lse + out_rows, logarithm, mask=row_inside)
        target, slots = out, out_rows
    else:
        target, slots = partial_out, out_rows * num_splits + split
        tl.store(partial_top + slots, top, mask=row_inside)
        tl.store(partial_sum + slots, total, mask=row_inside)
    store_channels(target, slots * V_DIM, 0, dims_v, acc, row_inside, V_DIM)
    if BLOCK_V < V_DIM:
        store_channels(target, slots * V_DIM, BLOCK_V, rest_v, acc_rest, row_inside, V_DIM)


@triton.jit
def merge_splits_kernel(
    partial_out,  # [B, QUERIES, H, num_splits, V_DIM] fp32, contiguous
    partial_top,  # [B, QUERIES, H, num_splits] fp32, contiguous, in base 2
    partial_sum,  # [B, QUERIES, H, num_splits] fp32, contiguous
    context_lens,  # [B]
    v_scale,  # [G] fp32, any pointer without HAS_V_SCALE
    sinks,  # [H], any pointer without HAS_SINKS
    out,  # [B, QUERIES, H, V_DIM], contiguous
    lse,  # [B, QUERIES, H] fp32, contiguous, any pointer without HAS_LSE
    value_scale,
    num_splits,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    WINDOW: tl.constexpr,
    V_DIM: tl.constexpr,
    HAS_V_SCALE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program merges the splits of one query head of one query token, BLOCK_SPLITS at a time and in order."""
    sequence, head = tl.program_id(2).to(tl.int64), tl.program_id(0).to(tl.int64)
    row = (sequence * QUERIES + tl.program_id(1)) * tl.num_programs(0) + head
    dims = tl.arange(0, BLOCK_V)
    context = tl.load(context_lens + sequence).to(tl.int32)
    first = first_key(context, QUERIES, WINDOW)
    used = tl.cdiv(context - first, SPLIT)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([BLOCK_V], tl.float32)
    for done in range(0, used, BLOCK_SPLITS):
        splits = done + tl.arange(0, BLOCK_SPLITS)
        inside = splits < used
        slots = row * num_splits + splits
        tops = tl.load(partial_top + slots, mask=inside, other=-float("inf"))
        new_top = tl.maximum(top, tl.max(tops, axis=0))
        rescale, weights = power_of_2(top, new_top), power_of_2(tops, new_top)
        total = total * rescale + tl.sum(tl.load(partial_sum + slots, mask=inside, other=0.0) * weights, axis=0)
        parts = load_channels(partial_out, (slots * V_DIM)[:, None], 0, dims[None, :], inside[:, None], V_DIM)
        acc = acc * rescale + tl.sum(parts * weights[:, None], axis=0)
        top = new_top
    sink = -float("inf")
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2_E
    if HAS_V_SCALE:
        value_scale *= tl.load(v_scale + head // GROUP)
    factor, logarithm = close_softmax(top, total, sink, value_scale)
    if HAS_LSE:
        tl.store(lse + row, logarithm)
    tl.store(out + row * V_DIM + dims, (acc * factor).to(out.dtype.element_ty), mask=dims < V_DIM)


def launches(
    q,
    k_cache,
    v_cache,
    block_table,
    context_lens,
    scale,
    *,
    window=None,
    soft_cap=None,
    sinks=None,
    return_lse=False,
    k_scale=None,
    v_scale=None,
    config=None,
):
    """([launches], out or (out, lse)) for arguments as in `wholecurve.kernels.decode_attention.decode_attention`:
    one launch when a single split covers every context that fits the table (or the window), else two.
    """
    check_layout(q, k_cache, v_cache, block_table, context_lens, sinks, k_scale, v_scale)
    num_sequences, queries, num_heads, k_dim = q.shape if q.dim() == 4 else (q.shape[0], 1, *q.shape[1:])
    block_size, num_kv_heads, v_dim = v_cache.shape[1:]
    group = num_heads // num_kv_heads
    # from the width of the table, not from the lengths: reading those would wait for the GPU
    reach = block_table.shape[1] * block_size
    window = 0 if window is None or window >= reach else window
    tiles = tile(group * queries, k_dim, v_dim, **(config or {}))
    num_splits = most_splits(reach, queries, window, tiles["SPLIT"])
    direct = num_splits == 1

    rows = q.shape[:-1]
    out = torch.empty((*rows, v_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty(rows, dtype=torch.float32, device=q.device) if return_lse else None
    partials = [out] * 3
    if not direct:
        shapes = ((*rows, num_splits, v_dim), (*rows, num_splits), (*rows, num_splits))
        partials = [torch.empty(shape, dtype=torch.float32, device=q.device) for shape in shapes]

    scale = scale * (1.0 if k_scale is None or is_tensor(k_scale) else k_scale)
    value_scale = 1.0 if v_scale is None or is_tensor(v_scale) else v_scale
    head_scales = [factor if is_tensor(factor) else out for factor in (k_scale, v_scale)]
    optional = [out if tensor is None else tensor for tensor in (sinks, lse)]
    shared = dict(
        GROUP=group,
        QUERIES=queries,
        WINDOW=window,
        V_DIM=v_dim,
        HAS_V_SCALE=is_tensor(v_scale),
        HAS_SINKS=sinks is not None,
        HAS_LSE=return_lse,
    )
    attend = Launch(
        attend_split_kernel,
        (num_kv_heads * tiles["ROW_TILES"], num_splits, num_sequences),
        (
            *(q, k_cache, v_cache, block_table, context_lens, *head_scales, optional[0], out, optional[1], *partials),
            float(scale / soft_cap if soft_cap else scale * LOG2_E.value),
            float((soft_cap or 0.0) * LOG2_E.value),
            float(value_scale),
            *(q.stride(0), q.stride(1) if q.dim() == 4 else 0, q.stride(-2)),
            *(*k_cache.stride()[:3], *v_cache.stride()[:3], block_table.stride(0), num_heads, num_splits),
        ),
        shared
        | tiles
        | dict(
            K_DIM=k_dim,
            BLOCK_SIZE=block_size,
            HAS_CAP=soft_cap is not None,
            HAS_K_SCALE=is_tensor(k_scale),
            DIRECT=direct,
        ),
    )
    merge = Launch(
        merge_splits_kernel,
        (num_heads, queries, num_sequences),
        (*partials, context_lens, head_scales[1], optional[0], out, optional[1], float(value_scale), num_splits),
        shared | dict(SPLIT=tiles["SPLIT"], BLOCK_SPLITS=16, BLOCK_V=triton.next_power_of_2(v_dim), num_warps=4),
    )
    return [attend] if direct else [attend, merge], (out, lse) if return_lse else out


def is_tensor(factor):
    """Whether a cache scale comes as one number per key-value head."""
    return isinstance(factor, torch.Tensor)


def check_layout(q, k_cache, v_cache, block_table, context_lens, sinks, k_scale, v_scale):
    """ValueError for what the Triton form cannot read: other dtypes, strided rows."""
    require(
        q.dtype in DTYPES,
        f"decode_attention: the Triton form takes {', '.join(map(str, DTYPES))}, not {q.dtype}",
    )
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache), ("block_table", block_table)):
        require(
            tensor.stride(-1) == 1 or tensor.shape[-1] == 1, f"decode_attention: last dimension of {name} is strided"
        )
    named = (("context_lens", context_lens), ("sinks", sinks), ("k_scale", k_scale), ("v_scale", v_scale))
    for name, tensor in named:
        require(not is_tensor(tensor) or tensor.is_contiguous(), f"decode_attention: {name} must be contiguous")


def decode_attention_triton(*arguments, interpreted, **options):
    """See `wholecurve.kernels.decode_attention.decode_attention`; interpreted: not on the GPU."""
    started, outputs = launches(*arguments, **options)
    run_all(started, interpreted)
    return outputs
