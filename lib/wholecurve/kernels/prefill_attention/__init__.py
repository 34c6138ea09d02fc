"""Chunked prefill attention over the paged cache."""

from itertools import pairwise

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.decode_attention.reference import first_key
from wholecurve.kernels.prefill_attention.cpu import plan_tiles, prefill_attention_cpu
from wholecurve.kernels.prefill_attention.reference import prefill_attention_reference

FORMS = ("reference", "cpu", "triton", "interpret")


def form_for(device):
    """Name of the form that `prefill_attention` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def plan_prefill_attention(block_table, context_lens, cu_q, block_size, form=None, *, window=None):
    """What the layers of one step can share: pass it as `plan` to each `prefill_attention` of the batch.

    window: of these layers. None for a form that has nothing to share (all but "cpu").
    """
    if forms.choose_form(form, block_table.device, FORMS) != "cpu":
        return None
    return plan_tiles(block_table, as_list(context_lens), as_list(cu_q), block_size, window)


def prefill_attention(
    q,
    k_cache,
    v_cache,
    block_table,
    context_lens,
    cu_q,
    scale,
    form=None,
    *,
    plan=None,
    max_q=None,
    window=None,
    soft_cap=None,
    sinks=None,
    return_lse=False,
    k_scale=None,
    v_scale=None,
):
    """Causal attention of each sequence's new tokens over its cached prefix and themselves.

    q: [T, H, Dk], the new tokens of all sequences one after the other; sequence b owns rows cu_q[b] to cu_q[b + 1].
    k_cache: [num_blocks, block_size, G, Dk], v_cache: [num_blocks, block_size, G, Dv], which hold the new tokens
    already, H a multiple of G: query head h reads key-value head h // (H / G). Both of the dtype of q, or both
    float8_e4m3fn. block_table: [B, max_blocks] int32 or int64; entries past the context, or wholly before the window,
    may hold anything and are never dereferenced. context_lens: [B], cached prefix plus new tokens. cu_q: [B + 1],
    starts at 0 and ends at T. Both are lists, or int32 or int64 tensors, which on a GPU are never read by the host.
    The mask is bottom-right: the last new token sees the whole context. scale: of the scores, positive, usually Dk^-½.
    max_q: None, or at least the new tokens of every sequence: the Triton form starts programs for that many, without
    it for T. (On a GPU a smaller one leaves rows of the output unwritten.)

    window: a query at position p sees keys p − window + 1 to p. soft_cap: scores become cap · tanh(score / cap).
    sinks: [H], a logit per query head that joins the softmax and has no value; −inf is none. return_lse: also return
    the logarithm of the softmax's denominator. k_scale, v_scale: what cached fp8 numbers are to be multiplied with, a
    float or one per key-value head, [G] float32, not negative.

    Returns [T, H, Dv] in the dtype of q; with return_lse a pair of it and the natural logarithm [T, H] in float32
    (float64 for a float64 q), to which the sink belongs. A query that sees no key (more new tokens than context) gives
    zeros, and its sink or −inf as logarithm.
    The bits of a query's output depend on its sequence and its position alone, not on the chunks or on the rest of the
    batch: shown for the cpu form; the Triton form cuts and orders its sums by position alone too.
    plan: None, or what `plan_prefill_attention` gave for this batch and window. ValueError for shapes, dtypes, lengths
    or offsets outside this contract (lengths and offsets on a GPU are not looked at); IndexError, on a CPU too, for a
    page that the caches do not have.
    """
    options = dict(window=window, soft_cap=soft_cap, sinks=sinks, return_lse=return_lse)
    options |= dict(k_scale=k_scale, v_scale=v_scale)
    check_shapes(q, k_cache, v_cache, block_table, context_lens, cu_q)
    check_options(q, k_cache, scale, max_q, **options)
    chosen = forms.choose_form(form, q.device, FORMS)
    block_size = k_cache.shape[1]
    if q.device.type == "cpu" or chosen == "reference":
        context_lens, cu_q = as_list(context_lens), as_list(cu_q)
        check_lengths(q.shape[0], block_table.shape[1] * block_size, context_lens, cu_q, max_q)
    if chosen == "cpu":
        if plan is None:
            plan = plan_tiles(block_table, context_lens, cu_q, block_size, window)
        forms.require(
            plan.window == window, f"prefill_attention: the plan is for window {plan.window}, not for {window}"
        )
        return prefill_attention_cpu(q, k_cache, v_cache, plan, scale, **options)
    if q.device.type == "cpu":
        check_pages(len(k_cache), block_size, block_table, context_lens, cu_q, window)
    arguments = (q, k_cache, v_cache, block_table, context_lens, cu_q, scale)
    if chosen == "reference":
        return prefill_attention_reference(*arguments, **options)
    from wholecurve.kernels.prefill_attention.kernel import prefill_attention_triton

    return prefill_attention_triton(*arguments, interpreted=chosen == "interpret", max_q=max_q, **options)


def as_list(numbers):
    """A list of whole numbers from a list, a tuple or a tensor."""
    return numbers.tolist() if hasattr(numbers, "tolist") else list(numbers)


def check_shapes(q, k_cache, v_cache, block_table, context_lens, cu_q):
    """ValueError for tensors that do not fit together."""
    forms.require(q.dim() == 3, f"prefill_attention: q must be [tokens, heads, head size], it is {tuple(q.shape)}")
    forms.require(
        k_cache.dim() == v_cache.dim() == 4
        and k_cache.shape[:3] == v_cache.shape[:3]
        and k_cache.shape[3] == q.shape[2],
        f"prefill_attention: caches {tuple(k_cache.shape)} and {tuple(v_cache.shape)} do not fit q {tuple(q.shape)}",
    )
    forms.require(
        k_cache.shape[2] > 0 and q.shape[1] % k_cache.shape[2] == 0,
        f"prefill_attention: {q.shape[1]} query heads are no multiple of {k_cache.shape[2]} key-value heads",
    )
    forms.require(
        block_table.dim() == 2 and len(cu_q) == len(context_lens) + 1 == block_table.shape[0] + 1,
        f"prefill_attention: cu_q has {len(cu_q)} entries for {len(context_lens)} contexts and a block_table "
        f"{tuple(block_table.shape)}",
    )
    for name, numbers in (("block_table", block_table), ("context_lens", context_lens), ("cu_q", cu_q)):
        forms.require(
            not isinstance(numbers, torch.Tensor) or numbers.dtype in (torch.int32, torch.int64),
            f"prefill_attention: {name} must be int32 or int64, it is {getattr(numbers, 'dtype', None)}",
        )
    forms.require(
        k_cache.dtype == v_cache.dtype and k_cache.dtype in (q.dtype, torch.float8_e4m3fn),
        f"prefill_attention: q is {q.dtype}, the caches are {k_cache.dtype} and {v_cache.dtype}",
    )


def check_options(q, k_cache, scale, max_q, *, window, soft_cap, sinks, return_lse, k_scale, v_scale):
    """ValueError for an option out of its range."""
    num_heads, num_kv_heads = q.shape[1], k_cache.shape[2]
    forms.require(scale > 0, f"prefill_attention: scale must be positive, it is {scale}")
    forms.require(max_q is None or max_q >= 0, f"prefill_attention: max_q must not be negative, it is {max_q}")
    forms.require(window is None or window >= 1, f"prefill_attention: window must be at least 1, it is {window}")
    forms.require(soft_cap is None or soft_cap > 0, f"prefill_attention: soft_cap must be positive, it is {soft_cap}")
    if sinks is not None:
        forms.require(
            sinks.shape == (num_heads,) and sinks.is_floating_point(),
            f"prefill_attention: sinks must be [{num_heads}] floats, they are {tuple(sinks.shape)} {sinks.dtype}",
        )
    for name, factor in (("k_scale", k_scale), ("v_scale", v_scale)):
        if factor is None:
            continue
        forms.require(
            k_cache.dtype == torch.float8_e4m3fn, f"prefill_attention: {name} is for fp8 caches, not {k_cache.dtype}"
        )
        if isinstance(factor, torch.Tensor):
            forms.require(
                factor.shape == (num_kv_heads,) and factor.dtype == torch.float32,
                f"prefill_attention: {name} must be a float or [{num_kv_heads}] torch.float32, it is "
                f"{tuple(factor.shape)} {factor.dtype}",
            )
        else:
            forms.require(factor >= 0, f"prefill_attention: {name} must not be negative, it is {factor}")


def check_lengths(num_tokens, reach, context_lens, cu_q, max_q):
    """ValueError for lengths and offsets (lists) that do not fit the new tokens, the block table or max_q."""
    forms.require(
        cu_q[0] == 0 and cu_q[-1] == num_tokens and cu_q == sorted(cu_q),
        f"prefill_attention: cu_q must rise from 0 to {num_tokens}, it is {cu_q}",
    )
    shortest, longest = min(context_lens, default=0), max(context_lens, default=0)
    forms.require(shortest >= 0, f"prefill_attention: a context of {shortest} tokens")
    forms.require(longest <= reach, f"prefill_attention: a context of {longest} tokens but a block_table for {reach}")
    most = max((end - start for start, end in pairwise(cu_q)), default=0)
    forms.require(max_q is None or most <= max_q, f"prefill_attention: {most} new tokens but max_q is {max_q}")


def check_pages(num_blocks, block_size, block_table, context_lens, cu_q, window):
    """IndexError for a page that the caches do not have."""
    for sequence, context in enumerate(context_lens):
        new = cu_q[sequence + 1] - cu_q[sequence]
        first = first_key(context, new, window) // block_size
        pages = block_table[sequence, first : -(-context // block_size)]
        outside = ((pages < 0) | (pages >= num_blocks)).nonzero()
        if new and len(outside):
            entry = int(outside[0])
            raise IndexError(
                f"prefill_attention: block_table[{sequence}, {first + entry}] is {int(pages[entry])}, the caches have "
                f"{num_blocks} pages"
            )
