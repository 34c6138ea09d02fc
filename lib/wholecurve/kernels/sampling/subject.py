"""Sampling as the laboratory sees it."""

import torch

from wholecurve.kernels.sampling import FORMS, sampling, spec
from wholecurve.kernels.sampling.philox import sampling_uniform
from wholecurve.kernels.sampling.reference import (
    TINY,
    best,
    draw,
    log_softmax_at,
    penalised,
    row_parameters,
    softmax_weights,
    without_nan,
)
from wholecurve.kernels.subject import Expected, Subject

# fp32 running sums of up to 2²⁰ weights, each with an exponential of an argument of a few tens, as a share of their sum
SUM_ERROR = 2e-6
EPS = torch.finfo(torch.float32).eps


def make(
    inputs,
    num_rows,
    vocab,
    temperature,
    top_k=None,
    top_p=None,
    min_p=None,
    penalties=None,
    logprobs=False,
    scale=3.0,
    row_gap=0,
    tied=False,
    holes=False,
    dtype="bfloat16",
):
    """Arguments of `sampling` for a case."""

    def per_row(values, number):
        return None if values is None else inputs.fixed([spec.of_row(values, row) for row in range(num_rows)], number)

    counts = None
    if penalties is not None:  # most tokens have none
        counts = (inputs.integers(0, 12, num_rows, vocab, dtype="int16") - 7).clamp(min=0)
    given = None if penalties is None else per_row(penalties, "float32").reshape(num_rows, 3)
    logits = inputs.normal(num_rows, vocab + row_gap, dtype=dtype, scale=scale)[:, :vocab]
    if tied:
        logits.round_()
    if holes:
        logits[:, ::4], logits[:, 1::4] = -torch.inf, torch.nan
    return {
        "logits": logits,
        "temperature": per_row(temperature, "float32"),
        "seeds": inputs.integers(-(2**63), 2**63 - 1, num_rows),
        "steps": inputs.integers(0, 2**40, num_rows),
        "top_k": per_row(top_k, "int32"),
        "top_p": per_row(top_p, "float32"),
        "min_p": per_row(min_p, "float32"),
        "counts": counts,
        "penalties": given,
        "return_logprobs": logprobs,
    }


def expected(
    logits,
    temperature,
    seeds,
    steps,
    top_k=None,
    top_p=None,
    min_p=None,
    counts=None,
    penalties=None,
    return_logprobs=False,
):
    """The tokens in float64 of the rows where rounding to fp32 cannot give another one, see `certain_draw`."""
    tokens, certain, logprobs, scales = [], [], [], []
    draws = sampling_uniform(seeds, steps).tolist()
    for row in range(len(logits)):
        raw = without_nan(logits[row].double())
        values, slack = raw, 0.0
        if counts is not None:
            values = penalised(raw, counts[row], penalties[row])
            slack = 4 * EPS * float(values[values.isfinite()].abs().max())
        heat, *limits = row_parameters(row, temperature, top_k, top_p, min_p)
        if heat < TINY:
            token = best(values)
            sure = not bool(near(values, values.max(), slack).any())
        else:
            token, sure = certain_draw(values, slack, heat, draws[row], *limits)
        tokens.append(token)
        certain.append(sure)
        logprobs.append(float(log_softmax_at(raw, token)) if return_logprobs else 0.0)
        scales.append(max(1.0, abs(logprobs[-1])))
    outputs = [(tokens, torch.int64), (certain, torch.bool), (logprobs, torch.float64), (scales, torch.float64)]
    tokens, certain, logprobs, scales = (
        torch.tensor(held, dtype=dtype, device=logits.device) for held, dtype in outputs
    )
    wanted = (Expected(tokens, where=certain),)
    if return_logprobs:  # an exponential and a logarithm in fp32
        wanted += (Expected(logprobs, ulps=4.0, scale=scales, where=certain),)
    return wanted


def near(values, boundary, slack):
    """Whether values are within `slack` of a boundary without being equal to it."""
    return (values != boundary) & ((values - boundary).abs() <= slack)


def certain_draw(values, slack, temperature, uniform, top_k=0, top_p=1.0, min_p=0.0):
    """(token, whether no rounding gives another one) for a row of values in float64.

    slack: how far fp32 values may be from these. The token is certain when it is drawn with all tokens that may be
    kept, when it is kept in any case, and when the running sum passes the drawn number before and after it by more
    than rounding and the tokens that may be kept or not can move it.
    """
    surely, perhaps, weights = kept_sets(values, slack, temperature, top_k, top_p, min_p)
    total = float((weights * perhaps).sum())
    doubtful = float((weights * (perhaps & ~surely)).sum())
    error = total * (SUM_ERROR + 2 * slack / temperature) + 2 * doubtful
    token, clear = clear_draw(weights * perhaps, uniform, error)
    return token, clear and bool(surely[token])


