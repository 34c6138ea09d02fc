"""The k largest of each row, the same ones every time: the set that sparse attention attends to."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.top_k.cpu import top_k_cpu
from wholecurve.kernels.top_k.reference import top_k_reference

FORMS = ("reference", "cpu", "triton", "interpret")


def form_for(device):
    """Name of the form that `top_k` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def top_k(scores, k, form=None, *, lengths=None):
    """Positions of the k largest scores of each row, in ascending order of position.

    scores: [T, S] float32, any row stride, last dimension contiguous. lengths: None or [T] int32 or int64: of row t
    only the first lengths[t] scores are looked at, the others may hold anything. Of equal scores the lower position
    is taken; −0 equals +0. −inf is never taken; NaN counts as +inf, so that it is taken and seen.
    Returns [T, k] int32; where a row has fewer than k scores to take, −1 fills its end.
    ValueError for shapes or dtypes outside this contract, on the CPU also for a length beyond the row.
    """
    forms.require(scores.dim() == 2, f"top_k: scores must be [rows, positions], they are {list(scores.shape)}")
    forms.require(scores.dtype == torch.float32, f"top_k: scores must be torch.float32, they are {scores.dtype}")
    num_rows, width = scores.shape
    forms.require(width <= 2**30, f"top_k: rows may have up to 2**30 positions, these have {width}")
    forms.require(scores.stride(1) == 1 or width <= 1, "top_k: last dimension of scores is strided")
    forms.require(k >= 1, f"top_k: k must be at least 1, it is {k}")
    if lengths is not None:
        forms.require(
            lengths.shape == (num_rows,) and lengths.dtype in (torch.int32, torch.int64),
            f"top_k: lengths must be [{num_rows}] integers, they are {list(lengths.shape)} {lengths.dtype}",
        )
        if lengths.device.type == "cpu" and num_rows:
            shortest, longest = int(lengths.min()), int(lengths.max())
            forms.require(
                shortest >= 0 and longest <= width,
                f"top_k: lengths of {shortest} to {longest} do not fit rows of {width}",
            )
    chosen = forms.choose_form(form, scores.device, FORMS)
    if chosen == "reference":
        return top_k_reference(scores, k, lengths)
    if chosen == "cpu":
        return top_k_cpu(scores, k, lengths)
    from wholecurve.kernels.top_k.kernel import top_k_triton

    return top_k_triton(scores, k, lengths, interpreted=chosen == "interpret")
