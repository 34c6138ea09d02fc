"""Paged decode attention in torch: gather the cached tokens, then one fused call per padded length.

The bits of a sequence's output do not depend on the batch it runs in. torch's fused attention alone does not
give that, because two shapes decide the order in which it sums; both are fixed here.
- The padded context follows from the sequence's own length, so a batch runs as one call per distinct width.
  (Padded to the longest of the batch, the products inside cut the context at other places.) Short sequences
  are then not padded to the longest one either.
- The group of query heads is a multiple of 4: an odd one misaligns the scratch buffer of every second thread, and 2
  rows are summed in another order than the 4 and more of a prefill, which gives the same bits this way.
"""

import dataclasses

import torch
import torch.nn.functional as F

from wholecurve.kernels.forms import require

SMALLEST_WIDTH = 64
ROW_MULTIPLE = 4


@dataclasses.dataclass(frozen=True)
class WidthGroup:
    """The sequences of a batch that are padded to one width.

    rows: [b] their indices in the batch. slots: [b · width] the cache slots to gather. inside: [b, width],
    which of them count.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    inside: torch.Tensor


def plan_groups(block_table, context_lens, block_size):
    """The WidthGroups of a batch, the same for every layer; sequences without context are in none."""
    contexts, reach = context_lens.tolist(), block_table.shape[1] * block_size
    longest = max(contexts, default=0)
    require(longest <= reach, f"decode_attention: a context of {longest} tokens but a block_table for {reach}")
    members = {}
    for sequence, context in enumerate(contexts):
        if context:
            members.setdefault(padded_width(context), []).append(sequence)
    groups = []
    for width, sequences in members.items():
        rows = torch.tensor(sequences)
        table, lens = block_table.index_select(0, rows), context_lens.index_select(0, rows)
        groups.append(WidthGroup(rows, *gather_plan(table, lens, width, block_size)))
    return groups


def padded_width(context):
    """The smallest of 64, 96, 128, 192, 256, 384, 512, ... (two per octave) that holds the context."""
    power = max(SMALLEST_WIDTH, 1 << (context - 1).bit_length())
    return power * 3 // 4 if context <= power * 3 // 4 and power > SMALLEST_WIDTH else power


def gather_plan(block_table, context_lens, width, block_size):
    """(slots, inside) of a WidthGroup.

    A position past the context reads the sequence's own first token, never its unused table entries or the
    unwritten end of its last page: a masked weight is 0, but 0 times the NaN or inf that such a place may
    hold would be NaN.
    """
    positions = torch.arange(width)
    inside = positions < context_lens[:, None]
    pages = block_table[:, : -(-width // block_size)]
    slots = (pages[:, :, None] * block_size + torch.arange(block_size)).flatten(1)[:, :width]
    slots = F.pad(slots, (0, width - slots.shape[1])).where(inside, pages[:, :1] * block_size)
    return slots.flatten(), inside


def decode_attention_cpu(q, k_cache, v_cache, groups, scale):
    """See `wholecurve.kernels.decode_attention.decode_attention`; groups: of `plan_groups` for this batch."""
    num_kv_heads, head_dim = k_cache.shape[2:]
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        require(cache.is_contiguous(), f"decode_attention: the cpu form takes a contiguous {name}")
    k_tokens, v_tokens = (cache.view(-1, num_kv_heads * head_dim) for cache in (k_cache, v_cache))
    out = q.new_zeros(q.shape)  # what stays for sequences without context
    for group in groups:
        shape = (*group.inside.shape, num_kv_heads, head_dim)
        k, v = (tokens.index_select(0, group.slots).view(shape) for tokens in (k_tokens, v_tokens))
        # the query heads of one key-value head ride as query positions: K and V are read once per group
        queries = q.index_select(0, group.rows).view(len(group.rows), num_kv_heads, -1, head_dim)
        attended = attend_grouped(queries, k, v, group.inside, scale)
        out.index_copy_(0, group.rows, attended.reshape(len(group.rows), -1, head_dim))
    return out


def attend_grouped(q, k, v, inside, scale):
    """Fused attention with a group of 4, 8, … query heads (see the top of this file).

    q: [B, G, R, D] with R query heads per key-value head, k and v: [B, width, G, D], inside: [B, width].
    Returns [B, G, R, D].
    """
    group = q.shape[2]
    if group % ROW_MULTIPLE:
        q = F.pad(q, (0, 0, 0, -group % ROW_MULTIPLE))
    mask, k, v = inside[:, None, None, :], k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)[:, :, :group]
