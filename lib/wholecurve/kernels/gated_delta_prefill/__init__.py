"""The gated delta rule over whole sequences: the linear attention of a prefill."""

from wholecurve.kernels import forms
from wholecurve.kernels.gated_delta_decode import require_heads
from wholecurve.kernels.gated_delta_decode.slots import require_sequences, require_slots
from wholecurve.kernels.gated_delta_prefill.cpu import gated_delta_prefill_cpu
from wholecurve.kernels.gated_delta_prefill.reference import gated_delta_prefill_reference

FORMS = ("reference", "cpu", "triton", "interpret")


def form_for(device):
    """Name of the form that `gated_delta_prefill` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def gated_delta_prefill(
    q, k, v, g, beta, cu_seqlens, state, slots, scale, form=None, *, l2norm=False, has_initial_state=None
):
    """The rule of `gated_delta_decode` over sequences of any length, in chunks of 64 tokens.

    q, k: [T, H, K], the tokens of all sequences one after another. v: [T, HV, V], HV a multiple of H: value head h
    uses q and k of head h // (HV / H). g: [T, HV] float32, the natural logarithm of the decay, at most 0; −inf clears
    the state. beta: [T, HV], float32 or the dtype of q. cu_seqlens: [B + 1] int, sequence b owns the tokens
    cu_seqlens[b] … cu_seqlens[b + 1] − 1. state: [num_slots, HV, K, V] float32, written in place. slots: [B] int, the
    slot that a sequence reads and writes; −1 starts from zeros and writes nothing. has_initial_state: None or [B]
    bool; False starts from zeros whatever the slot holds. A sequence without tokens leaves its slot as it is.
    q is multiplied by `scale`, and with l2norm q and k by 1 / sqrt(Σ x² + 1e-6) first. Returns [T, HV, V] in the
    dtype of q.

    Forms agree within rounding: the reference goes token by token in fp32. The Triton form rounds the factors of its
    products to the dtype of q, as flash-linear-attention does; its inverse of the triangular system stays in fp32. It
    takes scratch memory for (T (K + V) + (T / 64 + B) K V) · HV numbers of that dtype. In float16 with l2norm, |v| over
    65 needs keys of a length over |v| / 65504.
    The bits of a sequence do not depend on the rest of the batch; where a sequence is cut into calls they do.
    ValueError for shapes, strides or dtypes outside this contract; on the CPU also for cu_seqlens that do not
    ascend from 0 to T and for a slot that two sequences share, and IndexError for a slot that does not exist.
    """
    forms.require(q.dim() == 3, f"gated_delta_prefill: q must be [tokens, heads, head size], it is {tuple(q.shape)}")
    require_heads("gated_delta_prefill", q, k, v, g, beta, state)
    require_slots("gated_delta_prefill", state, slots, has_initial_state)
    require_sequences("gated_delta_prefill", cu_seqlens, len(slots), len(q))
    chosen = forms.choose_form(form, q.device, FORMS)
    arguments = (q, k, v, g, beta, cu_seqlens, state, slots, scale, l2norm, has_initial_state)
    if chosen == "reference":
        return gated_delta_prefill_reference(*arguments)
    if chosen == "cpu":
        return gated_delta_prefill_cpu(*arguments)
    from wholecurve.kernels.gated_delta_prefill.kernel import gated_delta_prefill_triton

    return gated_delta_prefill_triton(*arguments, interpreted=chosen == "interpret")
