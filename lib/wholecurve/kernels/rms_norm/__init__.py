"""RMSNorm with an optional residual sum in front of it."""

from wholecurve.kernels import forms
from wholecurve.kernels.rms_norm.cpu import rms_norm_cpu
from wholecurve.kernels.rms_norm.reference import rms_norm_reference

FORMS = ("reference", "cpu", "triton", "interpret")
STYLES = ("llama", "gemma")


def form_for(device):
    """Name of the form that `rms_norm` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def rms_norm(x, weight, eps, residual=None, form=None, *, style="llama"):
    """x / sqrt(mean(x²) + eps) · weight over the last dimension.

    x: [T, hidden], any row stride, last dimension contiguous. weight: [hidden], the dtype of x. residual:
    None or [T, hidden]. Returns normed [T, hidden], or (normed, new residual) when a residual is given; no
    input is written. The new residual is x + residual rounded to the dtype of x, and the variance is taken
    from that *rounded* sum, so that normalising a stored residual gives the same bits as the fused form.
    style "llama": normalise in fp32, round to the dtype of x, then multiply by weight (in the dtype of x).
    style "gemma": normalise in fp32, multiply by (1 + weight) in fp32, round once.
    A row of zeros gives zeros when eps > 0 and NaN (0 · inf) when eps = 0.
    ValueError for shapes, strides or dtypes outside this contract.
    """
    forms.require(x.dim() == 2, f"rms_norm: x must be [tokens, hidden], it has shape {tuple(x.shape)}")
    hidden = x.shape[1]
    forms.require(weight.shape == (hidden,), f"rms_norm: weight must be [{hidden}], it is {tuple(weight.shape)}")
    forms.require(weight.dtype == x.dtype, f"rms_norm: weight is {weight.dtype} but x is {x.dtype}")
    forms.require(style in STYLES, f"rms_norm: style {style!r} is not one of {', '.join(STYLES)}")
    for name, tensor in (("x", x), ("residual", residual)):
        if tensor is not None:
            forms.require(tensor.stride(1) == 1 or hidden == 1, f"rms_norm: last dimension of {name} is strided")
    if residual is not None:
        forms.require(
            residual.shape == x.shape and residual.dtype == x.dtype,
            f"rms_norm: residual must be {tuple(x.shape)} {x.dtype}, it is {tuple(residual.shape)} {residual.dtype}",
        )
    chosen = forms.choose_form(form, x.device, FORMS)
    if chosen == "reference":
        return rms_norm_reference(x, weight, eps, residual, style)
    if chosen == "cpu":
        return rms_norm_cpu(x, weight, eps, residual, style)
    from wholecurve.kernels.rms_norm.kernel import rms_norm_triton

    return rms_norm_triton(x, weight, eps, residual, style, interpreted=chosen == "interpret")
