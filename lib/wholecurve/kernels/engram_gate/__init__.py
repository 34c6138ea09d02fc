"""The gate through which an n-gram memory enters the residual streams."""

from wholecurve.kernels import forms
from wholecurve.kernels.engram_gate.cpu import engram_gate_cpu
from wholecurve.kernels.engram_gate.reference import engram_gate_reference

FORMS = ("reference", "cpu", "triton", "interpret")


def form_for(device):
    """Name of the form that `engram_gate` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def engram_gate(hidden, keys, value, hidden_weight, key_weight, eps, form=None):
    """hidden + gate · value for every residual stream: [T, S, D].

    hidden: [T, S, D], the S streams of each token (4 in DeepSeek-V4.1, 1 without hyper-connections). keys: [T, S, D]
    and value: [T, D], projections of the looked-up rows. hidden_weight, key_weight: [S, D], weights of the two
    RMSNorms. All of one dtype, last dimensions contiguous, other strides any. Returns a new contiguous tensor.
    s = ⟨RMSNorm(hidden) · hidden_weight, RMSNorm(keys) · key_weight⟩ / √D and gate = sigmoid(sign(s) · √max(|s|,
    10⁻⁶)), 0.5 at s = 0, all in float32 and rounded once at the end. eps: inside the root of both norms.
    ValueError for shapes, strides or dtypes outside this contract.
    """
    forms.require(
        hidden.dim() == 3, f"engram_gate: hidden must be [tokens, streams, width], it is {tuple(hidden.shape)}"
    )
    num_tokens, streams, width = hidden.shape
    for name, tensor, wanted in (
        ("keys", keys, (num_tokens, streams, width)),
        ("value", value, (num_tokens, width)),
        ("hidden_weight", hidden_weight, (streams, width)),
        ("key_weight", key_weight, (streams, width)),
    ):
        forms.require(
            tensor.shape == wanted and tensor.dtype == hidden.dtype,
            f"engram_gate: {name} must be {wanted} {hidden.dtype}, it is {tuple(tensor.shape)} {tensor.dtype}",
        )
    for name, tensor in (
        *(("hidden", hidden), ("keys", keys), ("value", value)),
        *(("hidden_weight", hidden_weight), ("key_weight", key_weight)),
    ):
        forms.require(tensor.stride(-1) == 1 or width <= 1, f"engram_gate: last dimension of {name} is strided")
    chosen = forms.choose_form(form, hidden.device, FORMS)
    if chosen in ("reference", "cpu"):
        run = engram_gate_cpu if chosen == "cpu" else engram_gate_reference
        return run(hidden, keys, value, hidden_weight, key_weight, eps)
    from wholecurve.kernels.engram_gate.kernel import engram_gate_triton

    return engram_gate_triton(hidden, keys, value, hidden_weight, key_weight, eps, interpreted=chosen == "interpret")
