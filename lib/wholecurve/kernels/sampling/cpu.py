"""Sampling on a CPU: sorted values without their places, and a running sum of blocks instead of one of tokens."""

import math

import numpy as np
import torch

from wholecurve.kernels.sampling.philox import sampling_uniform
from wholecurve.kernels.sampling.reference import TINY

BLOCK = 256  # tokens that the first of the two running sums takes as one
ELEMENTS = 2**18  # of the rows that are handled together: they stay in the cache


def sampling_cpu(
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
):
    """See `wholecurve.kernels.sampling.sampling`. No row's arithmetic depends on the rows that it is handled with."""
    num_rows, vocab = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64)
    logprobs = torch.empty(num_rows, dtype=torch.promote_types(logits.dtype, torch.float32))
    draws = sampling_uniform(seeds, steps)
    rows = max(1, ELEMENTS // vocab)
    for first in range(0, num_rows, rows):
        part = slice(first, first + rows)
        raw = values = without_nan(logits[part])
        if counts is not None:
            values = penalised(raw, counts[part], penalties[part])
        filters = [None if limits is None else limits[part] for limits in (top_k, top_p, min_p)]
        tokens[part] = choose(values, temperature[part], draws[part], *filters)
        if return_logprobs:
            logprobs[part] = log_softmax_at(raw, tokens[part])
    return (tokens, logprobs) if return_logprobs else tokens


def without_nan(logits):
    """Logits in float32 (float64 stays), −inf for NaN."""
    values = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # a maximum is NaN where any number is, and is quickly found
    return values.nan_to_num(-torch.inf, torch.inf, -torch.inf) if values.amax().isnan() else values


def penalised(values, counts, penalties):
    """`penalised` of reference.py for rows [R, V], each with its own penalties [R, 3]."""
    repetition, presence, frequency = penalties.to(values.dtype)[:, :, None].unbind(1)
    generated = counts >> 1
    repeated = torch.where(values > 0, values / repetition, values * repetition)
    subtracted = frequency * generated + presence * (generated > 0)
    return torch.where(counts > 0, repeated, values) - subtracted


def choose(values, temperature, draws, top_k=None, top_p=None, min_p=None):
    """Tokens [R] of rows of values [R, V] without NaN."""
    top = values.amax(dim=-1)
    filters = (top_k, top_p, min_p)
    warm = (temperature >= TINY) & (top > -torch.inf)
    if warm.all():
        weights = softmax_weights(values, top, temperature)
        keep_the_best(weights, values, top, temperature, *filters)
        return draw(weights, draws)
    # numpy finds the first of the largest ten times as fast
    tokens = torch.from_numpy(values.numpy().argmax(axis=-1)).where(top > -torch.inf, -1)
    if warm.any():
        filters = (None if limits is None else limits[warm] for limits in filters)
        tokens[warm] = choose(values[warm], temperature[warm], draws[warm], *filters)
    return tokens


def softmax_weights(values, top, temperature):
    """Weights [R, V] set against the largest value of the row, which has 1 also where it is +inf."""
    scale = (math.log2(math.e) / temperature.double()).to(values.dtype)[:, None]
    top = top[:, None]
    if top.isinf().any():
        return torch.where(values == top, 1.0, ((values - top) * scale).exp2_())
    return (values - top).mul_(scale).exp2_()


def keep_the_best(weights, values, top, temperature, top_k, top_p, min_p):
    """Clear, in place, the weights of rows [R, V] that the filters leave out."""
    if top_k is None and top_p is None:
        if min_p is not None:
            weights.mul_(weights >= min_p[:, None])
        return
    ranked = torch.from_numpy(np.sort(-values.numpy(), axis=-1)).neg_()  # torch sorts places too, far more slowly
    number = kept_number(softmax_weights(ranked, top, temperature), top_k, top_p, min_p)[:, None]
    vocab = values.shape[1]
    threshold = ranked.gather(1, number - 1)
    weights.mul_(values >= threshold)
    beyond = ranked.gather(1, number.clamp(max=vocab - 1))
    rows = ((beyond == threshold) & (number < vocab))[:, 0].nonzero()[:, 0]
    if len(rows):  # of the tokens at the threshold only the first few stay
        tied = values[rows] == threshold[rows]
        budget = number[rows] - (ranked[rows] > threshold[rows]).sum(dim=1, keepdim=True)
        weights[rows] = weights[rows].masked_fill_(tied & (tied.cumsum(dim=1) > budget), 0.0)


def kept_number(mass, top_k, top_p, min_p):
    """How many of the tokens in order stay [R], from their weights [R, V]: each filter keeps a beginning of them."""
    vocab = mass.shape[1]
    limit = torch.full(mass.shape[:1], vocab)
    if top_k is not None:
        limit = torch.where((top_k > 0) & (top_k < vocab), top_k, limit)
    number = limit
    if top_p is not None:
        running = mass.cumsum(dim=1, dtype=torch.float64)
        reached = top_p.double() * running.gather(1, limit[:, None] - 1)[:, 0]
        # a token stays when the sum before it is less than what is to be reached
        cut = torch.searchsorted(running, reached[:, None])[:, 0] + 1
        number = torch.minimum(number, cut.where(top_p < 1, vocab))
    if min_p is not None:
        number = torch.minimum(number, (mass >= min_p[:, None]).sum(dim=1))
    return number


def draw(weights, draws):
    """The token of each row at which the running sum passes draws [R] · the sum, for weights [R, V]."""
    num_rows, vocab = weights.shape
    if vocab <= BLOCK:
        running = weights.cumsum(dim=1, dtype=torch.float64)
        return first_beyond(running, draws[:, None] * running[:, -1:])[:, 0]
    # whole blocks, then the rest as one more that is too short
    whole = vocab // BLOCK * BLOCK
    sums = weights[:, :whole].reshape(num_rows, -1, BLOCK).sum(dim=-1)
    if whole < vocab:
        sums = torch.cat((sums, weights[:, whole:].sum(dim=-1, keepdim=True)), dim=1)
    running = sums.cumsum(dim=1, dtype=torch.float64)
    target = draws[:, None] * running[:, -1:]
    block = first_beyond(running, target)
    target -= running.gather(1, block) - sums.gather(1, block)
    ids = block * BLOCK + torch.arange(BLOCK)
    inner = weights.gather(1, ids.clamp(max=vocab - 1)).double()
    if whole < vocab:
        inner.mul_(ids < vocab)
    return (block * BLOCK + first_beyond(inner.cumsum_(dim=1), target))[:, 0]


def first_beyond(running, target):
    """The first place [R, 1] where running sums [R, N] exceed the target [R, 1]. Where rounding puts the target at the
    end none does, and the last place with a weight takes it.
    """
    last = torch.searchsorted(running, running[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(running, target, right=True), last)


def log_softmax_at(values, tokens):
    """The logarithm of the softmax of rows [R, V] at tokens [R], −inf for token −1."""
    top = values.amax(dim=-1)
    total = softmax_weights(values, top, torch.ones(len(values))).sum(dim=-1)
    own = values.gather(1, tokens[:, None].clamp(min=0))[:, 0]
    logprobs = torch.where(own == top, 0.0, own - top) - total.log()
    return logprobs.where(tokens >= 0, -torch.inf)
