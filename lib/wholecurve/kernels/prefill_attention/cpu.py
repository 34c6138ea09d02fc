"""Chunked prefill attention in torch: the queries of a sequence in tiles at fixed positions, one fused call per tile.

The bits of a query's output depend on its position alone, not on how its prompt is cut into chunks: all queries that
are computed over one range of keys (see `decode_attention/cpu.py`) run over exactly that range, and the rows of a call
are a multiple of 4, so that none of them falls into the remainder loop of the products inside. A decode step at the
same position gives the same bits.
What the fused call cannot do (a soft cap, sinks, a logarithm, fp8 caches, head sizes that differ) runs unfused in fp32
over the same tiles.
"""

import dataclasses

import torch
import torch.nn.functional as F

from wholecurve.kernels.decode_attention.cpu import (
    ROW_MULTIPLE,
    SMALLEST_WIDTH,
    add_sinks,
    attend_unfused,
    gather_plan,
    key_range,
)
from wholecurve.kernels.decode_attention.reference import first_key


@dataclasses.dataclass(frozen=True)
class Tile:
    """Queries `start` to `end` of the batch over the keys first to first + width − 1 of what was gathered.

    inside: [rows, width], the keys that each query sees; rows are rounded up to a multiple of 4.
    """

    start: int
    end: int
    first: int
    inside: torch.Tensor


@dataclasses.dataclass(frozen=True)
class SequenceTiles:
    """The tiles of one sequence over slots, the cache slots to gather for all of them."""

    slots: torch.Tensor
    tiles: list[Tile]


@dataclasses.dataclass(frozen=True)
class PrefillPlan:
    """The tiles of a batch; queries that see nothing are in none."""

    window: int | None
    sequences: list[SequenceTiles]


def plan_tiles(block_table, context_lens, cu_q, block_size, window=None):
    """The PrefillPlan of a batch, the same for every layer with this window; context_lens and cu_q are lists."""
    plans = []
    for sequence, context in enumerate(context_lens):
        # with more queries than context, the first queries see no key and stay zero
        end = cu_q[sequence + 1]
        start = max(cu_q[sequence], end - context)
        if start == end:
            continue
        base, tiles = sequence_tiles(start, end, context, window)
        slots, _ = gather_plan(
            block_table[sequence : sequence + 1],
            torch.tensor([context]),
            max(tile.first + tile.inside.shape[1] for tile in tiles),
            block_size,
            torch.tensor([base]),
            torch.tensor([first_key(context, end - start, window)]),
        )
        plans.append(SequenceTiles(slots, tiles))
    return PrefillPlan(window, plans)


def sequence_tiles(start, end, context, window):
    """(the position that `first` of these tiles counts from, tiles of queries start … end − 1 of a sequence).

    The last query sees the key at position context − 1.
    """
    base, tiles = None, []
    while start < end:
        position = context - (end - start)
        first, width = key_range(position, window)
        base = first if base is None else base
        last = first + width - 1
        if window is not None:
            last = min(last, first + SMALLEST_WIDTH + window - 2)  # from there on the range starts later
        stop = min(end, start + last - position + 1)
        keys, rows = first + torch.arange(width), torch.arange(stop - start + (start - stop) % ROW_MULTIPLE)
        positions = (position + rows).clamp(max=keys[-1])[:, None]
        inside = keys <= positions
        if window is not None:
            inside &= keys > positions - window
        tiles.append(Tile(start, stop, first - base, inside))
        start = stop
    return base, tiles


def prefill_attention_cpu(
    q,
    k_cache,
    v_cache,
    plan,
    scale,
    *,
    window=None,
    soft_cap=None,
    sinks=None,
    return_lse=False,
    k_scale=None,
    v_scale=None,
):
    """See `wholecurve.kernels.prefill_attention.prefill_attention`; plan: of `plan_tiles`, which knows the window."""
    num_kv_heads, v_dim = v_cache.shape[2:]
    caches = [cache.reshape(-1, num_kv_heads * cache.shape[3]) for cache in (k_cache, v_cache)]
    # what stays for queries that see nothing
    out = q.new_zeros(*q.shape[:2], v_dim)
    lse = out.new_full(out.shape[:2], -torch.inf, dtype=torch.promote_types(q.dtype, torch.float32))
    if sinks is not None:
        lse[:] = sinks
    fused = q.shape[2] == v_dim and q.dtype == k_cache.dtype and soft_cap is None and sinks is None and not return_lse
    for sequence in plan.sequences:
        k, v = (
            cache.index_select(0, sequence.slots).view(1, len(sequence.slots), num_kv_heads, -1).transpose(1, 2)
            for cache in caches
        )  # [1, G, keys, D]
        for tile in sequence.tiles:
            tokens, (rows, width) = slice(tile.start, tile.end), tile.inside.shape
            queries = F.pad(q[tokens].transpose(0, 1)[None], (0, 0, 0, rows - (tile.end - tile.start)))
            seen_k, seen_v = (cached[:, :, tile.first : tile.first + width] for cached in (k, v))
            if fused:
                attended = F.scaled_dot_product_attention(
                    queries, seen_k, seen_v, attn_mask=tile.inside, scale=scale, enable_gqa=True
                )  # [1, H, rows, D]
                out[tokens] = as_tokens(attended, tile)
                continue
            attended, logarithms = attend_unfused(
                queries.unflatten(1, (num_kv_heads, -1)).flatten(2, 3),  # [1, G, H / G · rows, Dk]
                *(seen_k, seen_v),
                tile.inside.repeat(q.shape[1] // num_kv_heads, 1)[None, None],
                *(scale, soft_cap, k_scale, v_scale),
            )
            attended, logarithms = (
                as_tokens(part.reshape(1, q.shape[1], rows, -1), tile) for part in (attended, logarithms)
            )
            # in fp64: of fp32 numbers torch takes some exponentials in vectors and the rest one by one, with other last
            # bits, and which ones depends on the number of rows
            attended, lse[tokens] = add_sinks(attended, logarithms.squeeze(2).double(), sinks)
            out[tokens] = attended.to(q.dtype)
    return (out, lse) if return_lse else out


def as_tokens(rows, tile):
    """[queries of the tile, H, D] from [1, H, rows, D]."""
    return rows[0, :, : tile.end - tile.start].transpose(0, 1)