def clear_draw(weights, uniform, error):
    """(token, whether it is the same one when the running sum before or after it is off by `error`)."""
    running = weights.cumsum(0)
    total = float(running[-1])
    token = draw(weights, uniform)
    if token < 0:
        return token, True
    target, after = uniform * total, float(running[token])
    before = float(running[token - 1]) if token else 0.0
    # a sum of nothing is exactly 0, and one of all weights exactly their sum
    return token, (before == 0 or target - before > error) and (after == total or after - target > error)


def kept_sets(values, slack, temperature, top_k=0, top_p=1.0, min_p=0.0):
    """([V] bool of the tokens that are kept in any case, of those that may be, their weights)."""
    weights = softmax_weights(values, temperature)
    order = values.argsort(descending=True, stable=True)
    ranked, ordered = weights[order], values[order]
    surely = torch.ones_like(ranked, dtype=torch.bool)
    perhaps = surely.clone()
    rank = torch.arange(len(ranked), device=ranked.device)
    if 0 < top_k < len(values):
        doubtful = near(ordered, ordered[top_k - 1], slack) | near(ordered, ordered[top_k], slack)
        if doubtful.any():
            doubtful |= (ordered == ordered[top_k - 1]) | (ordered == ordered[top_k])
        surely &= (rank < top_k) & ~doubtful
        perhaps &= (rank < top_k) | doubtful
    if top_p < 1:
        mass = ranked * perhaps
        before, total = mass.cumsum(0) - mass, float(mass.sum())
        error = total * (SUM_ERROR + 2 * slack / temperature) + float((ranked * (perhaps & ~surely)).sum())
        # tokens of equal weights have exact sums where these are small whole multiples of it
        exact = top_p * total == round(top_p * total) and bool((ranked[perhaps] == 1).all())
        error = 0.0 if exact else error
        surely &= (before < top_p * total - error) | (rank == 0)
        perhaps &= (before < top_p * total + error) | (rank == 0)
    if min_p > 0:
        margin = 0.0 if min_p == 1 else 4 * EPS + 2 * EPS * float(values.max().abs()) / temperature
        surely &= ranked >= min(1.0, min_p * (1 + margin))
        perhaps &= ranked >= min_p * (1 - margin)
    places = torch.empty_like(order)
    places[order] = rank
    return surely[places], perhaps[places], weights


def eager(
    logits,
    temperature,
    seeds,
    steps,
    top_k=None,
    top_p=None,
    min_p=None,
    counts=None,
    penalties=None,
    return_logprobs=False,
):
    """The logits processors of transformers one after the other, with one sort for top-k and top-p as vLLM has it,
    then a softmax and a draw by its running sum.
    """
    raw = scores = logits.float().nan_to_num(-torch.inf, torch.inf, -torch.inf)
    if counts is not None:
        repetition, presence, frequency = penalties[:, :, None].unbind(1)
        repeated = torch.where(scores > 0, scores / repetition, scores * repetition)
        scores = torch.where(counts > 0, repeated, scores)
        scores = scores - frequency * (counts >> 1) - presence * ((counts >> 1) > 0)
    greedy = scores.argmax(dim=-1)
    scores = scores / torch.where(temperature > 0, temperature, 1.0)[:, None]
    if top_k is not None or top_p is not None:
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        if top_k is not None:
            limits = torch.where(top_k > 0, top_k, logits.shape[1])[:, None]
            ordered = ordered.masked_fill(torch.arange(logits.shape[1], device=logits.device) >= limits, -torch.inf)
        if top_p is not None:
            chances = ordered.softmax(dim=-1)
            left_out = chances.cumsum(dim=-1) - chances >= top_p[:, None]
            left_out &= (top_p < 1)[:, None]
            left_out[:, 0] = False
            ordered = ordered.masked_fill(left_out, -torch.inf)
        scores = torch.empty_like(scores).scatter_(-1, order, ordered)
    chances = scores.softmax(dim=-1)
    if min_p is not None:
        least = min_p[:, None] * chances.amax(dim=-1, keepdim=True)
        chances = scores.masked_fill(chances < least, -torch.inf).softmax(dim=-1)
    running = chances.cumsum(dim=-1)
    target = sampling_uniform(seeds, steps)[:, None].to(running.dtype) * running[:, -1:]
    last = torch.searchsorted(running, running[:, -1:].contiguous())
    drawn = torch.minimum(torch.searchsorted(running, target, right=True), last)[:, 0]
    tokens = torch.where(temperature > 0, drawn, greedy)
    if not return_logprobs:
        return tokens
    return tokens, raw.log_softmax(dim=-1).gather(1, tokens[:, None])[:, 0]


SUBJECT = Subject("sampling", sampling, FORMS, spec, make, expected, baselines={"eager": eager})
