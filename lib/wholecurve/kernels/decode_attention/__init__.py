"""Paged decode attention: the newest token of each sequence, or the few that a speculative step verifies."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.decode_attention.cpu import check_contexts, decode_attention_cpu, plan_groups
from wholecurve.kernels.decode_attention.reference import decode_attention_reference

FORMS = ("reference", "cpu", "triton", "interpret")
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
INDEX_DTYPES = (torch.int32, torch.int64)
FP8 = torch.float8_e4m3fn


def form_for(device):
    """Name of the form that `decode_attention` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def plan_decode_attention(block_table, context_lens, block_size, form=None, *, num_queries=1, window=None):
    """What the layers of one step can share: pass it as `plan` to each `decode_attention` of the batch.

    num_queries: query tokens per sequence. window: of these layers. None for a form that has nothing to share (all
    but "cpu"). ValueError for a context beyond the block table.
    """
    chosen = forms.choose_form(form, block_table.device, FORMS)
    return plan_groups(block_table, context_lens, block_size, num_queries, window) if chosen == "cpu" else None


def decode_attention(
    q,
    k_cache,
    v_cache,
    block_table,
    context_lens,
    scale,
    form=None,
    *,
    plan=None,
    window=None,
    soft_cap=None,
    sinks=None,
    return_lse=False,
    k_scale=None,
    v_scale=None,
):
    """softmax(scale · q Kᵀ) V of the newest tokens of each sequence over its first context_lens[b] cached tokens.

    q: [B, H, Dk] for one query token per sequence, or [B, Q, H, Dk] for Q of them: the tokens at positions
    context_lens[b] − Q to context_lens[b] − 1, which are cached already and each see themselves and what is before.
    k_cache: [num_blocks, block_size, G, Dk], v_cache: [num_blocks, block_size, G, Dv], H a multiple of G: query head h
    reads key-value head h // (H / G). Both of the dtype of q, or both float8_e4m3fn.
    block_table: [B, max_blocks] int32 or int64; entries past the context, or wholly before the window, may hold
    anything and are never dereferenced. (The Triton form starts programs for the whole width of the table, of which
    those beyond a context end at once: a table no wider than the longest context is the cheapest.)
    context_lens: [B] int32 or int64, the Q tokens among them. scale: of the scores, usually Dk^-½.

    window: a query at position p sees keys p − window + 1 to p. soft_cap: scores become cap · tanh(score / cap).
    sinks: [H], a logit per query head that joins the softmax and has no value; −inf is none. return_lse: also return
    the logarithm of the softmax's denominator. k_scale, v_scale: what cached fp8 numbers are to be multiplied with, a
    float or one per key-value head, [G] float32.

    Returns [B, H, Dv] or [B, Q, H, Dv] in the dtype of q; with return_lse a pair of it and the natural logarithm
    [B, H] or [B, Q, H] in float32 (float64 for a float64 q), to which the sink belongs. A query that sees no key (no
    context, or fewer cached tokens than queries) gives zeros, and its sink or −inf as logarithm.
    The bits of a sequence's output do not depend on the rest of the batch. In the cpu form those of a query token do
    not depend on the other query tokens either. NaN in a token stays in its sequence, there it may reach every query.
    plan: None, or what `plan_decode_attention` gave for this block_table, these context_lens, Q and window.
    ValueError for shapes or dtypes outside this contract, and on a CPU for a context beyond the block table;
    IndexError, on a CPU too, for a page that the caches do not have.
    """
    options = dict(window=window, soft_cap=soft_cap, sinks=sinks, return_lse=return_lse)
    options |= dict(k_scale=k_scale, v_scale=v_scale)
    check_shapes(q, k_cache, v_cache, block_table, context_lens)
    check_options(q, k_cache, **options)
    chosen = forms.choose_form(form, q.device, FORMS)
    num_queries, block_size = q.shape[1] if q.dim() == 4 else 1, k_cache.shape[1]
    if chosen == "cpu":
        if plan is None:
            plan = plan_groups(block_table, context_lens, block_size, num_queries, window)
        if (plan.num_queries, plan.window) != (num_queries, window):
            raise ValueError(
                f"decode_attention: the plan is for {plan.num_queries} query tokens and window {plan.window}, "
                f"not {num_queries} and {window}"
            )
        return decode_attention_cpu(q, k_cache, v_cache, plan, scale, **options)
    arguments = (q, k_cache, v_cache, block_table, context_lens, scale)
    if q.device.type == "cpu":
        check_pages(len(k_cache), block_size, block_table, context_lens, num_queries, window)
    if chosen == "reference":
        return decode_attention_reference(*arguments, **options)
    from wholecurve.kernels.decode_attention.kernel import decode_attention_triton

    return decode_attention_triton(*arguments, interpreted=chosen == "interpret", **options)


