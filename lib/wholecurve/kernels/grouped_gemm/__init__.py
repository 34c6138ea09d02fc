"""One matrix product per expert over rows that are sorted by expert."""

import itertools

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.grouped_gemm.cpu import grouped_gemm_cpu
from wholecurve.kernels.grouped_gemm.reference import grouped_gemm_reference

FORMS = ("reference", "cpu", "triton", "interpret")


def form_for(device):
    """Name of the form that `grouped_gemm` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def grouped_gemm(x, weights, offsets, form=None):
    """x[offsets[e] : offsets[e + 1]] times weights[e] transposed, for every expert e.

    x: [rows, in_features], any row stride, last dimension contiguous. weights: [E, out_features, in_features] in the
    dtype of x, any stride of experts and rows, last dimension contiguous. offsets: [E + 1] int32, contiguous, as of
    `moe_permute`: from 0, never falling, at most `rows`. Returns [rows, out_features], new and contiguous, in the
    dtype of x; the rows from offsets[E] on are 0. No input is written. Sums are in fp32 (fp64 for fp64 inputs) and
    rounded once; fp32 products are in full precision. What x holds from offsets[E] on does not matter.
    The weights of an expert without rows are not read.
    ValueError for shapes, strides or dtypes outside this contract; on the CPU IndexError for offsets that are none.
    """
    forms.require(x.dim() == 2, f"grouped_gemm: x must be [rows, in_features], it has shape {tuple(x.shape)}")
    forms.require(
        weights.dim() == 3 and weights.shape[2] == x.shape[1],
        f"grouped_gemm: weights must be [experts, out_features, {x.shape[1]}], they are {tuple(weights.shape)}",
    )
    forms.require(weights.dtype == x.dtype, f"grouped_gemm: weights are {weights.dtype} but x is {x.dtype}")
    num_experts = len(weights)
    forms.require(
        offsets.shape == (num_experts + 1,) and offsets.dtype == torch.int32 and offsets.is_contiguous(),
        f"grouped_gemm: offsets must be [{num_experts + 1}] int32 and contiguous, they are {tuple(offsets.shape)} "
        f"{offsets.dtype}",
    )
    for name, tensor in (("x", x), ("weights", weights)):
        forms.require(tensor.stride(-1) == 1 or x.shape[1] == 1, f"grouped_gemm: last dimension of {name} is strided")
    if x.device.type == "cpu":
        require_offsets(offsets.tolist(), len(x))
    chosen = forms.choose_form(form, x.device, FORMS)
    if chosen == "reference":
        return grouped_gemm_reference(x, weights, offsets)
    if chosen == "cpu":
        return grouped_gemm_cpu(x, weights, offsets)
    from wholecurve.kernels.grouped_gemm.kernel import grouped_gemm_triton

    return grouped_gemm_triton(x, weights, offsets, interpreted=chosen == "interpret")


def require_offsets(offsets, rows):
    """IndexError unless the offsets begin at 0, never fall and end inside the rows."""
    if offsets[0] != 0 or any(end < start for start, end in itertools.pairwise(offsets)) or offsets[-1] > rows:
        raise IndexError(f"grouped_gemm: offsets must rise from 0 to at most {rows}, they are {offsets}")
