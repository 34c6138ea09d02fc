"""The weighted sum as the laboratory sees it."""

import torch

from wholecurve.kernels.moe_unpermute import FORMS, moe_unpermute, spec
from wholecurve.kernels.subject import Expected, Subject


def make(inputs, num_tokens, top_k, hidden, dropped=0, dtype="bfloat16"):
    """Arguments of `moe_unpermute` for a case: rows in random order, −1 for `dropped` of the slots.

    Rows that no slot names hold NaN.
    """
    rows = inputs.permutation(num_tokens * top_k, dtype="int32")
    y = inputs.normal(num_tokens * top_k, hidden, dtype=dtype)
    if not inputs.is_meta:
        y[rows[:dropped].long()] = torch.nan
        rows[:dropped] = -1
        rows = rows[inputs.permutation(num_tokens * top_k)]
    return {
        "y": y,
        "inverse": rows.view(num_tokens, top_k),
        "weights": inputs.uniform(num_tokens, top_k),
    }


def expected(y, inverse, weights):
    """The sum in float64, slot by slot; scale: the sum of absolute values.

    One rounding to the dtype of y, and two in fp32 per slot.
    """
    total, scale = (torch.zeros(len(inverse), y.shape[1], dtype=torch.float64, device=y.device) for _ in range(2))
    for rows, share in zip(inverse.unbind(1), weights.double().unbind(1)):
        tokens = (rows >= 0).nonzero()[:, 0]
        added = share[tokens, None] * y[rows[tokens].long()].double()
        total[tokens] += added
        scale[tokens] += added.abs()
    eps = torch.finfo(y.dtype).eps
    sums = inverse.shape[1] * torch.finfo(torch.float32).eps
    return (Expected(total, ulps=sums / eps, rtol=0.51 * eps, scale=scale),)


def eager(y, inverse, weights):
    """What a model written in plain torch does: weight every row and add it to its token, in fp32.

    transformers does the same expert by expert.
    """
    kept = inverse.flatten() >= 0
    tokens = torch.arange(len(inverse), device=y.device).repeat_interleave(inverse.shape[1])[kept]
    rows = y[inverse.flatten()[kept].long()].float() * weights.flatten()[kept, None]
    total = torch.zeros(len(inverse), y.shape[1], device=y.device)
    return total.index_add_(0, tokens, rows).to(y.dtype)


SUBJECT = Subject("moe_unpermute", moe_unpermute, FORMS, spec, make, expected, baselines={"eager": eager})
