"""Top-k as the laboratory sees it."""

import torch

from wholecurve.kernels.subject import Expected, Subject
from wholecurve.kernels.top_k import FORMS, spec, top_k


def make(inputs, lengths, width, k, values="normal", num_rows=None):
    """Arguments of `top_k` for a case; NaN past the end of a row."""
    num_rows = num_rows if lengths is None else len(lengths)
    scores = values_of(inputs, values, num_rows, width)
    ends = None if lengths is None else inputs.fixed(lengths, "int32")
    if ends is not None and not inputs.is_meta:
        scores.masked_fill_(torch.arange(width, device=inputs.device) >= ends[:, None], torch.nan)
    return {"scores": scores, "k": k, "lengths": ends}


def values_of(inputs, values, num_rows, width):
    """Scores [num_rows, width]: "normal", "relu" (half of them exactly 0), "equal" (all the same), "holes" (normal
    with −inf, inf and NaN in it), or "bits" (every pattern of 32 bits: subnormal, −0, NaN of either sign).
    """
    if values == "equal":
        return inputs.full(num_rows, width, value=0.5, dtype="float32")
    scores = inputs.normal(num_rows, width, dtype="float32")
    if values == "relu":
        return scores.relu_()
    if values == "holes" and not inputs.is_meta:
        chosen = inputs.integers(0, 8, num_rows, width)
        for number, hole in enumerate((-torch.inf, -torch.inf, -torch.inf, torch.inf, torch.nan)):
            scores.masked_fill_(chosen == number, hole)
    if values == "bits" and not inputs.is_meta:
        scores = inputs.integers(-(2**31), 2**31, num_rows, width, dtype="int32").view(torch.float32)
        scores[:, ::5] = -0.0
        scores[:, 1::5] = 0.0
    return scores


def expected(scores, k, lengths):
    """The set by rank: a position is taken when fewer than k others are larger, or equal and before it."""
    num_rows, width = scores.shape
    out = torch.full((num_rows, k), -1, dtype=torch.int32, device=scores.device)
    for row in range(num_rows):
        values = scores[row, : width if lengths is None else int(lengths[row])]
        values = values.where(~values.isnan(), torch.inf) + 0.0  # −0 + 0 is +0
        order = torch.argsort(-values.double(), stable=True)
        taken = torch.zeros(len(values), dtype=torch.bool, device=scores.device)
        taken[order[:k]] = True
        positions = (taken & (values > -torch.inf)).nonzero()[:, 0]
        out[row, : len(positions)] = positions.int()
    return (Expected(out),)


def eager(scores, k, lengths=None):
    """What a model file in plain torch does: mask, sort, put the chosen positions in order."""
    if lengths is not None:
        outside = torch.arange(scores.shape[1], device=scores.device) >= lengths[:, None]
        scores = scores.masked_fill(outside, -torch.inf)
    scores = scores.masked_fill(scores.isnan(), torch.inf)
    ordered, positions = scores.sort(dim=1, descending=True, stable=True)
    ordered, positions = ordered[:, :k], positions[:, :k].int()
    last = torch.iinfo(torch.int32).max
    chosen = positions.masked_fill_(ordered == -torch.inf, last).sort(dim=1).values
    chosen = torch.nn.functional.pad(chosen, (0, k - chosen.shape[1]), value=last)
    return chosen.masked_fill_(chosen == last, -1)


SUBJECT = Subject("top_k", top_k, FORMS, spec, make, expected, baselines={"eager": eager})
