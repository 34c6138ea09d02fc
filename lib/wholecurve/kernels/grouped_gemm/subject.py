"""The grouped product as the laboratory sees it."""

import itertools

import torch
import torch.nn.functional as F

from wholecurve.kernels.grouped_gemm import FORMS, grouped_gemm, spec
from wholecurve.kernels.subject import Expected, Subject


def make(inputs, rows_per_expert, in_features, out_features, tail=0, dtype="bfloat16"):
    """Arguments of `grouped_gemm` for a case; the rows behind the last expert's hold NaN."""
    spread = spec.expand_rows(rows_per_expert)
    x = inputs.normal(sum(spread) + tail, in_features, dtype=dtype)
    if not inputs.is_meta:
        x[sum(spread) :] = torch.nan
    return {
        "x": x,
        "weights": inputs.normal(len(spread), out_features, in_features, dtype=dtype, scale=in_features**-0.5),
        "offsets": inputs.fixed([0, *itertools.accumulate(spread)], "int32"),
    }


def expected(x, weights, offsets):
    """The products in float64, expert by expert; scale: Σ |x||w|.

    One rounding to the dtype of x, and sums in fp32 whose error grows with their length: an eighth of its bound, at
    least 16 roundings.
    """
    value, scale = (torch.zeros(len(x), weights.shape[1], dtype=torch.float64, device=x.device) for _ in range(2))
    bounds = offsets.tolist()
    for expert, (start, end) in enumerate(itertools.pairwise(bounds)):
        rows, matrix = x[start:end].double(), weights[expert].double().T
        value[start:end] = rows @ matrix
        scale[start:end] = rows.abs() @ matrix.abs()
    eps, sums = torch.finfo(x.dtype).eps, max(16, x.shape[1] // 8) * torch.finfo(torch.float32).eps / 2
    return (Expected(value, ulps=sums / eps, rtol=0.51 * eps, scale=scale),)


def eager(x, weights, offsets):
    """What a model written in plain torch does: a call per expert that has rows, as transformers does."""
    out = torch.zeros(len(x), weights.shape[1], dtype=x.dtype, device=x.device)
    bounds = offsets.tolist()
    for expert, (start, end) in enumerate(itertools.pairwise(bounds)):
        if end > start:
            out[start:end] = F.linear(x[start:end], weights[expert])
    return out


def library(x, weights, offsets):
    """torch's own grouped product (bfloat16 on a GPU); rows behind the last expert's are not defined."""
    return F.grouped_mm(x, weights.transpose(1, 2), offs=offsets[1:])


SUBJECT = Subject(
    "grouped_gemm",
    grouped_gemm,
    FORMS,
    spec,
    make,
    expected,
    baselines={"eager": eager, "library": library},
)
