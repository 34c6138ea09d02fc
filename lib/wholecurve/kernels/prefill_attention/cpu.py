"""Chunked prefill attention in torch: the queries of a sequence in tiles at fixed positions, one fused call per tile.

The bits of a query's output depend on its position alone, not on how its prompt is cut into chunks: all queries whose
context pads to one width (see `decode_attention/cpu.py`) run over exactly that width, and the rows of a call are a
multiple of 4, so that none of them falls into the remainder loop of the products inside. A decode step at the same
position gives the same bits.
"""

import dataclasses

import torch
import torch.nn.functional as F

from wholecurve.kernels.decode_attention.cpu import ROW_MULTIPLE, gather_plan, padded_width


@dataclasses.dataclass(frozen=True)
class Tile:
    """Queries `start` to `end` of the batch. inside: [rows, width], keys that each may see; rows rounded up."""

    start: int
    end: int
    inside: torch.Tensor


@dataclasses.dataclass(frozen=True)
class SequenceTiles:
    """The tiles of one sequence over slots: [width of the last tile], the cache slots to gather."""

    slots: torch.Tensor
    tiles: list[Tile]


def plan_tiles(block_table, context_lens, cu_q, block_size):
    """The SequenceTiles of a batch, the same for every layer; context_lens and cu_q are lists."""
    plans = []
    for sequence, context in enumerate(context_lens):
        # with more queries than context, the first queries see no key and stay zero
        end = cu_q[sequence + 1]
        start = max(cu_q[sequence], end - context)
        if start == end:
            continue
        slots, _ = gather_plan(
            block_table[sequence : sequence + 1], torch.tensor([context]), padded_width(context), block_size
        )
        plans.append(SequenceTiles(slots, sequence_tiles(start, end, context)))
    return plans


def sequence_tiles(start, end, context):
    """Tiles of queries start … end − 1, the last of which sees `context` keys."""
    tiles = []
    while start < end:
        seen = context - (end - start) + 1
        width = padded_width(seen)
        stop = min(end, start + width - seen + 1)
        rows = -(-(stop - start) // ROW_MULTIPLE) * ROW_MULTIPLE
        last_seen = torch.arange(seen, seen + rows)
        tiles.append(Tile(start, stop, torch.arange(width) < last_seen[:, None]))
        start = stop
    return tiles


def prefill_attention_cpu(q, k_cache, v_cache, plans, scale):
    """See `wholecurve.kernels.prefill_attention.prefill_attention`; plans: of `plan_tiles` for this batch."""
    num_kv_heads, head_dim = k_cache.shape[2:]
    caches = [cache.reshape(-1, num_kv_heads * head_dim) for cache in (k_cache, v_cache)]
    out = q.new_zeros(q.shape)
    for sequence in plans:
        k, v = (
            cache.index_select(0, sequence.slots).view(1, -1, num_kv_heads, head_dim).transpose(1, 2)
            for cache in caches
        )  # [1, G, width, D]
        for tile in sequence.tiles:
            rows, width = tile.inside.shape
            queries = q[tile.start : tile.end].transpose(0, 1)[None]  # [1, H, queries, D]
            queries = F.pad(queries, (0, 0, 0, rows - (tile.end - tile.start)))
            attended = F.scaled_dot_product_attention(
                queries, k[:, :, :width], v[:, :, :width], attn_mask=tile.inside, scale=scale, enable_gqa=True
            )
            out[tile.start : tile.end] = attended[0, :, : tile.end - tile.start].transpose(0, 1)
    return out
