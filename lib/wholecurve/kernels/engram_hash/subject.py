"""The n-gram hash as the laboratory sees it."""

import itertools

import torch

from wholecurve.kernels.engram_hash import FORMS, engram_hash, spec
from wholecurve.kernels.engram_hash.reference import engram_hash_reference
from wholecurve.kernels.engram_hash.tables import head_offsets, head_primes
from wholecurve.kernels.subject import Expected, Subject

PAD_ID = 2


def make(
    inputs,
    lengths,
    max_ngram,
    heads,
    has_history=False,
    vocab_size=None,
    distinct_ids=None,
    barrier_every=None,
    barrier_id=None,
    wraps=False,
    table_size=1000,
    dtype="int64",
):
    """Arguments of `engram_hash` for a case: every one of distinct_ids ids appears, each barrier_every-th is −1."""
    num_tokens, num_sequences = sum(lengths), len(lengths)
    # positions without a barrier come first in `order`, so that all ids are among them
    barriers = [] if barrier_every is None else list(range(barrier_every - 1, num_tokens, barrier_every))
    others = [position for position in range(num_tokens) if position not in set(barriers)]
    distinct = distinct_ids or max(1, len(others))
    ids = inputs.permutation(max(vocab_size or 0, distinct))[:distinct]
    token_ids = inputs.full(num_tokens, value=-1, dtype="int64")
    token_ids[inputs.fixed(others, "int64")] = ids[inputs.permutation(len(others)) % distinct]
    history = None
    if has_history:
        history = ids[inputs.integers(0, distinct, num_sequences, max_ngram - 1)]
        history[1::3, :1] = -1  # every third sequence has one token less behind it
    # multipliers that fill 63 bits wrap as soon as an id passes 2
    odd = inputs.integers(2**61 if wraps else 0, 2**62 if wraps else 2**40, max_ngram)
    primes = head_primes(1, max_ngram, heads, table_size)[0]
    return {
        "token_ids": token_ids.to(getattr(torch, dtype)),
        "cu_seqlens": inputs.fixed([0, *itertools.accumulate(lengths)], dtype),
        "multipliers": 2 * odd + 1,
        "primes": inputs.fixed(primes.tolist(), "int64"),
        "offsets": inputs.fixed(head_offsets(primes).tolist(), "int64"),
        "pad_id": PAD_ID,
        "history": None if history is None else history.to(getattr(torch, dtype)),
        "compressed_ids": None if vocab_size is None else inputs.integers(0, max(1, vocab_size // 2), vocab_size),
        "barrier_id": barrier_id,
    }


def expected(**arguments):
    """The rows, exactly."""
    return (Expected(engram_hash_reference(**arguments)),)


def eager(
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
    """What a model written in plain torch does, call by call, with all sequences at once and no wait for the GPU."""
    max_ngram, num_tokens = multipliers.shape[0], token_ids.shape[0]
    tokens = torch.arange(num_tokens, device=token_ids.device)
    sequences = torch.searchsorted(cu_seqlens[1:], tokens, right=True)
    places = tokens - cu_seqlens[sequences]
    ids, seen, mix, mixes = token_ids.long(), tokens >= 0, torch.zeros_like(tokens), []
    for back in range(max_ngram):
        here = ids[(tokens - back).clamp(min=0)]
        if history is None:
            here = torch.where(places >= back, here, -1)
        elif back:
            slots = (max_ngram - 1 - back + places).clamp(max=max_ngram - 2)
            here = torch.where(places >= back, here, history[sequences, slots].long())
        seen = seen & (here >= 0)
        if back and barrier_id is not None:
            seen = seen & (here != barrier_id)
        if compressed_ids is not None:
            here = compressed_ids[here.clamp(min=0)]
        mix = mix ^ torch.where(seen, here, pad_id) * multipliers[back]
        mixes.append(mix)
    wide = torch.stack(mixes[1:], dim=1).repeat_interleave(primes.shape[0] // (max_ngram - 1), dim=1)
    return wide % primes + offsets


SUBJECT = Subject("engram_hash", engram_hash, FORMS, spec, make, expected, baselines={"eager": eager})
