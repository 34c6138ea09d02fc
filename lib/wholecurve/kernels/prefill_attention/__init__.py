"""Chunked prefill attention over the paged cache."""

from wholecurve.kernels import forms
from wholecurve.kernels.prefill_attention.cpu import plan_tiles, prefill_attention_cpu
from wholecurve.kernels.prefill_attention.reference import prefill_attention_reference

FORMS = ("reference", "cpu")


def form_for(device):
    """Name of the form that `prefill_attention` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def plan_prefill_attention(block_table, context_lens, cu_q, block_size, form=None):
    """What the layers of one step can share: pass it as `plan` to each `prefill_attention` of the batch.

    None for a form that has nothing to share (all but "cpu").
    """
    if forms.choose_form(form, block_table.device, FORMS) != "cpu":
        return None
    return plan_tiles(block_table, as_list(context_lens), as_list(cu_q), block_size)


def prefill_attention(q, k_cache, v_cache, block_table, context_lens, cu_q, scale, form=None, *, plan=None):
    """Causal attention of each sequence's new tokens over its cached prefix and themselves.

    q: [T, H, D], the new tokens of all sequences one after the other; sequence b owns rows cu_q[b] to cu_q[b
    + 1]. k_cache, v_cache: [num_blocks, block_size, G, D] and already hold the new tokens. block_table: [B,
    max_blocks]. context_lens: [B], cached prefix plus new tokens. cu_q: [B + 1], starts at 0 and ends at T.
    Both may be lists or tensors. The mask is bottom-right: the last new token sees the whole context; a query
    that sees no key gives zeros. Returns [T, H, D] in the dtype of q. On a CPU the bits of a query's output
    depend on its position alone, not on the chunks.
    plan: None, or what `plan_prefill_attention` gave for this batch. ValueError for shapes or dtypes outside
    this contract.
    """
    context_lens, cu_q = as_list(context_lens), as_list(cu_q)
    forms.require(q.dim() == 3, f"prefill_attention: q must be [tokens, heads, head size], it is {tuple(q.shape)}")
    forms.require(
        k_cache.shape == v_cache.shape and k_cache.dim() == 4 and k_cache.shape[3] == q.shape[2],
        f"prefill_attention: caches {tuple(k_cache.shape)} and {tuple(v_cache.shape)} do not fit q {tuple(q.shape)}",
    )
    forms.require(
        q.shape[1] % k_cache.shape[2] == 0,
        f"prefill_attention: {q.shape[1]} query heads are no multiple of {k_cache.shape[2]} key-value heads",
    )
    forms.require(
        len(cu_q) == len(context_lens) + 1 == block_table.shape[0] + 1,
        f"prefill_attention: cu_q has {len(cu_q)} entries for {len(context_lens)} contexts and a block_table "
        f"{tuple(block_table.shape)}",
    )
    forms.require(
        cu_q[0] == 0 and cu_q[-1] == q.shape[0] and cu_q == sorted(cu_q),
        f"prefill_attention: cu_q must rise from 0 to {q.shape[0]}, it is {cu_q}",
    )
    reach = block_table.shape[1] * k_cache.shape[1]
    longest = max(context_lens, default=0)
    forms.require(
        longest <= reach,
        f"prefill_attention: a context of {longest} tokens but a block_table for {reach}",
    )
    forms.require(
        q.dtype == k_cache.dtype == v_cache.dtype,
        f"prefill_attention: q is {q.dtype}, the caches are {k_cache.dtype} and {v_cache.dtype}",
    )
    chosen = forms.choose_form(form, q.device, FORMS)
    if chosen == "cpu":
        if plan is None:
            plan = plan_tiles(block_table, context_lens, cu_q, k_cache.shape[1])
        return prefill_attention_cpu(q, k_cache, v_cache, plan, scale)
    return prefill_attention_reference(q, k_cache, v_cache, block_table, context_lens, cu_q, scale)


def as_list(numbers):
    """A list of whole numbers from a list, a tuple or a tensor."""
    return numbers.tolist() if hasattr(numbers, "tolist") else list(numbers)
