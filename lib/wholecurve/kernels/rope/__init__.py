"""Rotary position embedding in the half-split layout of Llama and Hugging Face."""

from wholecurve.kernels import forms
from wholecurve.kernels.rope.reference import rope_reference, rope_tables

FORMS = ("reference",)

__all__ = ["FORMS", "form_for", "rope", "rope_tables"]


def form_for(device):
    """Name of the form that `rope` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def rope(x, positions, cos, sin, form=None):
    """Rotate each pair (x[i], x[i + rd/2]) by its position's angle; channels past rd are copied (partial
    rotary).

    x: [T, heads, D]. positions: [T] int32 or int64, in any order. cos, sin: [max_position, rd/2] from
    `rope_tables`, rd ≤ D. Returns [T, heads, D] in the dtype of x; x is not written. The arithmetic runs in
    the wider of the two dtypes and is rounded to the dtype of x at the end: with tables in the dtype of x it
    is Hugging Face's bit for bit. IndexError for a position outside the table (on a GPU the device assertion
    of torch); ValueError for shapes.
    """
    forms.require(x.dim() == 3, f"rope: x must be [tokens, heads, head size], it has shape {tuple(x.shape)}")
    forms.require(positions.shape == x.shape[:1], f"rope: {x.shape[0]} tokens but positions {tuple(positions.shape)}")
    forms.require(cos.shape == sin.shape, f"rope: cos is {tuple(cos.shape)} but sin is {tuple(sin.shape)}")
    forms.require(2 * cos.shape[1] <= x.shape[2], f"rope: tables rotate {2 * cos.shape[1]} of {x.shape[2]} channels")
    forms.choose_form(form, x.device, FORMS)
    try:
        return rope_reference(x, positions, cos, sin)
    except IndexError:
        low, high = int(positions.min()), int(positions.max())
        raise IndexError(
            f"rope: positions {low}..{high} leave the table of {len(cos)} positions (0..{len(cos) - 1})"
        ) from None
