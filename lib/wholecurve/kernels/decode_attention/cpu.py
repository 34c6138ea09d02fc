"""Paged decode attention in torch: gather the cached tokens, then one fused call per padded length.

The bits of a query's output depend on its position alone, not on the batch it runs in, nor on the other query tokens
of its sequence. torch's fused attention alone does not give that, because two shapes decide the order in which it
sums; both are fixed here.
- The padded range of keys follows from the query's own position (`key_range`), so a batch runs as one call per
  distinct width. (Padded to the longest of the batch, the products inside cut the context at other places.) Short
  sequences are then not padded to the longest one either.
- The rows of a call are a multiple of 4: an odd number misaligns the scratch buffer of every second thread, and 2
  rows are summed in another order than the 4 and more of a prefill, which gives the same bits this way.
What the fused call cannot do (a soft cap, sinks, a logarithm, fp8 caches, head sizes that differ) runs unfused in fp32
over the same plan.
"""

import dataclasses
import itertools

import torch
import torch.nn.functional as F

from wholecurve.kernels.forms import require

SMALLEST_WIDTH = 64
ROW_MULTIPLE = 4


@dataclasses.dataclass(frozen=True)
class WidthGroup:
    """Sequences with equally many query tokens over one padded width.

    rows: [b · n] indices of the query tokens in [B · Q], None where they are all of them in order. slots:
    [b · width] the cache slots to gather. inside: [b, n, width], which of them each query token sees.
    """

    rows: torch.Tensor | None
    slots: torch.Tensor
    inside: torch.Tensor


@dataclasses.dataclass(frozen=True)
class DecodePlan:
    """The groups of a batch with num_queries tokens per sequence; query tokens that see nothing are in none."""

    num_queries: int
    window: int | None
    groups: list[WidthGroup]


def plan_groups(block_table, context_lens, block_size, num_queries=1, window=None):
    """The DecodePlan of a batch, the same for every layer with this window."""
    contexts = context_lens.tolist()
    check_contexts(contexts, block_table.shape[1] * block_size)
    members = {}
    for sequence, context in enumerate(contexts):
        for start, width, position, count in runs(context, num_queries, window):
            row = (sequence + 1) * num_queries - (context - position)
            members.setdefault((width, count), []).append((row, sequence, position, start))
    return DecodePlan(
        num_queries,
        window,
        [
            width_group(block_table, context_lens, block_size, num_queries, window, *key, found)
            for key, found in members.items()
        ],
    )


def check_contexts(contexts, reach):
    """ValueError for a context (of a list) that is negative or beyond what a row of the block table can name."""
    for context in (max(contexts, default=0), min(contexts, default=0)):
        require(0 <= context <= reach, f"decode_attention: a context of {context} tokens but a block_table for {reach}")


def runs(context, num_queries, window):
    """[(start of the keys, width, first position, count)] of the query tokens that share a range of keys."""
    positions = range(max(0, context - num_queries), context)
    if len(positions) == 1:
        return [(*key_range(positions[0], window), positions[0], 1)]
    groups = itertools.groupby(positions, key=lambda position: key_range(position, window))
    return [(*keys, next(run), 1 + sum(1 for _ in run)) for keys, run in groups]


def key_range(position, window=None):
    """(first key, number of keys) that the query at a position is computed over, what it does not see among them.

    With a window the range starts at a multiple of 64, so that neighbouring queries share it.
    """
    start = 0 if window is None else max(0, position - window + 1) // SMALLEST_WIDTH * SMALLEST_WIDTH
    return start, padded_width(position + 1 - start)


def padded_width(context):
    """The smallest of 64, 96, 128, 192, 256, 384, 512, ... (two per octave) that holds the context."""
    power = max(SMALLEST_WIDTH, 1 << (context - 1).bit_length())
    return power * 3 // 4 if context <= power * 3 // 4 and power > SMALLEST_WIDTH else power


def width_group(block_table, context_lens, block_size, num_queries, window, width, count, found):
    """The WidthGroup of runs of `count` query tokens: (first row, sequence, first position, start of keys) each."""
    if len(found) == len(block_table) and num_queries == 1 and window is None:  # a plain step, in few calls
        slots, inside = gather_plan(block_table, context_lens, width, block_size)
        return WidthGroup(None, slots, inside[:, None])
    first_rows, sequences, positions, starts = torch.tensor(found).unbind(1)
    rows = None
    if len(found) < len(block_table) or count < num_queries:
        rows = (first_rows[:, None] + torch.arange(count)).flatten()
        block_table = block_table.index_select(0, sequences)
    first_keys = None if window is None else (positions - (window - 1)).clamp(min=0)
    slots, inside = gather_plan(
        block_table, positions + count, width, block_size, None if window is None else starts, first_keys
    )
    inside = inside[:, None]
    if count > 1:
        positions = (positions[:, None] + torch.arange(count))[:, :, None]  # [b, n, 1]
        keys = starts[:, None, None] + torch.arange(width)
        inside = inside & (keys <= positions)
        if window is not None:
            inside &= keys > positions - window
    return WidthGroup(rows, slots, inside)


def gather_plan(block_table, context_lens, width, block_size, starts=None, first_keys=None):
    """(slots [b · width], inside [b, width]) of the keys at positions starts[b] to starts[b] + width − 1.

    starts, first_keys: [b], None for 0. A position past the context or before first_keys reads the sequence's own
    first key, never its unused table entries or the unwritten end of its last page: a masked weight is 0, but 0 times
    the NaN or inf that such a place may hold would be NaN.
    """
    positions = torch.arange(width)
    if starts is not None:
        positions = starts[:, None] + positions
    inside = positions < context_lens[:, None]
    if first_keys is not None:
        inside &= positions >= first_keys[:, None]
    positions = positions.where(inside, 0 if first_keys is None else first_keys[:, None])
    entries = positions // block_size
    pages = block_table.long().gather(1, entries)
    return ((pages - entries) * block_size + positions).flatten(), inside


