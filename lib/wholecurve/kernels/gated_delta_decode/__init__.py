"""The gated delta rule, one or a few tokens per sequence: the linear attention of a decode step."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.gated_delta_decode.cpu import gated_delta_decode_cpu
from wholecurve.kernels.gated_delta_decode.reference import gated_delta_decode_reference
from wholecurve.kernels.gated_delta_decode.slots import require_slots

FORMS = ("reference", "cpu", "triton", "interpret")


def form_for(device):
    """Name of the form that `gated_delta_decode` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def gated_delta_decode(
    q,
    k,
    v,
    g,
    beta,
    state,
    slots,
    scale,
    form=None,
    *,
    l2norm=False,
    has_initial_state=None,
    write_slots=None,
):
    """For each token: S = exp(g) S; S += k ⊗ (beta (v − Sᵀ k)); out = Sᵀ (scale · q), per value head, in fp32.

    q, k: [B, H, K], or [B, Q, H, K] for Q tokens per sequence. v: [B, (Q,) HV, V], HV a multiple of H: value head h
    uses q and k of head h // (HV / H). g: [B, (Q,) HV] float32, the natural logarithm of the decay, at most 0; −inf
    clears the state. beta: [B, (Q,) HV], float32 or the dtype of q. l2norm: q and k are multiplied by
    1 / sqrt(Σ x² + 1e-6) first. state: [num_slots, HV, K, V] float32, written in place. slots: [B] int, the slot that a
    sequence reads and, after its last token, writes; −1 starts from zeros and writes nothing. has_initial_state: None
    or [B] bool; False starts from zeros whatever the slot holds. Returns [B, (Q,) HV, V] in the dtype of q.

    write_slots: None, or [B, Q] int for drafts that may be rejected: the state after token t of sequence b goes to
    slot write_slots[b, t] (−1: nowhere), and `slots` is only read. When n ≥ 1 tokens are accepted, the sequence
    continues from slot write_slots[b, n − 1]; the others are free again, nothing is copied. One column other than −1
    keeps just the state after that token. A written slot must be written once and read by no other sequence;
    the slot that the sequence itself reads is allowed.
    The bits of a sequence do not depend on the rest of the batch.
    ValueError for shapes, strides or dtypes outside this contract; on the CPU also for a slot that is written twice
    or that another sequence reads, and IndexError for a slot that does not exist.
    """
    require_heads("gated_delta_decode", q, k, v, g, beta, state)
    if q.dim() not in (3, 4):
        raise ValueError(f"gated_delta_decode: q must have 3 or 4 dimensions, it is {tuple(q.shape)}")
    if slots.shape != q.shape[:1]:
        raise ValueError(f"gated_delta_decode: slots must be [{len(q)}], it has shape {tuple(slots.shape)}")
    tokens = 1 if q.dim() == 3 else q.shape[1]
    if write_slots is not None and write_slots.shape != (len(q), tokens):
        shape = tuple(write_slots.shape)
        raise ValueError(f"gated_delta_decode: write_slots must be [{len(q)}, {tokens}], it has shape {shape}")
    require_slots("gated_delta_decode", state, slots, has_initial_state, write_slots)
    chosen = forms.choose_form(form, q.device, FORMS)
    arguments = (q, k, v, g, beta, state, slots, scale, l2norm, has_initial_state, write_slots)
    if chosen == "reference":
        return gated_delta_decode_reference(*arguments)
    if chosen == "cpu":
        return gated_delta_decode_cpu(*arguments)
    from wholecurve.kernels.gated_delta_decode.kernel import gated_delta_decode_triton

    return gated_delta_decode_triton(*arguments, interpreted=chosen == "interpret")


def require_heads(operation, q, k, v, g, beta, state):
    """Check q and k [..., H, K], v [..., HV, V], g and beta [..., HV] and state [num_slots, HV, K, V]."""
    # a message is made only when it is needed: a dozen of them cost as much as a small step
    if not (q.dim() >= 2 and q.shape == k.shape and v.dim() == q.dim() and v.shape[:-2] == q.shape[:-2]):
        shapes = [tuple(tensor.shape) for tensor in (q, k, v)]
        raise ValueError(f"{operation}: q, k and v have shapes {shapes[0]}, {shapes[1]} and {shapes[2]}")
    heads, value_heads = q.shape[-2], v.shape[-2]
    if not heads or value_heads % heads:
        raise ValueError(f"{operation}: {value_heads} value heads are no multiple of {heads} heads")
    for name, rates in (("g", g), ("beta", beta)):
        if rates.shape != v.shape[:-1]:
            raise ValueError(f"{operation}: {name} must be {tuple(v.shape[:-1])}, it has shape {tuple(rates.shape)}")
    held = (value_heads, q.shape[-1], v.shape[-1])
    if state.dim() != 4 or state.shape[1:] != held:
        wanted = ", ".join(map(str, held))
        raise ValueError(f"{operation}: state must be [slots, {wanted}], it has shape {tuple(state.shape)}")
    wide = torch.promote_types(q.dtype, torch.float32)
    if not (q.dtype == k.dtype == v.dtype and q.dtype.is_floating_point):
        raise ValueError(f"{operation}: q, k and v must have one dtype, they are {q.dtype}, {k.dtype} and {v.dtype}")
    if not (g.dtype == state.dtype == wide and beta.dtype in (q.dtype, wide)):
        raise ValueError(
            f"{operation}: g and state must be {wide} and beta {wide} or {q.dtype}, they are {g.dtype}, {state.dtype} "
            f"and {beta.dtype}"
        )
