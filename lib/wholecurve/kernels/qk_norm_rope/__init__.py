"""RMSNorm of each query and key head followed by the rotary embedding (Qwen3, Gemma 3, OLMo 2)."""

from wholecurve.kernels import forms, rms_norm, rope
from wholecurve.kernels.qk_norm_rope.cpu import qk_norm_rope_cpu
from wholecurve.kernels.qk_norm_rope.native import qk_norm_rope_native
from wholecurve.kernels.qk_norm_rope.reference import qk_norm_rope_reference

FORMS = ("reference", "cpu", "native", "triton", "interpret")
HOST_FORMS = {"reference": qk_norm_rope_reference, "cpu": qk_norm_rope_cpu, "native": qk_norm_rope_native}


def form_for(device):
    """Name of the form that `qk_norm_rope` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def qk_norm_rope(
    q, k, q_weight, k_weight, eps, positions, cos, sin, form=None, *, style="llama", layout="half", offset=0
):
    """Normalise every head of q and k over its D channels, then rotate it by its token's position.

    q: [T, H, D], k: [T, G, D], any strides of tokens and heads, last dimension contiguous: both may be parts of one
    projection, whose v part then is not touched. q_weight, k_weight: [D] in the dtype of q or in float32, or None for
    no weight. positions, cos, sin, layout and offset are those of `rope`, eps and style those of `rms_norm`, and so is
    the rounding: the normalised head is rounded to the dtype of q before it is rotated.
    Returns (q, k) as new contiguous tensors; no input is written.
    IndexError for a position outside the table; on a GPU the rotated channels of that token are NaN.
    ValueError for shapes, strides, dtypes or options.
    """
    for name, x, weight in (("q", q, q_weight), ("k", k, k_weight)):
        problem = rope.refusal(x, positions, cos, sin, layout, offset)
        if problem := problem or rms_norm.refusal_of_weight(f"{name}_weight", weight, x, style):
            raise ValueError(f"qk_norm_rope: of {name}: {problem}")
    if q.dtype != k.dtype or q.shape[2] != k.shape[2]:
        given = f"q is {tuple(q.shape)} {q.dtype} but k is {tuple(k.shape)} {k.dtype}"
        raise ValueError(f"qk_norm_rope: {given}; dtype and head size must be the same")
    # on a CPU what `choose_form` says too, in a tenth of the time
    chosen = "native" if form is None and q.is_cpu else forms.choose_form(form, q.device, FORMS)
    arguments = (q, k, q_weight, k_weight, eps, positions, cos, sin, style, layout, offset)
    if run := HOST_FORMS.get(chosen):
        try:
            return run(*arguments)
        except IndexError:
            rope.require_positions("qk_norm_rope", positions, len(cos))
            raise
    if positions.device.type == "cpu":
        rope.require_positions("qk_norm_rope", positions, len(cos))
    from wholecurve.kernels.qk_norm_rope.kernel import qk_norm_rope_triton

    return qk_norm_rope_triton(*arguments, interpreted=chosen == "interpret")
