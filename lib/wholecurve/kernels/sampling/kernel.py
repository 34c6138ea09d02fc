"""Sampling in Triton: weigh the chunks of each row, find what its filters keep, draw.

How a row is cut into chunks depends on the vocabulary alone, so its bits do not depend on the batch that it is in.
"""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import run_all
from wholecurve.kernels.sampling.device import (
    LOG2_E,
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
from wholecurve.kernels.sampling.philox import SAMPLING_STREAM
from wholecurve.kernels.sampling.search import filter_launches
from wholecurve.kernels.sampling.weigh import Rows, row_mass, weigh_launch

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def pick_kernel(
    logits,  # [rows, V]
    counts,  # [rows, V], any pointer without HAS_PENALTIES
    penalties,  # [rows, 3] fp32, any pointer without HAS_PENALTIES
    drafts,  # any pointer
    temperature,  # [rows] fp32
    seeds,  # [rows] int64
    steps,  # [rows] int64
    thresholds,  # [rows] fp32, any pointer without HAS_FILTER
    lasts,  # [rows] int32, any pointer without HAS_FILTER
    tops,  # [rows, chunks] fp32
    indexes,  # [rows, chunks] int32
    masses,  # [rows, chunks] fp32
    raw_tops,  # [rows, chunks] fp32, any pointer without HAS_LOGPROBS
    raw_masses,  # [rows, chunks] fp32, any pointer without HAS_LOGPROBS
    tokens,  # [rows] int64
    logprobs,  # [rows] fp32, any pointer without HAS_LOGPROBS
    vocab,
    chunks,
    row_stride,
    count_stride,
    GROUP: tl.constexpr,
    HAS_PENALTIES: tl.constexpr,
    HAS_FILTER: tl.constexpr,
    HAS_LOGPROBS: tl.constexpr,
    STREAM: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    """One program handles one row: it draws a chunk by the chunks' masses and then a token of that chunk."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK_CHUNKS)
    slots, inside = row * chunks + lanes, lanes < chunks
    chunk_tops = tl.load(tops + slots, mask=inside, other=-float("inf"))
    top = tl.max(chunk_tops, axis=0)
    best = tl.load(indexes + slots, mask=inside, other=NEVER)
    token = tl.min(tl.where(chunk_tops == top, best, NEVER), axis=0).to(tl.int64)
    token = tl.where(token == NEVER, -1, token)
    heat = tl.load(temperature + row)
    if heat >= TINY:
        scale = scale_of(heat)
        shares = tl.load(masses + slots, mask=inside, other=0.0) * weights_of(chunk_tops, top, scale)
        wide = shares.to(tl.float64)  # what is left of the target in its chunk keeps its bits
        high, low, _, _ = random_words(tl.load(seeds + row), tl.load(steps + row), STREAM)
        target = uniform(high, low) * tl.sum(wide, axis=0)
        chunk = tl.sum((tl.cumsum(wide, axis=0) <= target).to(tl.int32), axis=0)
        chunk = tl.minimum(chunk, tl.maximum(tl.max(tl.where(wide > 0, lanes, -1), axis=0), 0))
        target -= tl.sum(tl.where(lanes < chunk, wide, 0.0), axis=0)
        start = tl.maximum(tl.minimum(chunk * CHUNK, vocab - CHUNK), 0).to(tl.int64)
        ids, _, values = load_logits(
            logits, counts, penalties, row, start, vocab, row_stride, count_stride, HAS_PENALTIES, CHUNK
        )
        weights = tl.where(ids >= chunk * CHUNK, weights_of(values, top, scale), 0.0)
        if HAS_FILTER:
            weights = tl.where(kept(values, ids, tl.load(thresholds + row), tl.load(lasts + row)), weights, 0.0)
        choice = drawn(weights, ids, target.to(tl.float32))
        token = tl.where(choice < 0, token, choice)
    tl.store(tokens + row, token)
    if HAS_LOGPROBS:
        raw_top = row_top(raw_tops, row, chunks, BLOCK_CHUNKS)
        mass = row_mass(raw_tops, raw_masses, row, raw_top, LOG2_E, chunks, BLOCK_CHUNKS)
        own = tl.load(logits + row * row_stride + token, mask=token >= 0, other=-float("inf")).to(tl.float32)
        own = tl.where(own == raw_top, 0.0, own - raw_top)
        tl.store(logprobs + row, tl.where(token >= 0, own - tl.log(mass), -float("inf")))


def launches(
    logits,
    temperature,
    seeds,
    steps,
    *,
    top_k=None,
    top_p=None,
    min_p=None,
    counts=None,
    penalties=None,
    return_logprobs=False,
    config=None,
):
    """([launches], tokens or (tokens, logprobs)) for arguments as in `wholecurve.kernels.sampling.sampling`."""
    check_layout(logits, counts)
    rows = Rows(logits, temperature, counts=counts, penalties=penalties)
    tiles = rows.plan(config)
    started, filtered = filter_launches(rows, top_k, top_p, min_p, tiles)
    weigh, found = weigh_launch(rows, filtered, tiles, return_logprobs)
    tokens = rows.empty(dtype=torch.int64)
    logprobs = rows.empty() if return_logprobs else None
    pick = rows.launch(
        pick_kernel,
        (len(logits),),
        (seeds, steps, *(filtered or (None, None)), *found, tokens, logprobs),
        tiles=tiles,
        names=("CHUNK", "BLOCK_CHUNKS"),
        HAS_FILTER=bool(filtered),
        HAS_LOGPROBS=return_logprobs,
        STREAM=SAMPLING_STREAM,
    )
    return [*started, weigh, pick], (tokens, logprobs) if return_logprobs else tokens


def check_layout(logits, counts):
    """ValueError for what the kernels cannot address."""
    taken = ", ".join(map(str, DTYPES))
    require(logits.dtype in DTYPES, f"sampling: the Triton form takes {taken}, logits are {logits.dtype}")
    for name, tensor in (("logits", logits), ("counts", counts)):
        contiguous = tensor is None or tensor.stride(-1) == 1 or tensor.shape[-1] == 1
        require(contiguous, f"sampling: last dimension of {name} is strided")


def sampling_triton(*arguments, interpreted, **options):
    """See `wholecurve.kernels.sampling.sampling`; interpreted: not on the GPU."""
    started, outputs = launches(*arguments, **options)
    run_all(started, interpreted)
    return outputs
