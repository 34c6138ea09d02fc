"""Paged decode attention: one new token per sequence."""

from wholecurve.kernels import forms
from wholecurve.kernels.decode_attention.cpu import decode_attention_cpu, plan_groups
from wholecurve.kernels.decode_attention.reference import decode_attention_reference

FORMS = ("reference", "cpu", "triton", "interpret")


def form_for(device):
    """Name of the form that `decode_attention` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def plan_decode_attention(block_table, context_lens, block_size, form=None):
    """What the layers of one step can share: pass it as `plan` to each `decode_attention` of the batch.

    None for a form that has nothing to share (all but "cpu"). ValueError for a context beyond the block
    table.
    """
    chosen = forms.choose_form(form, block_table.device, FORMS)
    return plan_groups(block_table, context_lens, block_size) if chosen == "cpu" else None


def decode_attention(q, k_cache, v_cache, block_table, context_lens, scale, form=None, *, plan=None):
    """softmax(scale · q Kᵀ) V for one query token per sequence over its first context_lens[b] cached tokens.

    q: [B, H, D]. k_cache, v_cache: [num_blocks, block_size, G, D], H a multiple of G: query head h reads
    key-value head h // (H / G). block_table: [B, max_blocks] int32 or int64; entries past the context may
    hold anything and are never dereferenced. context_lens: [B] int; 0 gives zeros. Returns [B, H, D] in the
    dtype of q.
    The bits of a sequence's output do not depend on the rest of the batch.
    plan: None, or what `plan_decode_attention` gave for this block_table and these context_lens.
    ValueError for shapes or dtypes outside this contract.
    """
    forms.require(q.dim() == 3, f"decode_attention: q must be [sequences, heads, head size], it is {tuple(q.shape)}")
    num_sequences, num_heads, head_dim = q.shape
    forms.require(
        k_cache.shape == v_cache.shape and k_cache.dim() == 4 and k_cache.shape[3] == head_dim,
        f"decode_attention: caches {tuple(k_cache.shape)} and {tuple(v_cache.shape)} do not fit q {tuple(q.shape)}",
    )
    forms.require(
        num_heads % k_cache.shape[2] == 0,
        f"decode_attention: {num_heads} query heads are no multiple of {k_cache.shape[2]} key-value heads",
    )
    forms.require(
        block_table.dim() == 2 and block_table.shape[0] == num_sequences and context_lens.shape == (num_sequences,),
        f"decode_attention: block_table {tuple(block_table.shape)} and context_lens "
        f"{tuple(context_lens.shape)} do not fit {num_sequences} sequences",
    )
    forms.require(
        q.dtype == k_cache.dtype == v_cache.dtype,
        f"decode_attention: q is {q.dtype}, the caches are {k_cache.dtype} and {v_cache.dtype}",
    )
    chosen = forms.choose_form(form, q.device, FORMS)
    if chosen == "cpu":
        if plan is None:
            plan = plan_groups(block_table, context_lens, k_cache.shape[1])
        return decode_attention_cpu(q, k_cache, v_cache, plan, scale)
    arguments = (q, k_cache, v_cache, block_table, context_lens, scale)
    if chosen == "reference":
        return decode_attention_reference(*arguments)
    from wholecurve.kernels.decode_attention.kernel import decode_attention_triton

    return decode_attention_triton(*arguments, interpreted=chosen == "interpret")
