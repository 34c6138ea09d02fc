"""Paged decode attention in Triton: split the context, attend per split, merge the splits.

Flash-Decoding (Dao et al. 2023, https://pytorch.org/blog/flash-decoding/) with a split of fixed size: how a
sequence is cut depends on its own length only, so its bits do not depend on the batch it runs in.
"""

import math

import torch
import triton
import triton.language as tl

from wholecurve.kernels.decode_attention.spec import BLOCK_TOKENS, SPLIT_TOKENS, tile
from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def attend_split_kernel(
    q,  # [B, H, D]
    k_cache,  # [num_blocks, BLOCK_SIZE, G, D]
    v_cache,  # [num_blocks, BLOCK_SIZE, G, D]
    block_table,  # [B, max_blocks]
    context_lens,  # [B]
    partial_out,  # [B, H, num_splits, D] fp32, contiguous
    partial_max,  # [B, H, num_splits] fp32, contiguous, in base 2
    partial_sum,  # [B, H, num_splits] fp32, contiguous
    scale_log2,
    q_stride_b,
    q_stride_h,
    k_stride_block,
    k_stride_token,
    k_stride_g,
    v_stride_block,
    v_stride_token,
    v_stride_g,
    table_stride,
    num_splits,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    """One program handles one split of one sequence for the GROUP query heads of one key-value head."""
    # 64 bits before the products: caches and partial results pass 2³¹ elements
    sequence, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    context = tl.load(context_lens + sequence).to(tl.int32)
    start = split * SPLIT
    if start >= context:  # the merge never reads this split
        return
    heads, dims = tl.arange(0, BLOCK_GROUP), tl.arange(0, BLOCK_DIM)
    head_inside, dim_inside = heads < GROUP, dims < HEAD_DIM
    rows = kv_head * GROUP + heads
    query = tl.load(
        q + sequence * q_stride_b + rows[:, None] * q_stride_h + dims[None, :],
        mask=head_inside[:, None] & dim_inside[None, :],
        other=0.0,
    )
    running_max = tl.full([BLOCK_GROUP], -float("inf"), tl.float32)
    running_sum = tl.zeros([BLOCK_GROUP], tl.float32)
    acc = tl.zeros([BLOCK_GROUP, BLOCK_DIM], tl.float32)
    # every tile of this loop holds at least one real token, so no maximum stays at −inf
    for first in range(start, tl.minimum(context, start + SPLIT), BLOCK_TOKENS):
        positions = first + tl.arange(0, BLOCK_TOKENS)
        seen = positions < context
        entries = sequence * table_stride + positions // BLOCK_SIZE
        pages = tl.load(block_table + entries, mask=seen, other=0).to(tl.int64)[:, None]
        tokens = (positions % BLOCK_SIZE).to(tl.int64)[:, None]
        loaded = seen[:, None] & dim_inside[None, :]
        k = tl.load(
            k_cache + pages * k_stride_block + tokens * k_stride_token + kv_head * k_stride_g + dims[None, :],
            mask=loaded,
            other=0.0,
        )
        v = tl.load(
            v_cache + pages * v_stride_block + tokens * v_stride_token + kv_head * v_stride_g + dims[None, :],
            mask=loaded,
            other=0.0,
        )
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale_log2
        scores = tl.where(seen[None, :], scores, -float("inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(running_max - new_max)
        running_sum = running_sum * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        running_max = new_max
    slots = (sequence * tl.num_programs(1) * GROUP + rows) * num_splits + split
    tl.store(
        partial_out + slots[:, None] * HEAD_DIM + dims[None, :],
        acc,
        mask=head_inside[:, None] & dim_inside[None, :],
    )
    tl.store(partial_max + slots, running_max, mask=head_inside)
    tl.store(partial_sum + slots, running_sum, mask=head_inside)


@triton.jit
def merge_splits_kernel(
    partial_out,  # [B, H, num_splits, D] fp32, contiguous
    partial_max,  # [B, H, num_splits] fp32, contiguous, in base 2
    partial_sum,  # [B, H, num_splits] fp32, contiguous
    context_lens,  # [B]
    out,  # [B, H, D], contiguous
    num_splits,
    HEAD_DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """One program merges the splits of one query head of one sequence, in order."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = sequence * tl.num_programs(1) + head
    dims = tl.arange(0, BLOCK_DIM)
    dim_inside = dims < HEAD_DIM
    context = tl.load(context_lens + sequence).to(tl.int32)
    running_max = -float("inf")
    running_sum = 0.0
    acc = tl.zeros([BLOCK_DIM], tl.float32)
    for split in range(0, tl.cdiv(context, SPLIT)):
        slot = row * num_splits + split
        split_max = tl.load(partial_max + slot)
        new_max = tl.maximum(running_max, split_max)
        old_weight, new_weight = tl.exp2(running_max - new_max), tl.exp2(split_max - new_max)
        running_sum = running_sum * old_weight + tl.load(partial_sum + slot) * new_weight
        split_out = tl.load(partial_out + slot * HEAD_DIM + dims, mask=dim_inside, other=0.0)
        acc = acc * old_weight + split_out * new_weight
        running_max = new_max
    # a sequence without context has an empty sum: its output is 0, not 0/0
    acc = acc / tl.where(context > 0, running_sum, 1.0)
    tl.store(out + row * HEAD_DIM + dims, acc.to(out.dtype.element_ty), mask=dim_inside)


def decode_attention_launches(q, k_cache, v_cache, block_table, context_lens, scale, split_tokens=SPLIT_TOKENS):
    """([attend launch, merge launch], out) for inputs as in
    `wholecurve.kernels.decode_attention.decode_attention`.

    split_tokens: a multiple of the tile of BLOCK_TOKENS tokens.
    """
    num_sequences, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    require(
        q.dtype in DTYPES,
        f"decode_attention: the Triton form takes {', '.join(map(str, DTYPES))}, not {q.dtype}",
    )
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache), ("block_table", block_table)):
        require(tensor.stride(-1) == 1, f"decode_attention: last dimension of {name} is strided")
    require(context_lens.is_contiguous(), "decode_attention: context_lens must be contiguous")
    # from the width of the table, not from the lengths: reading those would wait for the GPU
    num_splits = triton.cdiv(block_table.shape[1] * block_size, split_tokens)
    rows = (num_sequences, num_heads, num_splits)
    partial_out, partial_max, partial_sum = (
        torch.empty(shape, dtype=torch.float32, device=q.device) for shape in ((*rows, head_dim), rows, rows)
    )
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    block_group, block_dim = tile(num_heads // num_kv_heads, head_dim)
    attend = Launch(
        attend_split_kernel,
        (num_sequences, num_kv_heads, num_splits),
        (
            *(q, k_cache, v_cache, block_table, context_lens, partial_out, partial_max, partial_sum),
            scale * math.log2(math.e),
            *(*q.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3], block_table.stride(0)),
            num_splits,
        ),
        dict(
            GROUP=num_heads // num_kv_heads,
            HEAD_DIM=head_dim,
            BLOCK_SIZE=block_size,
            SPLIT=split_tokens,
            BLOCK_GROUP=block_group,
            BLOCK_DIM=block_dim,
            BLOCK_TOKENS=BLOCK_TOKENS,
            num_warps=4,
            num_stages=2,
        ),
    )
    merge = Launch(
        merge_splits_kernel,
        (num_sequences, num_heads),
        (partial_out, partial_max, partial_sum, context_lens, out, num_splits),
        dict(HEAD_DIM=head_dim, SPLIT=split_tokens, BLOCK_DIM=block_dim, num_warps=2),
    )
    return [attend, merge], out


def decode_attention_triton(q, k_cache, v_cache, block_table, context_lens, scale, interpreted):
    """See `wholecurve.kernels.decode_attention.decode_attention`; interpreted: not on the GPU."""
    launches, out = decode_attention_launches(q, k_cache, v_cache, block_table, context_lens, scale)
    for launch in launches:
        launch.run(interpreted)
    return out
