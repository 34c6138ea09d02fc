"""Sampling, the definition, row by row in float64.

Top-k: Fan et al. 2018, https://arxiv.org/abs/1805.04833, section 5.3. Top-p: Holtzman et al. 2019,
https://arxiv.org/abs/1904.09751, section 3.1. Min-p: Nguyen et al. 2024, https://arxiv.org/abs/2407.01082, section 3.
Repetition penalty: Keskar et al. 2019, https://arxiv.org/abs/1909.05858, section 4.1.
"""

import torch

from wholecurve.kernels.sampling.philox import sampling_uniform

# below float32's smallest normal number, which a GPU may flush to 0, a temperature is greedy
TINY = 2.0**-126


def sampling_reference(
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
    """See `wholecurve.kernels.sampling.sampling`."""
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(len(logits), dtype=torch.promote_types(logits.dtype, torch.float32), device=logits.device)
    draws = sampling_uniform(seeds, steps)
    for row in range(len(logits)):
        raw = without_nan(logits[row].double())
        values = raw if counts is None else penalised(raw, counts[row], penalties[row])
        heat, *limits = row_parameters(row, temperature, top_k, top_p, min_p)
        tokens[row] = best(values) if heat < TINY else draw(chances(values, heat, *limits), draws[row])
        logprobs[row] = log_softmax_at(raw, int(tokens[row]))
    return (tokens, logprobs) if return_logprobs else tokens


def row_parameters(row, temperature, top_k=None, top_p=None, min_p=None):
    """(temperature, top_k, top_p, min_p) of one row as numbers; a filter that there is not keeps all."""
    filters = ((top_k, 0), (top_p, 1.0), (min_p, 0.0))
    return float(temperature[row]), *(neutral if limits is None else limits[row].item() for limits, neutral in filters)


def without_nan(values):
    """NaN counts as −inf: a token that cannot be chosen."""
    return values.where(~values.isnan(), -torch.inf)


def penalised(values, counts, penalties):
    """Logits [V] after the penalties (repetition, presence, frequency) for counts as in `sampling`."""
    repetition, presence, frequency = penalties.to(values.dtype)
    generated = counts >> 1
    repeated = torch.where(values > 0, values / repetition, values * repetition)
    values = torch.where(counts > 0, repeated, values)
    return values - (frequency * generated + presence * (generated > 0))


def best(values):
    """The lowest id of the largest value, −1 where all are −inf."""
    top = values.max()
    return int((values == top).nonzero()[0]) if top > -torch.inf else -1


def softmax_weights(values, temperature):
    """exp((values − largest) / temperature): the largest has 1, and so have several that are +inf."""
    top = values.max()
    weights = torch.where(values == top, 1.0, ((values - top) / temperature).exp())
    return torch.where(values > -torch.inf, weights, 0.0)


def chances(values, temperature, top_k=0, top_p=1.0, min_p=0.0):
    """Weights [V] of a softmax without its denominator, 0 for tokens that a filter leaves out."""
    weights = softmax_weights(values, temperature)
    order = values.argsort(descending=True, stable=True)  # equal values: the lowest id first
    ranked = weights[order]
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if 0 < top_k < len(values):
        keep[top_k:] = False
    if top_p < 1:
        mass = ranked * keep
        keep &= mass.cumsum(0) - mass < top_p * mass.sum()
        keep[0] = True
    keep &= ranked >= min_p
    return torch.zeros_like(weights).index_put((order[keep],), ranked[keep])


def draw(weights, uniform):
    """The first token at which the running sum of the weights exceeds uniform · their sum; −1 without any weight."""
    running = weights.cumsum(0)
    if running[-1] == 0:
        return -1
    token = int(torch.searchsorted(running, uniform * running[-1], right=True))
    return min(token, int(weights.nonzero()[-1]))


def log_softmax_at(values, token):
    """The logarithm of the softmax at a token, −inf for token −1."""
    if token < 0:
        return -torch.inf
    weights = softmax_weights(values, 1.0)
    at_top = values[token] == values.max()
    return (0.0 if at_top else values[token] - values.max()) - weights.sum().log()
