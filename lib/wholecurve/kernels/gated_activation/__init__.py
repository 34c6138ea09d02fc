"""The gated activation between the two products of an MLP: SwiGLU, GeGLU and their clamped kin."""

from wholecurve.kernels import forms
from wholecurve.kernels.gated_activation.cpu import gated_activation_cpu
from wholecurve.kernels.gated_activation.native import gated_activation_native
from wholecurve.kernels.gated_activation.reference import gated_activation_reference

FORMS = ("reference", "cpu", "native", "triton", "interpret")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
HOST_FORMS = {
    "reference": gated_activation_reference,
    "cpu": gated_activation_cpu,
    "native": gated_activation_native,
}

__all__ = ["ACTIVATIONS", "FORMS", "form_for", "gated_activation", "swiglu"]


def form_for(device):
    """Name of the form that `gated_activation` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def gated_activation(gate_up, activation="silu", form=None, *, limit=None, alpha=None):
    """activation(gate) · up.

    gate_up: [T, 2 · I], the gate half first, any strides (the Triton form: last dimension contiguous). Returns [T, I]
    in the same dtype; gate_up is not written. activation: "silu" (SwiGLU), "gelu" (x · Φ(x), exact) or "gelu_tanh"
    (the tanh form of Gemma's GeGLU). limit: rounded to the dtype of gate_up; gate is cut to at most limit and up to
    [−limit, limit] before anything else (DeepSeek V4, gpt-oss); NaN stays NaN. alpha: with "silu" alone,
    gate · sigmoid(alpha · gate) · (up + 1), the variant of gpt-oss.
    The activation is taken in fp32 and rounded to the dtype of gate_up before the product (the order of Hugging Face),
    which is rounded once. Bits of a row do not depend on the batch (in the "cpu" form where I is a multiple of
    64); a strided row may differ in its last bit. A gate of −inf gives NaN (−inf · 0), as in torch.
    ValueError for an odd width or options outside this contract.
    """
    # a text is only built for the error: building them all costs as much as a kernel of one decode step
    shape = gate_up.shape
    if len(shape) != 2:
        raise ValueError(f"gated_activation: gate_up must be [tokens, 2 · I], its shape is {tuple(shape)}")
    if shape[1] % 2:
        raise ValueError(f"gated_activation: the width of gate_up must be even, it is {shape[1]}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"gated_activation: activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
    if limit is not None and not limit > 0:
        raise ValueError(f"gated_activation: limit must be above 0, it is {limit}")
    if alpha is not None and activation != "silu":
        raise ValueError(f"gated_activation: alpha belongs to silu, the activation is {activation}")
    if form is None and gate_up.is_cpu:  # what `choose_form` says too, in a tenth of the time
        return gated_activation_native(gate_up, activation, limit, alpha)
    chosen = forms.choose_form(form, gate_up.device, FORMS)
    if run := HOST_FORMS.get(chosen):
        return run(gate_up, activation, limit, alpha)
    from wholecurve.kernels.gated_activation.kernel import gated_activation_triton

    return gated_activation_triton(gate_up, activation, limit, alpha, interpreted=chosen == "interpret")


def swiglu(gate_up, form=None, *, limit=None):
    """silu(gate) · up: `gated_activation` of Llama's MLP."""
    return gated_activation(gate_up, "silu", form, limit=limit)
