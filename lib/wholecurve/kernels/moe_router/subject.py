"""The router as the laboratory sees it."""

import functools

import torch
import torch.nn.functional as F

from wholecurve.kernels.moe_router import FORMS, moe_router, spec
from wholecurve.kernels.moe_router.reference import (
    group_scores,
    grouped,
    moe_router_reference,
    ranking,
    scores_and_choice,
)
from wholecurve.kernels.subject import Expected, Subject

# fp32 scores that are closer than this to each other, as a share of the largest of the row, may rank either way
# around: exponentials differ in their last bits from one device to the next
NEAR = 2.0**-18


def make(
    inputs,
    num_tokens,
    num_experts,
    top_k,
    scoring="softmax",
    has_bias=False,
    num_groups=None,
    top_groups=None,
    renormalize=True,
    scale=1.0,
    dtype="bfloat16",
):
    """Arguments of `moe_router` for a case."""
    return {
        "logits": inputs.normal(num_tokens, num_experts, dtype=dtype, scale=2.0),
        "top_k": top_k,
        "scoring": scoring,
        "bias": inputs.normal(num_experts, dtype="float32", scale=0.1) if has_bias else None,
        "num_groups": num_groups,
        "top_groups": top_groups,
        "renormalize": renormalize,
        "scale": scale,
    }


def expected(
    logits, top_k, scoring="softmax", bias=None, num_groups=None, top_groups=None, renormalize=True, scale=1.0
):
    """Weights and experts in float64, where fp32 can tell which experts they are.

    Weights: 24 roundings of fp32, of which an exponential of an argument of up to 20 takes most.
    """
    wide, wide_bias = logits.double(), None if bias is None else bias.double()
    weights, experts = moe_router_reference(wide, top_k, scoring, wide_bias, num_groups, top_groups, renormalize, scale)
    clear = clear_rows(wide, top_k, scoring, wide_bias, num_groups, top_groups)[:, None].expand(weights.shape)
    return (
        Expected(weights, ulps=1.0, rtol=24 * torch.finfo(torch.float32).eps, where=clear),
        Expected(experts, where=clear),
    )


def clear_rows(logits, top_k, scoring, bias, num_groups, top_groups):
    """[T] bool: the rows in which no two candidates are near each other without being equal."""
    if bias is None and not grouped(num_groups):  # the choice is by the logits themselves
        return torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    _, choice = scores_and_choice(logits, scoring, bias, num_groups)
    allowed = NEAR * choice.abs().amax(dim=1, keepdim=True)
    near = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    if grouped(num_groups):
        groups = group_scores(choice, num_groups)
        order = ranking(groups)
        gaps = -groups.gather(1, order).diff(dim=1)[:, top_groups - 1 : top_groups]
        near |= ((gaps > 0) & (gaps <= allowed)).any(dim=1)
        inside = torch.zeros_like(groups, dtype=torch.bool).scatter_(1, order[:, :top_groups], True)
        inside = inside.repeat_interleave(choice.shape[1] // num_groups, dim=1)
        choice = choice.where(inside, -torch.inf)
    gaps = -choice.sort(dim=1, descending=True).values[:, : top_k + 1].diff(dim=1)
    return ~(near | ((gaps > 0) & (gaps <= allowed)).any(dim=1))


def top_columns(values, count):
    """Columns of the largest, as top-k finds them: equal numbers in any order, and any of them at the edge."""
    return values.topk(count, dim=-1).indices


def first_columns(values, count):
    """Columns of the largest, the lowest first where numbers are equal."""
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def eager(
    logits,
    top_k,
    scoring="softmax",
    bias=None,
    num_groups=None,
    top_groups=None,
    renormalize=True,
    scale=1.0,
    columns=first_columns,
):
    """What the routers of transformers do, call by call, with a stable sort where those leave equal numbers open.

    columns: `top_columns` for exactly what they do. It fails where logits of 16 bits are equal.
    """
    logits = logits.float()
    if scoring == "softmax":
        scores = logits.softmax(dim=-1)
    else:
        scores = logits.sigmoid() if scoring == "sigmoid" else F.softplus(logits).sqrt()
    choice = scores if bias is None else scores + bias
    if num_groups is not None:
        members = choice.view(len(choice), num_groups, -1)
        groups = columns(members.topk(2, dim=-1).values.sum(dim=-1), top_groups)
        mask = torch.zeros(len(choice), num_groups, device=choice.device).scatter_(1, groups, 1)
        choice = choice.masked_fill(~mask[:, :, None].expand(members.shape).reshape(choice.shape).bool(), -torch.inf)
    experts = columns(choice, top_k)
    weights = scores.gather(1, experts)
    if renormalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights * scale, experts


BASELINES = {"eager": eager, "eager, ties open": functools.partial(eager, columns=top_columns)}
SUBJECT = Subject("moe_router", moe_router, FORMS, spec, make, expected, baselines=BASELINES)
