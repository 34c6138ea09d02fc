"""The n-gram hash of Engram, the definition: https://arxiv.org/abs/2601.07372, section 2.2, and its published demo."""

import torch


def engram_hash_reference(
    token_ids,
    cu_seqlens,
    multipliers,
    primes,
    offsets,
    pad_id,
    history=None,
    compressed_ids=None,
    *,
    barrier_id=None,
):
    """See `wholecurve.kernels.engram_hash.engram_hash`."""
    carried = multipliers.shape[0] - 1
    bounds = cu_seqlens.tolist()
    parts = []
    for sequence in range(len(bounds) - 1):
        tokens = token_ids[bounds[sequence] : bounds[sequence + 1]].long()
        past = tokens.new_full((carried,), -1) if history is None else history[sequence].long()
        mixes = mixed(torch.cat([past, tokens]), multipliers, pad_id, compressed_ids, barrier_id)
        parts.append(mixes.repeat_interleave(len(primes) // carried, dim=1) % primes + offsets)
    return torch.cat(parts) if parts else token_ids.new_empty((0, len(primes)), dtype=torch.int64)


def mixed(ids, multipliers, pad_id, compressed_ids, barrier_id):
    """[length − (N − 1), N − 1] int64: the mixed 2-grams, 3-grams, … that end at each id after the first N − 1."""
    carried = multipliers.shape[0] - 1
    length = len(ids) - carried
    small = ids if compressed_ids is None else torch.where(ids < 0, ids, compressed_ids[ids.clamp(min=0)])
    mix = torch.zeros(length, dtype=torch.int64, device=ids.device)
    seen = torch.ones(length, dtype=torch.bool, device=ids.device)
    columns = []
    for back in range(carried + 1):
        window = slice(carried - back, carried - back + length)
        seen = seen & (ids[window] >= 0)
        if back and barrier_id is not None:
            seen = seen & (ids[window] != barrier_id)
        mix = mix ^ torch.where(seen, small[window], pad_id) * multipliers[back]
        columns.append(mix)
    return torch.stack(columns[1:], dim=1)
