"""Product of two fp8 matrices with one scale per block."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.fp8_gemm.cpu import fp8_gemm_cpu
from wholecurve.kernels.fp8_gemm.reference import fp8_gemm_reference
from wholecurve.kernels.fp8_gemm.spec import BLOCK

FORMS = ("reference", "cpu", "triton", "interpret")


def form_for(device):
    """Name of the form that `fp8_gemm` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def fp8_gemm(a, a_scales, b, b_scales, out_dtype=torch.bfloat16, form=None, *, plan=None):
    """(a · its scales) times (b · its scales) transposed: [T, out_features].

    a: [T, in_features] float8_e4m3fn, a_scales: [T, ⌈in_features / 128⌉] float32, one per 128 values of a token. b:
    [out_features, in_features] float8_e4m3fn, b_scales: [⌈out_features / 128⌉, ⌈in_features / 128⌉] float32, one per
    128 × 128 block: what `fp8_quantize` gives with blocks (1, 128) and (128, 128). Last dimensions of a and b are
    contiguous, rows and scales have any strides (scales may be stored transposed). out_dtype: bfloat16, float16 or
    float32; sums are float32. Returns a new contiguous tensor; no input is written.
    plan: None, or a value of `spec.CONFIGS` for the Triton form. The form's own choice does not look at T, so that a
    row keeps its bits in any batch; a caller that gives up on that may choose by T.
    ValueError for shapes, strides or dtypes outside this contract, and for a plan with "tma" where
    rows do not begin at multiples of 16 bytes.
    """
    for name, tensor in (("a", a), ("b", b)):
        forms.require(tensor.dim() == 2, f"fp8_gemm: {name} must be [rows, in_features], it is {tuple(tensor.shape)}")
        forms.require(
            tensor.dtype == torch.float8_e4m3fn, f"fp8_gemm: {name} must be float8_e4m3fn, it is {tensor.dtype}"
        )
        forms.require(tensor.stride(1) == 1 or tensor.shape[1] <= 1, f"fp8_gemm: last dimension of {name} is strided")
    forms.require(a.shape[1] == b.shape[1], f"fp8_gemm: a has {a.shape[1]} in_features but b has {b.shape[1]}")
    in_blocks, out_blocks = (-(-size // BLOCK) for size in (a.shape[1], b.shape[0]))
    for name, scales, wanted in (("a", a_scales, (a.shape[0], in_blocks)), ("b", b_scales, (out_blocks, in_blocks))):
        forms.require(
            scales.shape == wanted and scales.dtype == torch.float32,
            f"fp8_gemm: {name}_scales must be {wanted} float32, they are {tuple(scales.shape)} {scales.dtype}",
        )
    forms.require(
        out_dtype in (torch.bfloat16, torch.float16, torch.float32),
        f"fp8_gemm: out_dtype must be bfloat16, float16 or float32, it is {out_dtype}",
    )
    chosen = forms.choose_form(form, a.device, FORMS)
    if chosen == "reference":
        return fp8_gemm_reference(a, a_scales, b, b_scales, out_dtype)
    if chosen == "cpu":
        return fp8_gemm_cpu(a, a_scales, b, b_scales, out_dtype)
    from wholecurve.kernels.fp8_gemm.kernel import fp8_gemm_triton

    return fp8_gemm_triton(a, a_scales, b, b_scales, out_dtype, plan, interpreted=chosen == "interpret")
