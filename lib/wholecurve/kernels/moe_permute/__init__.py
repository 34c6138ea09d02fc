"""Rows of tokens copied next to each other by expert."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.moe_permute.cpu import moe_permute_cpu
from wholecurve.kernels.moe_permute.reference import moe_permute_reference

FORMS = ("reference", "cpu", "triton", "interpret")


def form_for(device):
    """Name of the form that `moe_permute` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def moe_permute(x, experts, num_experts, form=None, *, first_expert=0):
    """The row of every (token, slot) copied to its place in the order of experts, then tokens, then slots.

    x: [T, hidden] of any dtype, any row stride, last dimension contiguous. experts: [T, K] int32 or int64, contiguous,
    as of `moe_router`. num_experts: E, how many experts are here: those with the numbers first_expert …
    first_expert + E − 1 (expert parallelism). Every other number is dropped, such as −1 of padding.
    Returns, all new and contiguous; no input is written:
    - permuted [T·K, hidden]: expert after expert; the rows from offsets[E] on are 0;
    - offsets [E + 1] int32: expert first_expert + e has the rows offsets[e] … offsets[e + 1] − 1;
    - order [T·K] int32: t·K + k of the (token, slot) in each row, −1 from offsets[E] on;
    - inverse [T, K] int32: the row of each (token, slot), −1 where it is dropped.
    A token that names an expert twice has two rows. ValueError for shapes, strides or dtypes outside this contract.
    """
    forms.require(x.dim() == 2, f"moe_permute: x must be [tokens, hidden], it has shape {tuple(x.shape)}")
    forms.require(x.stride(1) == 1 or x.shape[1] == 1, "moe_permute: last dimension of x is strided")
    forms.require(
        experts.dim() == 2 and len(experts) == len(x) and experts.shape[1] >= 1,
        f"moe_permute: experts must be [{len(x)}, top_k], they are {tuple(experts.shape)}",
    )
    forms.require(
        experts.dtype in (torch.int32, torch.int64),
        f"moe_permute: experts must be int32 or int64, they are {experts.dtype}",
    )
    forms.require(experts.is_contiguous(), "moe_permute: experts must be contiguous")
    forms.require(num_experts >= 1, f"moe_permute: num_experts must be at least 1, it is {num_experts}")
    forms.require(experts.numel() < 2**31, f"moe_permute: {experts.numel()} rows, int32 maps hold fewer than 2³¹")
    chosen = forms.choose_form(form, x.device, FORMS)
    if chosen == "reference":
        return moe_permute_reference(x, experts, num_experts, first_expert)
    if chosen == "cpu":
        return moe_permute_cpu(x, experts, num_experts, first_expert)
    from wholecurve.kernels.moe_permute.kernel import moe_permute_triton

    return moe_permute_triton(x, experts, num_experts, first_expert, interpreted=chosen == "interpret")
