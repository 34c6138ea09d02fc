"""SwiGLU: the gated activation between the two products of a Llama MLP."""

from wholecurve.kernels import forms
from wholecurve.kernels.swiglu.cpu import swiglu_cpu
from wholecurve.kernels.swiglu.reference import swiglu_reference

FORMS = ("reference", "cpu")


def form_for(device):
    """Name of the form that `swiglu` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def swiglu(gate_up, form=None):
    """silu(gate) · up.

    gate_up: [T, 2 · I], the gate half first, any strides. Returns [T, I] in the same dtype; gate_up is not
    written. silu is taken in fp32 and rounded to the dtype of gate_up before the product (the order of
    Hugging Face Llama). Bits of a row do not depend on the batch where I is a multiple of 64; a strided row
    may differ in its last bit. A gate of −inf gives NaN (−inf · 0), as in torch. ValueError for an odd width.
    """
    forms.require(gate_up.dim() == 2, f"swiglu: gate_up must be [tokens, 2 · I], its shape is {tuple(gate_up.shape)}")
    forms.require(gate_up.shape[1] % 2 == 0, f"swiglu: the width of gate_up must be even, it is {gate_up.shape[1]}")
    chosen = forms.choose_form(form, gate_up.device, FORMS)
    return swiglu_cpu(gate_up) if chosen == "cpu" else swiglu_reference(gate_up)
