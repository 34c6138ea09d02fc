"""The router, the definition.

Softmax: Qwen3-MoE (`Qwen3MoeTopKRouter` of transformers). Sigmoid, bias and groups: DeepSeek V3, arXiv 2412.19437,
equations 12 to 16. √softplus: DeepSeek V4 (`DeepseekV4TopKRouter` of transformers).
"""

import torch
import torch.nn.functional as F


def moe_router_reference(
    logits,
    top_k,
    scoring="softmax",
    bias=None,
    num_groups=None,
    top_groups=None,
    renormalize=True,
    scale=1.0,
):
    """See `wholecurve.kernels.moe_router.moe_router`. Scores in fp32 (fp64, weights too, for fp64 logits)."""
    scores, choice = scores_and_choice(logits, scoring, bias, num_groups)
    experts = choose(choice, top_k, num_groups, top_groups)
    weights = scores.gather(1, experts)
    if renormalize:
        weights = weights / (weights.sum(dim=1, keepdim=True) + 1e-20)
    return weights * scale, experts.int()


def choose(choice, top_k, num_groups, top_groups):
    """[T, K]: the experts with the largest `choice`, among those of the best groups if groups restrict it."""
    excluded = None
    if grouped(num_groups):
        best_groups = ranking(group_scores(choice, num_groups))[:, :top_groups]
        group_excluded = torch.ones(len(choice), num_groups, dtype=torch.bool, device=choice.device)
        group_excluded.scatter_(1, best_groups, False)
        excluded = group_excluded.repeat_interleave(choice.shape[1] // num_groups, dim=1)
    return ranking(choice, excluded)[:, :top_k]


def scores_and_choice(logits, scoring, bias, num_groups):
    """(scores, what is chosen by), [T, E] each."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if scoring == "softmax":
        scores = logits.softmax(dim=1)
    elif scoring == "sigmoid":
        scores = logits.sigmoid()
    else:
        scores = F.softplus(logits, threshold=40).sqrt()
    choice = scores if grouped(num_groups) else logits
    if bias is not None:
        choice = scores + bias.to(scores.dtype)
    return scores, choice


def grouped(num_groups):
    """Whether groups restrict the choice: one group of all experts does not."""
    return num_groups is not None and num_groups > 1


def group_scores(choice, num_groups):
    """[T, num_groups]: the sum of the two best of each group."""
    choice = choice.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    return choice.view(len(choice), num_groups, -1).topk(2, dim=2).values.sum(dim=2)


def ranking(values, excluded=None):
    """Indices by descending value, the lowest first where values are equal; the excluded ones behind all others."""
    values = values.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    order = values.sort(dim=1, descending=True, stable=True).indices
    if excluded is None:
        return order
    return order.gather(1, excluded.gather(1, order).int().argsort(dim=1, stable=True))
