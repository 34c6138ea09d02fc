"""Scores of the indexer in Triton: the heads of one token stay where they are while the keys stream past."""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.indexer_scores.spec import tile
from wholecurve.kernels.launch import Launch, run_all

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn)


@triton.jit
def indexer_scores_kernel(
    q,  # [T, H, D]
    weights,  # [T, H] fp32
    k_cache,  # [num_blocks, BLOCK_SIZE, D]
    block_table,  # [B, max_blocks]
    sequences,  # [T]
    lengths,  # [T]
    q_scale,  # [T, H] fp32, any pointer without HAS_Q_SCALE
    k_scale,  # [num_blocks, BLOCK_SIZE] fp32, any pointer without HAS_K_SCALE
    out,  # [T, max_context] fp32, contiguous
    max_context,
    q_stride_t,
    q_stride_h,
    weights_stride,
    k_stride_block,
    k_stride_token,
    table_stride,
    q_scale_stride,
    k_scale_stride,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    COMPRESS: tl.constexpr,
    HAS_Q_SCALE: tl.constexpr,
    HAS_K_SCALE: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """One program handles SPAN positions of the context of one row."""
    # 64 bits before the products: rows · context and pages · stride pass 2³¹
    row, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * SPAN
    stop = tl.minimum(start + SPAN, max_context)
    visible = tl.minimum(tl.load(lengths + row).to(tl.int32) // COMPRESS, stop)
    row_out = out + row * max_context
    heads, dims, lanes = tl.arange(0, BLOCK_HEADS), tl.arange(0, BLOCK_DIM), tl.arange(0, BLOCK_KEYS)
    if visible > start:
        sequence = tl.load(sequences + row).to(tl.int64)
        head_inside, dim_inside = heads < NUM_HEADS, dims < HEAD_DIM
        query = tl.load(
            q + row * q_stride_t + heads.to(tl.int64)[:, None] * q_stride_h + dims[None, :],
            mask=head_inside[:, None] & dim_inside[None, :],
            other=0.0,
        )
        weight = tl.load(weights + row * weights_stride + heads, mask=head_inside, other=0.0)
        if HAS_Q_SCALE:
            weight *= tl.load(q_scale + row * q_scale_stride + heads, mask=head_inside, other=0.0)
        for first in range(start, visible, BLOCK_KEYS):
            positions = first + lanes
            seen = positions < visible
            entries = sequence * table_stride + positions // BLOCK_SIZE
            pages = tl.load(block_table + entries, mask=seen, other=0).to(tl.int64)
            tokens = (positions % BLOCK_SIZE).to(tl.int64)
            keys = tl.load(
                k_cache + (pages * k_stride_block + tokens * k_stride_token)[:, None] + dims[None, :],
                mask=seen[:, None] & dim_inside[None, :],
                other=0.0,
            )
            # keys first: few heads then fill the narrow side of a product, and their sum stays in few threads
            products = tl.dot(keys.to(query.dtype), tl.trans(query), input_precision="ieee")
            # unlike a maximum with 0 this keeps NaN
            scores = tl.sum(tl.where(products < 0, 0.0, products) * weight[None, :], axis=1)
            if HAS_K_SCALE:
                scores *= tl.load(k_scale + pages * k_scale_stride + tokens, mask=seen, other=0.0)
            scores = tl.where(seen, scores, -float("inf"))
            tl.store(row_out + positions.to(tl.int64), scores, mask=positions < stop)
    # blocks that hold no visible position at all
    hidden = start + tl.cdiv(tl.maximum(visible - start, 0), BLOCK_KEYS) * BLOCK_KEYS
    for first in range(hidden, stop, BLOCK_KEYS):
        positions = first + lanes
        tl.store(row_out + positions.to(tl.int64), -float("inf"), mask=positions < stop)


def launches(
    q,
    weights,
    k_cache,
    block_table,
    sequences,
    lengths,
    *,
    max_context=None,
    compress=1,
    q_scale=None,
    k_scale=None,
    config=None,
):
    """([launch], out) for arguments as in `wholecurve.kernels.indexer_scores.indexer_scores`."""
    require(q.dtype in DTYPES, f"indexer_scores: the Triton form takes {', '.join(map(str, DTYPES))}, q is {q.dtype}")
    last_contiguous = [("q", q), ("weights", weights), ("k_cache", k_cache), ("block_table", block_table)]
    last_contiguous += [("sequences", sequences), ("lengths", lengths), ("q_scale", q_scale), ("k_scale", k_scale)]
    for name, tensor in last_contiguous:
        require(
            tensor is None or tensor.stride(-1) == 1 or tensor.shape[-1] <= 1,
            f"indexer_scores: last dimension of {name} is strided",
        )
    num_rows, num_heads, head_dim = q.shape
    block_size = k_cache.shape[1]
    width = block_table.shape[1] * block_size if max_context is None else max_context
    out = torch.empty((num_rows, width), dtype=torch.float32, device=q.device)
    tiles = tile(num_heads, head_dim, **(config or {}))
    launch = Launch(
        indexer_scores_kernel,
        (num_rows, triton.cdiv(width, tiles["SPAN"])),
        (
            *(q, weights, k_cache, block_table, sequences, lengths),
            *(weights if q_scale is None else q_scale, weights if k_scale is None else k_scale, out, width),
            *(*q.stride()[:2], weights.stride(0), *k_cache.stride()[:2], block_table.stride(0)),
            *(0 if q_scale is None else q_scale.stride(0), 0 if k_scale is None else k_scale.stride(0)),
        ),
        dict(
            NUM_HEADS=num_heads,
            HEAD_DIM=head_dim,
            BLOCK_SIZE=block_size,
            COMPRESS=compress,
            HAS_Q_SCALE=q_scale is not None,
            HAS_K_SCALE=k_scale is not None,
        )
        | tiles,
    )
    return [launch], out


def indexer_scores_triton(*arguments, interpreted, **options):
    """See `wholecurve.kernels.indexer_scores.indexer_scores`; interpreted: not on the GPU."""
    started, out = launches(*arguments, **options)
    run_all(started, interpreted)
    return out