def check_shapes(q, k_cache, v_cache, block_table, context_lens):
    """ValueError for tensors that do not fit together. A message is made when it is needed: this runs per layer."""
    if q.dim() not in (3, 4):
        raise ValueError(
            "decode_attention: q must be [sequences, heads, head size] or [sequences, query tokens, heads, head size], "
            f"it is {tuple(q.shape)}"
        )
    num_sequences, num_heads, head_dim = q.shape[0], *q.shape[-2:]
    if k_cache.dim() != 4 or k_cache.shape[:3] != v_cache.shape[:3] or k_cache.shape[3] != head_dim:
        raise ValueError(
            f"decode_attention: caches {tuple(k_cache.shape)} and {tuple(v_cache.shape)} do not fit q {tuple(q.shape)}"
        )
    num_kv_heads = k_cache.shape[2]
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(f"decode_attention: {num_heads} query heads are no multiple of {num_kv_heads} key-value heads")
    if block_table.dim() != 2 or len(block_table) != num_sequences or context_lens.shape != (num_sequences,):
        raise ValueError(
            f"decode_attention: block_table {tuple(block_table.shape)} and context_lens {tuple(context_lens.shape)} "
            f"do not fit {num_sequences} sequences"
        )
    for name, tensor in (("block_table", block_table), ("context_lens", context_lens)):
        if tensor.dtype not in INDEX_DTYPES:
            raise ValueError(f"decode_attention: {name} must be int32 or int64, it is {tensor.dtype}")
    if q.dtype not in DTYPES or k_cache.dtype not in (q.dtype, FP8) or v_cache.dtype != k_cache.dtype:
        raise ValueError(f"decode_attention: q is {q.dtype}, the caches are {k_cache.dtype} and {v_cache.dtype}")


def check_options(q, k_cache, *, window, soft_cap, sinks, return_lse, k_scale, v_scale):
    """ValueError for an option out of its range."""
    if window is not None and window < 1:
        raise ValueError(f"decode_attention: window must be at least 1, it is {window}")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"decode_attention: soft_cap must be positive, it is {soft_cap}")
    num_heads, num_kv_heads = q.shape[-2], k_cache.shape[2]
    if sinks is not None and (sinks.shape != (num_heads,) or not sinks.is_floating_point()):
        raise ValueError(
            f"decode_attention: sinks must be [{num_heads}] floats, they are {tuple(sinks.shape)} {sinks.dtype}"
        )
    for name, factor in (("k_scale", k_scale), ("v_scale", v_scale)):
        if factor is None:
            continue
        if k_cache.dtype != FP8:
            raise ValueError(f"decode_attention: {name} is for fp8 caches, not {k_cache.dtype}")
        if isinstance(factor, torch.Tensor) and (factor.shape != (num_kv_heads,) or factor.dtype != torch.float32):
            raise ValueError(
                f"decode_attention: {name} must be a float or [{num_kv_heads}] torch.float32, "
                f"it is {tuple(factor.shape)} {factor.dtype}"
            )


def check_pages(num_blocks, block_size, block_table, context_lens, num_queries, window):
    """ValueError for a context beyond the block table, IndexError for a page that the caches do not have."""
    check_contexts(context_lens.tolist(), block_table.shape[1] * block_size)
    contexts = context_lens.long()[:, None]
    starts = torch.arange(block_table.shape[1]) * block_size
    used = starts < contexts
    if window is not None:
        used &= starts + block_size > contexts - num_queries - window + 1
    outside = used & ((block_table < 0) | (block_table >= num_blocks))
    if outside.any():
        sequence, entry = outside.nonzero()[0].tolist()
        page = int(block_table[sequence, entry])
        raise IndexError(f"decode_attention: block_table[{sequence}, {entry}] is {page}, the caches have {num_blocks}")
