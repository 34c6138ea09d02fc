"""Quantisation to float8_e4m3fn with one scale per block."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.fp8_quantize.cpu import fp8_quantize_cpu
from wholecurve.kernels.fp8_quantize.reference import dequantize, fp8_quantize_reference

__all__ = ["FORMS", "SCALE_FORMATS", "dequantize", "form_for", "fp8_quantize"]

FORMS = ("reference", "cpu", "triton", "interpret")
SCALE_FORMATS = ("float32", "ue8m0")


def form_for(device):
    """Name of the form that `fp8_quantize` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def fp8_quantize(x, block=(1, 128), scale_format="float32", form=None):
    """(q, scales): x ≈ q · scales, every block of x scaled so that its largest magnitude becomes 448.

    x: [M, K'], any row stride, last dimension contiguous. block: (rows, columns) that share a scale, powers of two:
    (1, 128) for activations, (128, 128) or (32, 32) for weights; blocks at the edges are smaller. Returns q [M, K']
    float8_e4m3fn, nearest even, and scales [⌈M / rows⌉, ⌈K' / columns⌉] float32, both contiguous; x is not written.
    scale_format "float32": max |x| / 448. "ue8m0": that, rounded up to a power of two.
    A scale is never below 2⁻¹²⁶, the smallest normal float32, so a block of zeros gives zeros and no 0/0. A block with
    a NaN or an infinity gets the scale inf, which makes all of it NaN when multiplied back. All forms give the same
    bits. ValueError for shapes, strides or dtypes outside this contract.
    """
    if problem := refusal(x, block, scale_format):
        raise ValueError(f"fp8_quantize: {problem}")
    chosen = forms.choose_form(form, x.device, FORMS)
    if chosen in ("reference", "cpu"):
        return (fp8_quantize_cpu if chosen == "cpu" else fp8_quantize_reference)(x, block, scale_format)
    from wholecurve.kernels.fp8_quantize.kernel import fp8_quantize_triton

    return fp8_quantize_triton(x, block, scale_format, interpreted=chosen == "interpret")


def refusal(x, block, scale_format):
    """What is wrong with these arguments, None if nothing is. A text is only built for the error: that takes time."""
    if x.dim() != 2:
        return f"x must be [rows, in_features], it has shape {tuple(x.shape)}"
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"x must be bfloat16, float16 or float32, it is {x.dtype}"
    if x.stride(1) != 1 and x.shape[1] > 1:
        return "last dimension of x is strided"
    if len(block) != 2 or not all(size > 0 and size & (size - 1) == 0 for size in block):
        return f"block must be two powers of two, it is {tuple(block)}"
    if scale_format not in SCALE_FORMATS:
        return f"scale_format {scale_format!r} is not one of {', '.join(SCALE_FORMATS)}"
    return None
