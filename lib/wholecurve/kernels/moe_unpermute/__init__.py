"""The outputs of a token's experts added up with their weights."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.moe_unpermute.cpu import moe_unpermute_cpu
from wholecurve.kernels.moe_unpermute.reference import moe_unpermute_reference

FORMS = ("reference", "cpu", "triton", "interpret")


def form_for(device):
    """Name of the form that `moe_unpermute` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def moe_unpermute(y, inverse, weights, form=None):
    """Σ_k weights[t, k] · y[inverse[t, k]] for every token t.

    y: [rows, hidden], any row stride, last dimension contiguous. inverse: [T, K] int32, contiguous, as of
    `moe_permute`: the row of each (token, slot), −1 for none, which adds nothing whatever its weight is. weights:
    [T, K] float32, contiguous, as of `moe_router`. Returns [T, hidden] in the dtype of y; no input is written.
    Products and sums are in fp32 in the order of k and rounded once; a token without any row is 0. Two slots may name
    one row or one expert, both count.
    ValueError for shapes, strides or dtypes outside this contract; on the CPU IndexError for a row that y lacks.
    """
    forms.require(y.dim() == 2, f"moe_unpermute: y must be [rows, hidden], it has shape {tuple(y.shape)}")
    forms.require(y.stride(1) == 1 or y.shape[1] == 1, "moe_unpermute: last dimension of y is strided")
    forms.require(
        inverse.dim() == 2 and inverse.shape[1] >= 1 and inverse.dtype == torch.int32 and inverse.is_contiguous(),
        f"moe_unpermute: inverse must be [tokens, top_k] int32 and contiguous, it is {tuple(inverse.shape)} "
        f"{inverse.dtype} with strides {inverse.stride()}",
    )
    forms.require(
        weights.shape == inverse.shape and weights.dtype == torch.float32 and weights.is_contiguous(),
        f"moe_unpermute: weights must be {list(inverse.shape)} float32 and contiguous, they are "
        f"{tuple(weights.shape)} {weights.dtype} with strides {weights.stride()}",
    )
    if y.device.type == "cpu" and inverse.numel():
        low, high = (int(bound) for bound in inverse.aminmax())
        if low < -1 or high >= len(y):
            raise IndexError(f"moe_unpermute: inverse names rows {low} to {high}, y has the rows 0 to {len(y) - 1}")
    chosen = forms.choose_form(form, y.device, FORMS)
    if chosen == "reference":
        return moe_unpermute_reference(y, inverse, weights)
    if chosen == "cpu":
        return moe_unpermute_cpu(y, inverse, weights)
    from wholecurve.kernels.moe_unpermute.kernel import moe_unpermute_triton

    return moe_unpermute_triton(y, inverse, weights, interpreted=chosen == "interpret")
