"""The n-gram hash in NumPy, all sequences at once: whole numbers that wrap, and calls half as long as torch's."""

import numpy as np
import torch


def engram_hash_cpu(
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
    max_ngram = multipliers.shape[0]
    ids = ngrams(token_ids.numpy(), cu_seqlens.numpy(), max_ngram, None if history is None else history.numpy())
    seen = ids >= 0
    if barrier_id is not None:
        seen[1:] &= ids[1:] != barrier_id
    np.logical_and.accumulate(seen, axis=0, out=seen)
    if compressed_ids is not None:
        ids = compressed_ids.numpy().take(np.maximum(ids, 0)) if ids.size else ids
    with np.errstate(over="ignore"):
        mixes = np.where(seen, ids, np.int64(pad_id)) * multipliers.numpy()[:, None]
    mixes = torch.from_numpy(np.bitwise_xor.accumulate(mixes, axis=0)[1:]).T
    # division is most of the work and loops over the last dimension: over all heads at once
    return mixes.repeat_interleave(len(primes) // (max_ngram - 1), dim=1).remainder_(primes).add_(offsets)


def ngrams(tokens, bounds, max_ngram, history):
    """int64 [N, T]: each token's id, that of the one before it, and so on, −1 where there is none."""
    num_tokens, carried = len(tokens), max_ngram - 1
    lengths = np.diff(bounds)
    # every sequence with its history in front: the tokens of sequence b move up by (b + 1) · carried
    rows = np.full(num_tokens + carried * len(lengths), -1, dtype=np.int64)
    places = np.arange(num_tokens) + np.repeat(np.arange(1, len(lengths) + 1) * carried, lengths)
    rows[places] = tokens
    if history is not None and history.size:
        starts = bounds[:-1] + np.arange(len(lengths)) * carried
        rows[starts[:, None] + np.arange(carried)] = history
    return rows[places - np.arange(max_ngram)[:, None]]
