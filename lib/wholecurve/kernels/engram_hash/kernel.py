"""The n-gram hash of Engram in Triton."""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.cost import next_power_of_2
from wholecurve.kernels.engram_hash.spec import BLOCK_SEQUENCES, CONFIGS
from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all

DEFAULT = "32 tokens"


@triton.jit
def engram_hash_kernel(
    token_ids,  # [T]
    cu_seqlens,  # [B + 1]
    history,  # [B, N − 1], contiguous, any pointer without HAS_HISTORY
    compressed_ids,  # [vocab_size], any pointer without COMPRESSED
    multipliers,  # [N]
    primes,  # [(N − 1) · HEADS]
    offsets,  # [(N − 1) · HEADS]
    rows,  # [T, (N − 1) · HEADS], contiguous
    num_tokens,
    num_sequences,
    vocab_size,
    pad_id,
    barrier_id,
    MAX_NGRAM: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_SEQUENCES: tl.constexpr,
    HAS_HISTORY: tl.constexpr,
    COMPRESSED: tl.constexpr,
    HAS_BARRIER: tl.constexpr,
):
    """One program handles all n-grams of BLOCK_TOKENS tokens."""
    tokens = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    inside = tokens < num_tokens
    # a token's sequence is how many sequences end at or before it
    sequences = tl.zeros([BLOCK_TOKENS], tl.int64)
    for first in range(0, num_sequences, BLOCK_SEQUENCES):
        numbers = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_SEQUENCES)
        known = numbers < num_sequences
        ends = tl.load(cu_seqlens + 1 + numbers, mask=known, other=0)
        ended = known[None, :] & (ends[None, :] <= tokens[:, None])
        sequences += tl.sum(ended.to(tl.int32), axis=1)
    sequences = tl.minimum(sequences, num_sequences - 1)  # tokens behind the last sequence stay in bounds too
    places = tokens - tl.load(cu_seqlens + sequences, mask=inside, other=0)
    heads = tl.arange(0, BLOCK_HEADS).to(tl.int64)
    head_inside = heads < HEADS
    mix = tl.zeros([BLOCK_TOKENS], tl.int64)
    seen = inside
    for back in tl.static_range(MAX_NGRAM):
        is_new = inside & (places >= back)
        ids = tl.load(token_ids + (tokens - back), mask=is_new, other=-1).to(tl.int64)
        is_known = is_new
        if HAS_HISTORY and back > 0:
            is_known = inside
            slots = sequences * (MAX_NGRAM - 1) + (MAX_NGRAM - 1 - back) + places
            old = tl.load(history + slots, mask=inside & (places < back), other=-1).to(tl.int64)
            ids = tl.where(is_new, ids, old)
        # what stops the look back stops it for everything before as well
        seen = seen & (ids >= 0)
        if HAS_BARRIER and back > 0:
            seen = seen & (ids != barrier_id)
        if COMPRESSED:
            entries = tl.minimum(tl.maximum(ids, 0), vocab_size - 1)
            small = tl.load(compressed_ids + entries, mask=is_known, other=0)
            ids = tl.where(ids < vocab_size, small, pad_id)
        mix ^= tl.where(seen, ids, pad_id) * tl.load(multipliers + back)
        if back > 0:
            columns = (back - 1) * HEADS + heads
            divisors = tl.load(primes + columns, mask=head_inside, other=1)[None, :]
            # a remainder has the sign of the dividend, a row is never negative
            remainders = mix[:, None] % divisors
            remainders = tl.where(remainders < 0, remainders + divisors, remainders)
            starts = tl.load(offsets + columns, mask=head_inside, other=0)[None, :]
            tl.store(
                rows + tokens[:, None] * ((MAX_NGRAM - 1) * HEADS) + columns[None, :],
                remainders + starts,
                mask=inside[:, None] & head_inside[None, :],
            )


def launches(
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
    config=None,
):
    """([launch], rows) for arguments as in `wholecurve.kernels.engram_hash.engram_hash`."""
    num_tokens, num_sequences, max_ngram = token_ids.shape[0], cu_seqlens.shape[0] - 1, multipliers.shape[0]
    for name, tensor in (
        *(("token_ids", token_ids), ("cu_seqlens", cu_seqlens), ("multipliers", multipliers), ("primes", primes)),
        *(("offsets", offsets), ("history", history), ("compressed_ids", compressed_ids)),
    ):
        require(tensor is None or tensor.is_contiguous(), f"engram_hash: {name} must be contiguous")
    rows = torch.empty(num_tokens, primes.shape[0], dtype=torch.int64, device=token_ids.device)
    heads = primes.shape[0] // (max_ngram - 1)
    block_tokens = (config or CONFIGS[DEFAULT])["block_tokens"]
    launch = Launch(
        engram_hash_kernel,
        (triton.cdiv(num_tokens, block_tokens) if heads else 0,),
        (
            *(token_ids, cu_seqlens, token_ids if history is None else history),
            *(token_ids if compressed_ids is None else compressed_ids, multipliers, primes, offsets, rows),
            *(num_tokens, num_sequences, 0 if compressed_ids is None else compressed_ids.shape[0]),
            *(pad_id, 0 if barrier_id is None else barrier_id),
        ),
        dict(
            MAX_NGRAM=max_ngram,
            HEADS=heads,
            BLOCK_HEADS=next_power_of_2(heads),
            BLOCK_TOKENS=block_tokens,
            BLOCK_SEQUENCES=BLOCK_SEQUENCES,
            HAS_HISTORY=history is not None,
            COMPRESSED=compressed_ids is not None,
            HAS_BARRIER=barrier_id is not None,
            num_warps=4,
        ),
    )
    return [launch], rows


def engram_hash_triton(*arguments, barrier_id, interpreted):
    """See `wholecurve.kernels.engram_hash.engram_hash`; interpreted: not on the GPU."""
    started, rows = launches(*arguments, barrier_id=barrier_id)
    run_all(started, interpreted)
    return rows
