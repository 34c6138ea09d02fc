"""Which experts a token goes to and with what weights."""

from wholecurve.kernels import forms
from wholecurve.kernels.moe_router.cpu import moe_router_cpu
from wholecurve.kernels.moe_router.reference import moe_router_reference
from wholecurve.kernels.moe_router.spec import MAX_EXPERTS, SCORINGS

FORMS = ("reference", "cpu", "triton", "interpret")


def form_for(device):
    """Name of the form that `moe_router` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def moe_router(
    logits,
    top_k,
    form=None,
    *,
    scoring="softmax",
    bias=None,
    num_groups=None,
    top_groups=None,
    renormalize=True,
    scale=1.0,
):
    """The top_k experts of every token, best first, and their weights.

    logits: [T, E], any row stride, last dimension contiguous. Returns (weights [T, K] float32, experts [T, K] int32);
    no input is written. float64 logits, which the Triton form refuses, give float64 weights.
    scoring: of a logit x, in fp32. "softmax" over all experts (Qwen3-MoE; with renormalize also gpt-oss, which takes
    the softmax of the chosen logits alone), "sigmoid" (DeepSeek V3), "sqrt_softplus" = √log(1 + eˣ) (DeepSeek V4).
    bias: None or [E], added to the scores for the choice and never part of a weight.
    num_groups, top_groups: E is cut into num_groups equal groups of at least two, and only the top_groups groups with
    the largest sum of their two best score + bias take part (DeepSeek V3, arXiv 2412.19437, §2.1.2); both or neither.
    Weights are scores, with renormalize divided by (their sum + 1e-20), then times `scale`.
    The choice is by score + bias; without bias and groups by the logit itself, which is the same order and
    distinguishes where scores round to one number. Ties go to the lowest expert (group). NaN counts as −inf there, so
    experts stay distinct and inside the range whatever the logits are.
    ValueError for shapes, strides, dtypes or options outside this contract.
    """
    if problem := refusal(logits, top_k, scoring, bias, num_groups, top_groups):
        raise ValueError(f"moe_router: {problem}")
    arguments = (logits, top_k, scoring, bias, num_groups, top_groups, renormalize, scale)
    if form is None and logits.is_cpu:  # what `choose_form` says too, in a tenth of the time
        return moe_router_cpu(*arguments)
    chosen = forms.choose_form(form, logits.device, FORMS)
    if chosen in ("reference", "cpu"):
        return (moe_router_cpu if chosen == "cpu" else moe_router_reference)(*arguments)
    from wholecurve.kernels.moe_router.kernel import moe_router_triton

    return moe_router_triton(*arguments, interpreted=chosen == "interpret")


def refusal(logits, top_k, scoring, bias, num_groups, top_groups):
    """What is wrong with these arguments, None if nothing is. A text is only built for the error: that takes time."""
    if logits.dim() != 2:
        return f"logits must be [tokens, experts], they are {tuple(logits.shape)}"
    num_experts = logits.shape[1]
    if not logits.is_floating_point():
        return f"logits must be floating point, they are {logits.dtype}"
    if logits.stride(1) != 1 and num_experts != 1:
        return "last dimension of logits is strided"
    if scoring not in SCORINGS:
        return f"scoring {scoring!r} is not one of {', '.join(SCORINGS)}"
    if num_experts > MAX_EXPERTS:
        return f"{num_experts} experts, at most {MAX_EXPERTS} are possible"
    if bias is not None and (bias.shape != (num_experts,) or not bias.is_floating_point()):
        return f"bias must be [{num_experts}] floating point, it is {tuple(bias.shape)} {bias.dtype}"
    return refusal_of_groups(num_experts, top_k, num_groups, top_groups)


def refusal_of_groups(num_experts, top_k, num_groups, top_groups):
    """Why top_k experts cannot be chosen from top_groups of num_groups groups, None if they can."""
    if (num_groups is None) != (top_groups is None):
        return f"num_groups {num_groups} and top_groups {top_groups} go together"
    takes_part = num_experts
    if num_groups is not None and num_groups != 1:
        if num_groups < 1 or num_experts % num_groups or num_experts // num_groups < 2:
            return f"num_groups {num_groups} must cut {num_experts} experts into equal groups of at least 2"
        takes_part = num_experts // num_groups * top_groups
    if top_groups is not None and not 1 <= top_groups <= num_groups:
        return f"top_groups {top_groups} must be 1 to {num_groups}"
    if not 1 <= top_k <= takes_part:
        return f"top_k {top_k} must be 1 to {takes_part}, which can be chosen"
    return None