def decode_attention_cpu(
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
    """See `wholecurve.kernels.decode_attention.decode_attention`; plan: of `plan_groups`, which knows the window."""
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if not cache.is_contiguous():
            raise ValueError(f"decode_attention: the cpu form takes a contiguous {name}")
    fused = q.shape[-1] == v_cache.shape[3] and q.dtype == k_cache.dtype
    fused = fused and soft_cap is None and sinks is None and not return_lse
    options = None if fused else (soft_cap, sinks, k_scale, v_scale)
    tokens = q if q.dim() == 3 else q.flatten(0, 1)  # [B · Q, H, Dk]
    if len(plan.groups) == 1 and plan.groups[0].rows is None:
        out, lse = attend(tokens, k_cache, v_cache, plan.groups[0], scale, options)
    else:
        # what stays is of query tokens that see nothing
        out = tokens.new_zeros(*tokens.shape[:2], v_cache.shape[3])
        lse = out.new_full(out.shape[:2], -torch.inf, dtype=torch.promote_types(q.dtype, torch.float32))
        if sinks is not None:
            lse[:] = sinks
        for group in plan.groups:
            attended, logarithms = attend(tokens.index_select(0, group.rows), k_cache, v_cache, group, scale, options)
            out.index_copy_(0, group.rows, attended)
            if not fused:
                lse.index_copy_(0, group.rows, logarithms)
    out = out if q.dim() == 3 else out.view(*q.shape[:3], v_cache.shape[3])
    return (out, lse.view(q.shape[:-1])) if return_lse else out


def attend(tokens, k_cache, v_cache, group, scale, options):
    """(output [b · n, H, Dv], LSE [b · n, H] or None) of the query tokens [b · n, H, Dk] of a WidthGroup.

    options: None for torch's fused attention, which gives no LSE, else (soft_cap, sinks, k_scale, v_scale).
    """
    (sequences, count, width), num_kv_heads = group.inside.shape, k_cache.shape[2]
    k, v = (
        # [b, G, width, D]
        cache.view(-1, num_kv_heads * cache.shape[3])
        .index_select(0, group.slots)
        .view(sequences, width, num_kv_heads, -1)
        .transpose(1, 2)
        for cache in (k_cache, v_cache)
    )
    # the query heads of one key-value head ride as query positions: K and V are read once per group
    rows = tokens.reshape(sequences, count, num_kv_heads, -1, tokens.shape[2]).transpose(1, 2).flatten(2, 3)
    mask, given = group.inside[:, None], rows.shape[2]  # [b, 1, n, width]
    if count > 1:
        mask = mask[:, :, :, None].expand(-1, -1, -1, given // count, -1).flatten(2, 3)
    if given % ROW_MULTIPLE:
        rows = F.pad(rows, (0, 0, 0, -given % ROW_MULTIPLE))
        mask = mask if count == 1 else F.pad(mask, (0, 0, 0, -given % ROW_MULTIPLE), value=True)
    else:
        rows = rows.clone()  # aligned memory, like the padded rows
    if options is None:
        attended = F.scaled_dot_product_attention(rows, k, v, attn_mask=mask, scale=scale)
        return as_tokens(attended[:, :, :given], count), None
    soft_cap, sinks, *scales = options
    attended, lse = (
        as_tokens(part[:, :, :given], count) for part in attend_unfused(rows, k, v, mask, scale, soft_cap, *scales)
    )
    # in fp64: of fp32 numbers torch takes some exponentials in vectors and the rest one by one, with other last bits,
    # and which ones depends on the number of rows
    attended, total = add_sinks(attended, lse.squeeze(2).double(), sinks)
    return attended.to(tokens.dtype), total.to(lse.dtype)


def as_tokens(rows, count):
    """[b · n, H, D], contiguous, from rows [b, G, n · H / G, D]."""
    sequences, num_kv_heads, given, size = rows.shape
    if count > 1:
        rows = rows.unflatten(2, (count, given // count)).transpose(1, 2)
    return rows.reshape(sequences * count, num_kv_heads * given // count, size).contiguous()


def attend_unfused(queries, k, v, mask, scale, soft_cap, k_scale, v_scale):
    """(attended [b, G, rows, Dv], LSE [b, G, rows, 1]) in fp32 (fp64 for fp64 queries); every row sees a key.

    queries: [b, G, rows, Dk], k and v: [b, G, width, D], mask: [b, 1, rows or 1, width].
    """
    wide = torch.promote_types(queries.dtype, torch.float32)
    scores = (queries.to(wide) @ k.to(wide).mT) * (scale * per_head(k_scale))
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(~mask, -torch.inf)
    attended = (scores.softmax(dim=-1) @ v.to(wide)) * per_head(v_scale)
    return attended, scores.logsumexp(dim=-1, keepdim=True)


def per_head(factor):
    """A cache scale as something to multiply [b, G, rows, …] with."""
    if factor is None:
        return 1.0
    return factor[:, None, None] if isinstance(factor, torch.Tensor) else factor


def add_sinks(attended, lse, sinks):
    """(attended [T, H, Dv], LSE [T, H]) after a logit without a value has joined each softmax."""
    if sinks is None:
        return attended, lse
    total = torch.logaddexp(lse, sinks.to(lse.dtype))
    return attended * (lse - total).exp()[:, :, None], total
