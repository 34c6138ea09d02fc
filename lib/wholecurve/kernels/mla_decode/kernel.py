"""MLA decode in Triton: split the tokens, attend per split with one read for keys and values, merge the splits.

Flash-Decoding (Dao et al. 2023, https://pytorch.org/blog/flash-decoding/) with a split of fixed size: how a
sequence is cut depends on its own length only, so its bits do not depend on the batch it runs in.
"""

import math

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all
from wholecurve.kernels.mla_decode.spec import tile

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def attend_split_kernel(
    q,  # [B, Q, H, VALUE_DIM + ROPE_DIM]
    latent_cache,  # [num_blocks, BLOCK_SIZE, VALUE_DIM + ROPE_DIM]
    latent_scale,  # [num_blocks, BLOCK_SIZE] fp32, any pointer without HAS_SCALE
    block_table,  # [B, max_blocks]
    context_lens,  # [B]
    indices,  # [B, Q, num_listed], any pointer without LISTED
    partial_out,  # [B, Q, H, num_splits, VALUE_DIM] fp32, contiguous
    partial_max,  # [B, Q, H, num_splits] fp32, contiguous, in base 2
    partial_sum,  # [B, Q, H, num_splits] fp32, contiguous
    scale_log2,
    num_listed,
    num_splits,
    q_stride_b,
    q_stride_q,
    q_stride_h,
    cache_stride_block,
    cache_stride_token,
    scale_stride_block,
    table_stride,
    indices_stride_b,
    indices_stride_q,
    NUM_QUERIES: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    LISTED: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    BLOCK_ROPE: tl.constexpr,
):
    """One program handles one split of a sequence's tokens (LISTED: of a query's list) for BLOCK_ROWS (query, head)
    rows that share it.
    """
    SHARED: tl.constexpr = 1 if LISTED else NUM_QUERIES  # queries that share their tokens
    group, row_tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    # 64 bits before the products: caches and partial results pass 2³¹ elements
    sequence, first_query = (group // (NUM_QUERIES // SHARED)).to(tl.int64), group % (NUM_QUERIES // SHARED) * SHARED
    rows = row_tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    row_inside = rows < SHARED * NUM_HEADS
    # the last query sees the whole context, each one before it one token less
    first_limit = tl.load(context_lens + sequence).to(tl.int32) - (NUM_QUERIES - 1) + first_query
    limits = first_limit + rows // NUM_HEADS
    last_row = tl.minimum(row_tile * BLOCK_ROWS + BLOCK_ROWS, SHARED * NUM_HEADS) - 1
    # tokens that some row of this program sees
    low, high = 0, first_limit + last_row // NUM_HEADS
    if WINDOW:
        low = tl.maximum(first_limit + row_tile * BLOCK_ROWS // NUM_HEADS - WINDOW, 0)
    if LISTED:
        start, stop = split * SPLIT, tl.minimum(split * SPLIT + SPLIT, num_listed)
    else:
        start = tl.maximum(split * SPLIT, low // BLOCK_TOKENS * BLOCK_TOKENS)
        stop = tl.minimum(split * SPLIT + SPLIT, high)
    if start >= stop:  # the merge never reads this split
        return
    values, ropes = tl.arange(0, BLOCK_VALUE), tl.arange(VALUE_DIM, VALUE_DIM + BLOCK_ROPE)
    value_inside, rope_inside = values < VALUE_DIM, ropes < VALUE_DIM + ROPE_DIM
    q_offsets = (first_query + rows // NUM_HEADS).to(tl.int64) * q_stride_q + (rows % NUM_HEADS).to(
        tl.int64
    ) * q_stride_h
    q_rows = q + sequence * q_stride_b + q_offsets[:, None]
    q_latent = tl.load(q_rows + values[None, :], mask=row_inside[:, None] & value_inside[None, :], other=0.0)
    if ROPE_DIM:
        q_rope = tl.load(q_rows + ropes[None, :], mask=row_inside[:, None] & rope_inside[None, :], other=0.0)
    running_max = tl.full([BLOCK_ROWS], -float("inf"), tl.float32)
    running_sum = tl.zeros([BLOCK_ROWS], tl.float32)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_VALUE], tl.float32)
    for first in range(start, stop, BLOCK_TOKENS):
        positions = first + tl.arange(0, BLOCK_TOKENS)
        inside = positions < stop
        if LISTED:
            query_list = indices + sequence * indices_stride_b + first_query.to(tl.int64) * indices_stride_q
            positions = tl.load(query_list + positions.to(tl.int64), mask=inside, other=-1).to(tl.int32)
        # a token that no row sees, and the padding of a list, is not dereferenced
        inside = inside & (positions >= low) & (positions < high)
        entries = sequence * table_stride + positions // BLOCK_SIZE
        pages = tl.load(block_table + entries, mask=inside, other=0).to(tl.int64)
        tokens = (positions % BLOCK_SIZE).to(tl.int64)
        cached = latent_cache + (pages * cache_stride_block + tokens * cache_stride_token)[:, None]
        # keys and values are one vector: values take its first VALUE_DIM numbers and nothing of the rope part
        latent = tl.load(cached + values[None, :], mask=inside[:, None] & value_inside[None, :], other=0.0)
        latent = latent.to(q_latent.dtype)
        scores = tl.dot(q_latent, tl.trans(latent), input_precision="ieee")
        if ROPE_DIM:
            rope = tl.load(cached + ropes[None, :], mask=inside[:, None] & rope_inside[None, :], other=0.0)
            scores = tl.dot(q_rope, tl.trans(rope.to(q_rope.dtype)), scores, input_precision="ieee")
        scores *= scale_log2
        if HAS_SCALE:
            token_scale = tl.load(latent_scale + pages * scale_stride_block + tokens, mask=inside, other=0.0)
            scores *= token_scale[None, :]
        seen = inside[None, :] & (positions[None, :] < limits[:, None])
        if WINDOW:
            seen = seen & (positions[None, :] >= limits[:, None] - WINDOW)
        scores = tl.where(seen, scores, -float("inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        # a row that has seen nothing yet stays at −inf, and −inf − −inf is NaN
        shift = tl.where(new_max == -float("inf"), 0.0, new_max)
        weights = tl.exp2(scores - shift[:, None])
        rescale = tl.exp2(running_max - shift)
        running_sum = running_sum * rescale + tl.sum(weights, axis=1)
        if HAS_SCALE:
            weights *= token_scale[None, :]
        acc = tl.dot(weights.to(latent.dtype), latent, acc * rescale[:, None], input_precision="ieee")
        running_max = new_max
    slots = ((sequence * NUM_QUERIES + first_query) * NUM_HEADS + rows) * num_splits + split
    tl.store(
        partial_out + slots[:, None] * VALUE_DIM + values[None, :],
        acc,
        mask=row_inside[:, None] & value_inside[None, :],
    )
    tl.store(partial_max + slots, running_max, mask=row_inside)
    tl.store(partial_sum + slots, running_sum, mask=row_inside)


@triton.jit
def merge_splits_kernel(
    partial_out,  # [B, Q, H, num_splits, VALUE_DIM] fp32, contiguous
    partial_max,  # [B, Q, H, num_splits] fp32, contiguous, in base 2
    partial_sum,  # [B, Q, H, num_splits] fp32, contiguous
    context_lens,  # [B]
    sinks,  # [H], any pointer without HAS_SINKS
    out,  # [B, Q, H, VALUE_DIM], contiguous
    lse,  # [B, Q, H] fp32, contiguous, any pointer without RETURN_LSE
    num_splits,
    NUM_QUERIES: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    RETURN_LSE: tl.constexpr,
    LISTED: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
):
    """One program merges the splits of one query head of one token, in order."""
    row = tl.program_id(0).to(tl.int64)
    values = tl.arange(0, BLOCK_VALUE)
    value_inside = values < VALUE_DIM
    first, last = 0, num_splits
    if not LISTED:
        context = tl.load(context_lens + row // (NUM_QUERIES * NUM_HEADS)).to(tl.int32)
        limit = tl.maximum(context - (NUM_QUERIES - 1) + (row // NUM_HEADS % NUM_QUERIES).to(tl.int32), 0)
        last = tl.cdiv(limit, SPLIT)
        if WINDOW:
            first = tl.maximum(limit - WINDOW, 0) // SPLIT
    running_max = -float("inf")
    running_sum = 0.0
    acc = tl.zeros([BLOCK_VALUE], tl.float32)
    for split in range(first, last):
        slot = row * num_splits + split
        split_max = tl.load(partial_max + slot)
        new_max = tl.maximum(running_max, split_max)
        shift = tl.where(new_max == -float("inf"), 0.0, new_max)
        old_weight, new_weight = tl.exp2(running_max - shift), tl.exp2(split_max - shift)
        running_sum = running_sum * old_weight + tl.load(partial_sum + slot) * new_weight
        split_out = tl.load(partial_out + slot * VALUE_DIM + values, mask=value_inside, other=0.0)
        acc = acc * old_weight + split_out * new_weight
        running_max = new_max
    if HAS_SINKS:
        # here and not in a split: it counts once
        sink = tl.load(sinks + row % NUM_HEADS).to(tl.float32) * 1.4426950408889634
        new_max = tl.maximum(running_max, sink)
        shift = tl.where(new_max == -float("inf"), 0.0, new_max)
        old_weight = tl.exp2(running_max - shift)
        running_sum = running_sum * old_weight + tl.exp2(sink - shift)
        acc = acc * old_weight
        running_max = new_max
    # a row that sees nothing has an empty sum: its output is 0, not 0/0
    total = tl.where(running_sum > 0, running_sum, 1.0)
    tl.store(out + row * VALUE_DIM + values, (acc / total).to(out.dtype.element_ty), mask=value_inside)
    if RETURN_LSE:
        tl.store(lse + row, (running_max + tl.log2(total)) * 0.6931471805599453)


def launches(
    q,
    latent_cache,
    block_table,
    context_lens,
    scale,
    *,
    value_dim,
    window=None,
    sinks=None,
    return_lse=False,
    latent_scale=None,
    indices=None,
    config=None,
):
    """([attend launch, merge launch], what the operation returns) for arguments as in
    `wholecurve.kernels.mla_decode.mla_decode`.
    """
    require_supported(q, latent_cache, block_table, context_lens, sinks, latent_scale, indices)
    queries = q if q.dim() == 4 else q.unsqueeze(1)
    num_sequences, num_queries, num_heads, width = queries.shape
    lists = indices if indices is None or q.dim() == 4 else indices.unsqueeze(1)
    num_listed = 0 if lists is None else lists.shape[2]
    block_size = latent_cache.shape[1]
    shared = num_queries if lists is None else 1
    rope_dim = width - value_dim
    tiles = tile(shared * num_heads, value_dim, rope_dim, latent_cache.element_size(), **(config or {}))
    # from the width of the table, not from the lengths: reading those would wait for the GPU
    num_splits = triton.cdiv(block_table.shape[1] * block_size if lists is None else num_listed, tiles["SPLIT"])
    rows = (num_sequences, num_queries, num_heads, num_splits)
    partial_out, partial_max, partial_sum = (
        torch.empty(shape, dtype=torch.float32, device=q.device) for shape in ((*rows, value_dim), rows, rows)
    )
    out = torch.empty((*q.shape[:-1], value_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device) if return_lse else None
    common = dict(
        NUM_QUERIES=num_queries,
        NUM_HEADS=num_heads,
        VALUE_DIM=value_dim,
        WINDOW=window or 0,
        LISTED=lists is not None,
        SPLIT=tiles["SPLIT"],
        BLOCK_VALUE=tiles["BLOCK_VALUE"],
    )
    attend = Launch(
        attend_split_kernel,
        (num_sequences * (num_queries // shared), triton.cdiv(shared * num_heads, tiles["BLOCK_ROWS"]), num_splits),
        (
            *(queries, latent_cache, latent_cache if latent_scale is None else latent_scale, block_table),
            *(context_lens, context_lens if lists is None else lists, partial_out, partial_max, partial_sum),
            *(scale * math.log2(math.e), num_listed, num_splits),
            *(*queries.stride()[:3], *latent_cache.stride()[:2]),
            *(0 if latent_scale is None else latent_scale.stride(0), block_table.stride(0)),
            *((0, 0) if lists is None else lists.stride()[:2]),
        ),
        dict(ROPE_DIM=rope_dim, BLOCK_SIZE=block_size, HAS_SCALE=latent_scale is not None) | common | tiles,
    )
    merge = Launch(
        merge_splits_kernel,
        (num_sequences * num_queries * num_heads,),
        (
            *(partial_out, partial_max, partial_sum, context_lens, partial_sum if sinks is None else sinks),
            *(out, partial_sum if lse is None else lse, num_splits),
        ),
        dict(HAS_SINKS=sinks is not None, RETURN_LSE=return_lse, num_warps=2) | common,
    )
    return [attend, merge], (out, lse) if return_lse else out


def require_supported(q, latent_cache, block_table, context_lens, sinks, latent_scale, indices):
    """ValueError for dtypes and strides that the Triton form does not take."""
    require(q.dtype in DTYPES, f"mla_decode: the Triton form takes {', '.join(map(str, DTYPES))}, q is {q.dtype}")
    last_contiguous = [("q", q), ("latent_cache", latent_cache), ("block_table", block_table)]
    last_contiguous += [("latent_scale", latent_scale), ("indices", indices), ("sinks", sinks)]
    for name, tensor in (*last_contiguous, ("context_lens", context_lens)):
        require(
            tensor is None or tensor.stride(-1) == 1 or tensor.shape[-1] <= 1,
            f"mla_decode: last dimension of {name} is strided",
        )


def mla_decode_triton(*arguments, interpreted, **options):
    """See `wholecurve.kernels.mla_decode.mla_decode`; interpreted: not on the GPU."""
    started, outputs = launches(*arguments, **options)
    run_all(started, interpreted)
    return outputs
