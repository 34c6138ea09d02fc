"""Speculative verification in Triton: weigh every row, judge the drafts, draw the token that follows.

Rows are weighed in chunks by sampling's kernels, also those after a rejection, which is not known before. What a
rejected draft leaves of the target's chances is read for one row per request.
"""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.cost import next_power_of_2
from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all
from wholecurve.kernels.sampling.device import (
    NEVER,
    TINY,
    drawn,
    kept,
    load_logits,
    random_words,
    row_top,
    scale_of,
    uniform,
    weights_of,
)
from wholecurve.kernels.sampling.kernel import DTYPES
from wholecurve.kernels.sampling.philox import VERIFICATION_STREAM
from wholecurve.kernels.sampling.search import filter_launches
from wholecurve.kernels.sampling.weigh import Rows, row_mass, weigh_launch


@triton.jit
def judge_kernel(
    draft_tokens,  # [B, K] int64, −1 after the last
    target_logits,  # [B · (K + 1), V]
    draft_probs,  # [B, K, V], any pointer without HAS_PROBS
    acceptance_rates,  # [B, K] fp32, any pointer without SYNTHETIC
    temperature,  # [B] fp32
    seeds,  # [B] int64
    steps,  # [B] int64
    thresholds,  # [B · (K + 1)] fp32, any pointer without HAS_FILTER
    lasts,  # [B · (K + 1)] int32, any pointer without HAS_FILTER
    tops,  # [B · (K + 1), chunks] fp32
    indexes,  # [B · (K + 1), chunks] int32
    masses,  # [B · (K + 1), chunks] fp32
    tokens,  # [B, K + 1] int64
    num_accepted,  # [B] int32
    vocab,
    chunks,
    row_stride,
    probs_stride_b,
    probs_stride_k,
    rates_stride,
    K: tl.constexpr,
    HAS_PROBS: tl.constexpr,
    HAS_FILTER: tl.constexpr,
    SYNTHETIC: tl.constexpr,
    STREAM: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    """One program handles one request: how many of its drafts stay, and its tokens but for the one that is added."""
    # 64 bits before the products: rows · V passes 2³¹
    request = tl.program_id(0).to(tl.int64)
    positions = tl.arange(0, BLOCK_POSITIONS)
    drafts = tl.load(draft_tokens + request * K + positions, mask=positions < K, other=-1)
    num_drafts = tl.min(tl.where(drafts < 0, positions, BLOCK_POSITIONS), axis=0)
    drafted = positions < num_drafts
    heat = tl.load(temperature + request)
    rows = request * (K + 1) + positions
    lanes = tl.arange(0, BLOCK_CHUNKS)[None, :]
    slots, held = rows[:, None] * chunks + lanes, drafted[:, None] & (lanes < chunks)
    words = random_words(tl.load(seeds + request), tl.load(steps + request) + positions, STREAM)
    draws = uniform(words[0], words[1])
    if SYNTHETIC:
        rates = tl.load(acceptance_rates + request * rates_stride + positions, mask=drafted, other=0.0)
        stays = draws < rates.to(tl.float64)
    else:
        chunk_tops = tl.load(tops + slots, mask=held, other=-float("inf"))
        top = tl.max(chunk_tops, axis=1)
        if heat >= TINY:
            scale = scale_of(heat)
            shares = weights_of(chunk_tops, top[:, None], scale)
            total = tl.sum(tl.load(masses + slots, mask=held, other=0.0) * shares, axis=1)
            known = drafted & (drafts < vocab)
            own = target_logits + rows * row_stride + drafts
            values = tl.load(own, mask=known, other=-float("inf")).to(tl.float32)
            chances = weights_of(values, top, scale) / tl.where(total > 0, total, 1.0)
            if HAS_FILTER:
                threshold = tl.load(thresholds + rows, mask=drafted, other=0.0)
                last = tl.load(lasts + rows, mask=drafted, other=0)
                chances = tl.where(kept(values, drafts, threshold, last), chances, 0.0)
            proposal = tl.full([BLOCK_POSITIONS], 1.0, tl.float64)
            if HAS_PROBS:
                own = draft_probs + request * probs_stride_b + positions.to(tl.int64) * probs_stride_k + drafts
                proposal = tl.load(own, mask=known, other=0.0).to(tl.float64)
            # not u < p / q: the quotient of two zeros is no number
            stays = draws * proposal < chances.to(tl.float64)
        else:
            best = tl.load(indexes + slots, mask=held, other=NEVER)
            best = tl.min(tl.where(chunk_tops == top[:, None], best, NEVER), axis=1)
            stays = drafts == best
    accepted = tl.min(tl.where(stays & drafted, BLOCK_POSITIONS, positions), axis=0)
    tl.store(num_accepted + request, accepted)
    places = tokens + request * (K + 1) + positions
    tl.store(places, tl.where(positions < accepted, drafts, -1), mask=(positions <= K) & (positions != accepted))


@triton.jit
def what_is_left(
    chances,
    ids,
    rejected,
    draft_probs,
    offset,
    start,
    vocab,
    HAS_PROBS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """max(p − q, 0) of a chunk of tokens, where q is a row of draft_probs or 1 at the rejected token."""
    if HAS_PROBS:
        proposal = tl.load(draft_probs + (offset + start) + tl.arange(0, CHUNK), mask=ids < vocab, other=0.0)
        left = tl.maximum(chances - proposal.to(tl.float32), 0.0)
    else:
        left = tl.where(ids == rejected, 0.0, chances)
    return left


@triton.jit
def residual_kernel(
    draft_tokens,  # [B, K] int64, −1 after the last
    target_logits,  # [B · (K + 1), V]
    draft_probs,  # [B, K, V], any pointer without HAS_PROBS
    temperature,  # [B] fp32
    thresholds,  # [B · (K + 1)] fp32, any pointer without HAS_FILTER
    lasts,  # [B · (K + 1)] int32, any pointer without HAS_FILTER
    tops,  # [B · (K + 1), chunks] fp32
    masses,  # [B · (K + 1), chunks] fp32
    num_accepted,  # [B] int32
    residuals,  # [B, chunks] fp32
    vocab,
    chunks,
    row_stride,
    probs_stride_b,
    probs_stride_k,
    K: tl.constexpr,
    HAS_PROBS: tl.constexpr,
    HAS_FILTER: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    """One program handles one chunk of one request with a rejected draft: the sum of what it leaves of the chances."""
    request, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    heat = tl.load(temperature + request)
    if not heat >= TINY:
        return
    position = tl.load(num_accepted + request).to(tl.int64)
    rejected = tl.load(draft_tokens + request * K + position, mask=position < K, other=-1)
    if rejected < 0:
        return
    row = request * (K + 1) + position
    scale, top = scale_of(heat), row_top(tops, row, chunks, BLOCK_CHUNKS)
    total = row_mass(tops, masses, row, top, scale, chunks, BLOCK_CHUNKS)
    start = chunk * CHUNK
    ids, _, values = load_logits(
        target_logits, target_logits, target_logits, row, start, vocab, row_stride, 0, False, CHUNK
    )
    chances = weights_of(values, top, scale) / tl.where(total > 0, total, 1.0)
    if HAS_FILTER:
        chances = tl.where(kept(values, ids, tl.load(thresholds + row), tl.load(lasts + row)), chances, 0.0)
    offset = request * probs_stride_b + position * probs_stride_k
    left = what_is_left(chances, ids, rejected, draft_probs, offset, start, vocab, HAS_PROBS, CHUNK)
    tl.store(residuals + request * chunks + chunk, tl.sum(left, axis=0))


@triton.jit
def add_kernel(
    draft_tokens,  # [B, K] int64, −1 after the last
    target_logits,  # [B · (K + 1), V]
    draft_probs,  # [B, K, V], any pointer without HAS_PROBS
    temperature,  # [B] fp32
    seeds,  # [B] int64
    steps,  # [B] int64
    thresholds,  # [B · (K + 1)] fp32, any pointer without HAS_FILTER
    lasts,  # [B · (K + 1)] int32, any pointer without HAS_FILTER
    tops,  # [B · (K + 1), chunks] fp32
    indexes,  # [B · (K + 1), chunks] int32
    masses,  # [B · (K + 1), chunks] fp32
    num_accepted,  # [B] int32
    residuals,  # [B, chunks] fp32, any pointer when SYNTHETIC
    tokens,  # [B, K + 1] int64
    vocab,
    chunks,
    row_stride,
    probs_stride_b,
    probs_stride_k,
    K: tl.constexpr,
    HAS_PROBS: tl.constexpr,
    HAS_FILTER: tl.constexpr,
    SYNTHETIC: tl.constexpr,
    STREAM: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    """One program handles one request: the token after its accepted drafts, drawn by chunk and then in the chunk."""
    request = tl.program_id(0).to(tl.int64)
    position = tl.load(num_accepted + request).to(tl.int64)
    row = request * (K + 1) + position
    lanes = tl.arange(0, BLOCK_CHUNKS)
    slots, inside = row * chunks + lanes, lanes < chunks
    chunk_tops = tl.load(tops + slots, mask=inside, other=-float("inf"))
    top = tl.max(chunk_tops, axis=0)
    best = tl.load(indexes + slots, mask=inside, other=NEVER)
    token = tl.min(tl.where(chunk_tops == top, best, NEVER), axis=0).to(tl.int64)
    token = tl.where(token == NEVER, -1, token)
    heat = tl.load(temperature + request)
    if heat >= TINY:
        scale = scale_of(heat)
        shares = tl.load(masses + slots, mask=inside, other=0.0) * weights_of(chunk_tops, top, scale)
        total = tl.sum(shares, axis=0)
        total = tl.where(total > 0, total, 1.0)
        shares /= total
        if not SYNTHETIC:
            rejected = tl.load(draft_tokens + request * K + position, mask=position < K, other=-1)
            if rejected >= 0:
                shares = tl.load(residuals + request * chunks + lanes, mask=inside, other=0.0)
        wide = shares.to(tl.float64)  # what is left of the target in its chunk keeps its bits
        _, _, high, low = random_words(tl.load(seeds + request), tl.load(steps + request) + position, STREAM)
        target = uniform(high, low) * tl.sum(wide, axis=0)
        chunk = tl.sum((tl.cumsum(wide, axis=0) <= target).to(tl.int32), axis=0)
        chunk = tl.minimum(chunk, tl.maximum(tl.max(tl.where(wide > 0, lanes, -1), axis=0), 0))
        target -= tl.sum(tl.where(lanes < chunk, wide, 0.0), axis=0)
        # a window that ends with the row reads as much as any other
        start = tl.maximum(tl.minimum(chunk * CHUNK, vocab - CHUNK), 0).to(tl.int64)
        ids, _, values = load_logits(
            target_logits, target_logits, target_logits, row, start, vocab, row_stride, 0, False, CHUNK
        )
        chances = weights_of(values, top, scale) / total
        if HAS_FILTER:
            chances = tl.where(kept(values, ids, tl.load(thresholds + row), tl.load(lasts + row)), chances, 0.0)
        if not SYNTHETIC and rejected >= 0:
            offset = request * probs_stride_b + position * probs_stride_k
            chances = what_is_left(chances, ids, rejected, draft_probs, offset, start, vocab, HAS_PROBS, CHUNK)
        choice = drawn(tl.where(ids >= chunk * CHUNK, chances, 0.0), ids, target.to(tl.float32))
        token = tl.where(choice < 0, token, choice)
    tl.store(tokens + request * (K + 1) + position, token)


def launches(
    draft_tokens,
    target_logits,
    temperature,
    seeds,
    steps,
    *,
    draft_probs=None,
    top_k=None,
    top_p=None,
    min_p=None,
    acceptance_rates=None,
    config=None,
):
    """([launches], (tokens, num_accepted)) for arguments as in `wholecurve.kernels.verification.verification`."""
    check_layout(target_logits, draft_probs)
    num_requests, positions, vocab = target_logits.shape
    device, num_drafts = target_logits.device, positions - 1
    logits = target_logits.flatten(0, 1)
    rows = Rows(logits, temperature, group=positions, drafts=draft_tokens if num_drafts else None)
    tiles = rows.plan(config)
    started, filtered = filter_launches(rows, top_k, top_p, min_p, tiles)
    weigh, (tops, indexes, masses, _, _) = weigh_launch(rows, filtered, tiles)
    tokens = torch.empty(num_requests, positions, dtype=torch.int64, device=device)
    num_accepted = torch.empty(num_requests, dtype=torch.int32, device=device)
    synthetic = acceptance_rates is not None
    residuals = logits if synthetic else torch.empty(num_requests, tiles["CHUNKS"], device=device)

    limits = filtered or (logits, logits)
    probs, rates = (logits if tensor is None else tensor for tensor in (draft_probs, acceptance_rates))
    sizes = (vocab, tiles["CHUNKS"], logits.stride(0), *((0, 0) if draft_probs is None else probs.stride()[:2]))
    drawn_with, of_drafts = (temperature, seeds, steps), (draft_tokens, logits, probs)
    options = dict(K=num_drafts, HAS_PROBS=draft_probs is not None, HAS_FILTER=bool(filtered))
    options |= {name: tiles[name] for name in ("BLOCK_CHUNKS", "num_warps")}
    judge = Launch(
        judge_kernel,
        (num_requests,),
        (
            *(*of_drafts, rates, *drawn_with, *limits, tops, indexes, masses, tokens, num_accepted),
            *(*sizes, rates.stride(0) if synthetic else 0),
        ),
        options
        | dict(
            SYNTHETIC=synthetic,
            STREAM=VERIFICATION_STREAM,
            BLOCK_POSITIONS=next_power_of_2(positions),
            num_warps=1,
        ),
    )
    residual = Launch(
        residual_kernel,
        (num_requests, tiles["CHUNKS"]),
        (*of_drafts, temperature, *limits, tops, masses, num_accepted, residuals, *sizes),
        options | dict(CHUNK=tiles["CHUNK"]),
    )
    add = Launch(
        add_kernel,
        (num_requests,),
        (*of_drafts, *drawn_with, *limits, tops, indexes, masses, num_accepted, residuals, tokens, *sizes),
        options | dict(SYNTHETIC=synthetic, STREAM=VERIFICATION_STREAM, CHUNK=tiles["CHUNK"]),
    )
    replacing = [] if synthetic or not num_drafts else [residual]
    return [*started, weigh, judge, *replacing, add], (tokens, num_accepted)


def check_layout(target_logits, draft_probs):
    """ValueError for dtypes that the kernels do not take."""
    for name, tensor in (("target_logits", target_logits), ("draft_probs", draft_probs)):
        if tensor is not None:
            taken = ", ".join(map(str, DTYPES))
            require(tensor.dtype in DTYPES, f"verification: {name} of the Triton form are {taken}, not {tensor.dtype}")


def verification_triton(*arguments, interpreted, **options):
    """See `wholecurve.kernels.verification.verification`; interpreted: not on the GPU."""
    started, outputs = launches(*arguments, **options)
    run_all(started, interpreted)
    return outputs
