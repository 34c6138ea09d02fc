"""Rotary position embedding, half-split (Llama, Hugging Face) or interleaved (GPT-J, DeepSeek)."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.rope.cpu import rope_cpu
from wholecurve.kernels.rope.native import rope_native
from wholecurve.kernels.rope.reference import rope_reference
from wholecurve.kernels.rope.tables import rope_tables

FORMS = ("reference", "cpu", "native", "triton", "interpret")
LAYOUTS = ("half", "interleaved")
INDEX_DTYPES = (torch.int64, torch.int32)
HOST_FORMS = {"reference": rope_reference, "cpu": rope_cpu, "native": rope_native}

__all__ = ["FORMS", "LAYOUTS", "form_for", "rope", "rope_tables"]


def form_for(device):
    """Name of the form that `rope` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def rope(x, positions, cos, sin, form=None, *, layout="half", inverse=False, offset=0):
    """Rotate each pair of channels by its position's angle; channels that are not rotated are copied.

    x: [T, heads, D], last dimension contiguous. positions: [T] int32 or int64, in any order. cos, sin:
    [max_position, rd/2] from `rope_tables`. The rd rotated channels of a head start at `offset`; rd + offset ≤ D.
    layout: pairs are (i, i + rd/2) in "half" and (2i, 2i + 1) in "interleaved". inverse: by the negative angle, which
    undoes the rotation. Returns contiguous [T, heads, D] in the dtype of x; x is not written.
    The arithmetic runs in the wider of the two dtypes and is rounded to the dtype of x at the end: with tables in the
    dtype of x it is Hugging Face's bit for bit. The Triton form always computes in fp32.
    IndexError for a position outside the table; on a GPU, where reading positions would wait for it, the rotated
    channels of that token are NaN. ValueError for shapes, strides or options.
    """
    if problem := refusal(x, positions, cos, sin, layout, offset):
        raise ValueError(f"rope: {problem}")
    # on a CPU what `choose_form` says too, in a tenth of the time
    chosen = "native" if form is None and x.is_cpu else forms.choose_form(form, x.device, FORMS)
    if run := HOST_FORMS.get(chosen):
        try:
            return run(x, positions, cos, sin, layout, inverse, offset)
        except IndexError:
            require_positions("rope", positions, len(cos))
            raise
    if positions.device.type == "cpu":
        require_positions("rope", positions, len(cos))
    from wholecurve.kernels.rope.kernel import rope_triton

    return rope_triton(x, positions, cos, sin, layout, inverse, offset, interpreted=chosen == "interpret")


def refusal(x, positions, cos, sin, layout, offset):
    """What is wrong with these arguments, None if nothing is; a text is only built for the error."""
    if x.dim() != 3:
        return f"x must be [tokens, heads, head size], it has shape {tuple(x.shape)}"
    num_tokens, _, head_dim = x.shape
    if positions.dim() != 1 or len(positions) != num_tokens:
        return f"{num_tokens} tokens but positions {tuple(positions.shape)}"
    if positions.dtype not in INDEX_DTYPES:
        return f"positions must be int32 or int64, they are {positions.dtype}"
    if cos.shape != sin.shape or cos.dtype != sin.dtype or cos.dim() != 2:
        return f"cos is {tuple(cos.shape)} {cos.dtype} but sin is {tuple(sin.shape)} {sin.dtype}"
    if offset < 0 or offset + 2 * cos.shape[1] > head_dim:
        return f"tables rotate {2 * cos.shape[1]} of {head_dim} channels from channel {offset} on"
    if x.stride(2) != 1 and head_dim > 1:
        return "last dimension of x is strided"
    if layout not in LAYOUTS:
        return f"layout {layout!r} is not one of {', '.join(LAYOUTS)}"
    return None


def require_positions(operation, positions, length):
    """IndexError for positions that leave a table of this length."""
    if not positions.numel():
        return
    low, high = (int(bound) for bound in positions.aminmax())
    if low < 0 or high >= length:
        raise IndexError(
            f"{operation}: positions {low}..{high} leave the table of {length} positions (0..{length - 1})"
        )
