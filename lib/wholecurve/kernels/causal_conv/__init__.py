"""Depthwise causal convolution over sequences, with the inputs that each sequence carries from call to call."""

from wholecurve.kernels import forms
from wholecurve.kernels.causal_conv.cpu import causal_conv_cpu
from wholecurve.kernels.causal_conv.reference import causal_conv_reference
from wholecurve.kernels.gated_delta_decode.slots import require_sequences, require_slots

FORMS = ("reference", "cpu", "triton", "interpret")
ACTIVATIONS = (None, "silu")


def form_for(device):
    """Name of the form that `causal_conv` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def causal_conv(
    x,
    weight,
    state,
    slots,
    cu_seqlens=None,
    form=None,
    *,
    bias=None,
    activation="silu",
    dilation=1,
    has_initial_state=None,
    write_slots=None,
):
    """out[t, c] = activation(bias[c] + Σᵢ weight[c, i] · x[t − (W − 1 − i) · dilation, c]) in each sequence, in fp32.

    x: [T, C], the tokens of all sequences one after another, any row stride. weight: [C, W], W ≥ 2. bias: None or [C].
    activation: "silu" or None. state: [num_slots, C, (W − 1) · dilation] in the dtype of x, written in place: the last
    inputs of a sequence, the newest last; they stand for the tokens before the first. slots: [B] int, the slot that a
    sequence reads and writes; −1 starts from zeros and writes nothing. has_initial_state: None or [B] bool; False
    starts from zeros whatever the slot holds. cu_seqlens: [B + 1] int, sequence b owns the tokens cu_seqlens[b] …
    cu_seqlens[b + 1] − 1; None for B sequences of T / B tokens each, as in a decode step. A sequence without tokens
    leaves its slot as it is. Returns [T, C] in the dtype of x, rounded once.

    write_slots: None, or [B, Q] int for drafts that may be rejected: the state after token t < Q of sequence b goes to
    slot write_slots[b, t] (−1: nowhere), and `slots` is only read; see `gated_delta_decode`, which takes the same.
    The bits of a token depend neither on the rest of the batch nor on how its sequence is cut into calls.
    ValueError for shapes, strides or dtypes outside this contract; on the CPU also for cu_seqlens that do not ascend
    from 0 to T and for a slot that is written twice or that another sequence reads, and IndexError for a slot that
    does not exist.
    """
    require_contract(x, weight, state, bias, activation, dilation)
    require_slots("causal_conv", state, slots, has_initial_state, write_slots)
    if cu_seqlens is not None:
        require_sequences("causal_conv", cu_seqlens, len(slots), len(x))
    elif len(x) % len(slots) if len(slots) else len(x):
        raise ValueError(f"causal_conv: {len(x)} tokens do not divide among {len(slots)} sequences of equal length")
    chosen = forms.choose_form(form, x.device, FORMS)
    arguments = (x, weight, state, slots, cu_seqlens, bias, activation, dilation, has_initial_state, write_slots)
    if chosen == "reference":
        return causal_conv_reference(*arguments)
    if chosen == "cpu":
        return causal_conv_cpu(*arguments)
    from wholecurve.kernels.causal_conv.kernel import causal_conv_triton

    return causal_conv_triton(*arguments, interpreted=chosen == "interpret")


def require_contract(x, weight, state, bias, activation, dilation):
    """Check everything but the indexes."""
    if x.dim() != 2:
        raise ValueError(f"causal_conv: x must be [tokens, channels], it has shape {tuple(x.shape)}")
    channels = x.shape[1]
    if weight.dim() != 2 or weight.shape[0] != channels or weight.shape[1] < 2:
        raise ValueError(f"causal_conv: weight must be [{channels}, width ≥ 2], it has shape {tuple(weight.shape)}")
    if dilation < 1:
        raise ValueError(f"causal_conv: dilation must be at least 1, it is {dilation}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"causal_conv: activation {activation!r} is not one of {ACTIVATIONS}")
    history = (weight.shape[1] - 1) * dilation
    if state.dim() != 3 or state.shape[1:] != (channels, history):
        wanted = f"[slots, {channels}, {history}]"
        raise ValueError(f"causal_conv: state must be {wanted}, it has shape {tuple(state.shape)}")
    if bias is not None and bias.shape != (channels,):
        raise ValueError(f"causal_conv: bias must be [{channels}], it has shape {tuple(bias.shape)}")
    for name, tensor in (("weight", weight), ("state", state), ("bias", bias)):
        if tensor is not None and tensor.dtype != x.dtype:
            raise ValueError(f"causal_conv: {name} is not {x.dtype} as x is")
