"""RMSNorm with an optional residual sum in front of it."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.rms_norm.cpu import rms_norm_cpu
from wholecurve.kernels.rms_norm.native import rms_norm_native
from wholecurve.kernels.rms_norm.reference import rms_norm_reference

FORMS = ("reference", "cpu", "native", "triton", "interpret")
STYLES = ("llama", "gemma")
HOST_FORMS = {"reference": rms_norm_reference, "cpu": rms_norm_cpu, "native": rms_norm_native}


def form_for(device):
    """Name of the form that `rms_norm` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def rms_norm(x, weight, eps, residual=None, form=None, *, style="llama"):
    """x / sqrt(mean(x²) + eps) · weight over the last dimension.

    x: [T, hidden], any row stride, last dimension contiguous. weight: [hidden] in the dtype of x or in float32, or
    None for no weight. residual: None or [T, hidden]; it may be x itself. Returns normed [T, hidden] in the dtype of
    x, or (normed, new residual) when a residual is given; no input is written. The new residual is x + residual
    rounded to the dtype of x, and the variance is taken from that *rounded* sum, so that normalising a stored
    residual gives the same bits as the fused form.
    style "llama": normalise in fp32, round to the dtype of x, multiply by weight, round.
    style "gemma": normalise in fp32, multiply by (1 + weight) in fp32, round once. Without a weight both round once.
    A row of zeros gives zeros when eps > 0 and NaN (0 · inf) when eps = 0.
    ValueError for shapes, strides or dtypes outside this contract.
    """
    if problem := refusal(x, weight, residual, style):
        raise ValueError(f"rms_norm: {problem}")
    if form is None and x.is_cpu:  # what `choose_form` says too, in a tenth of the time
        return rms_norm_native(x, weight, eps, residual, style)
    chosen = forms.choose_form(form, x.device, FORMS)
    if run := HOST_FORMS.get(chosen):
        return run(x, weight, eps, residual, style)
    from wholecurve.kernels.rms_norm.kernel import rms_norm_triton

    return rms_norm_triton(x, weight, eps, residual, style, interpreted=chosen == "interpret")


def refusal(x, weight, residual, style):
    """What is wrong with these arguments, None if nothing is.

    A text is only built for the error: building them all costs as much as a kernel of one decode step.
    """
    if x.dim() != 2:
        return f"x must be [tokens, hidden], it has shape {tuple(x.shape)}"
    if strided(x):
        return "last dimension of x is strided"
    if residual is not None:
        if residual.shape != x.shape or residual.dtype != x.dtype:
            wanted, given = f"{tuple(x.shape)} {x.dtype}", f"{tuple(residual.shape)} {residual.dtype}"
            return f"residual must be {wanted}, it is {given}"
        if strided(residual):
            return "last dimension of residual is strided"
    return refusal_of_weight("weight", weight, x, style)


def strided(x):
    """Whether elements of the last dimension lie apart."""
    return not x.is_contiguous() and x.stride(-1) != 1 and x.shape[-1] > 1


def refusal_of_weight(name, weight, x, style):
    """What is wrong with a style, or with a weight for the last dimension of x; None if nothing is."""
    if style not in STYLES:
        return f"style {style!r} is not one of {', '.join(STYLES)}"
    if weight is None:
        return None
    if weight.dim() != 1 or weight.shape[0] != x.shape[-1]:
        return f"{name} must be [{x.shape[-1]}], it is {tuple(weight.shape)}"
    if weight.dtype != x.dtype and weight.dtype != torch.float32:
        return f"{name} is {weight.dtype} but x is {x.dtype}; it may be that or torch.float32"
    return None
