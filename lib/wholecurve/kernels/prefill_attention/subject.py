"""Chunked prefill attention as the laboratory sees it."""

from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F

from wholecurve.kernels.decode_attention.reference import first_key, read_cache
from wholecurve.kernels.decode_attention.subject import cache, gathered, page_tables
from wholecurve.kernels.forms import require
from wholecurve.kernels.prefill_attention import FORMS, as_list, prefill_attention, spec
from wholecurve.kernels.prefill_attention.reference import prefill_attention_reference
from wholecurve.kernels.subject import Expected, Subject


def make(
    inputs,
    chunks,
    num_heads,
    num_kv_heads,
    head_dim,
    block_size,
    dtype="bfloat16",
    max_q=None,
    v_head_dim=None,
    window=None,
    soft_cap=None,
    has_sinks=False,
    return_lse=False,
    cache_dtype=None,
    scales=None,
    index_dtype="int32",
):
    """Arguments of `prefill_attention` for a case: shuffled pages, poison in every entry and slot that is not used.

    The queries are cut out of a wider tensor, as a model with one matrix for q, k and v has them.
    """
    contexts, cu_q = [context for _, context in chunks], [0, *accumulate(new for new, _ in chunks)]
    width = max((-(-context // block_size) for context in contexts), default=0) + 1
    starts = [first_key(context, new, window) for new, context in chunks]
    num_blocks = 2 + sum(-(-end // block_size) - start // block_size for start, end in zip(starts, contexts) if end)
    block_table = inputs.full(len(chunks), width, value=0, dtype=index_dtype)
    used = None
    if not inputs.is_meta:
        block_table, used = page_tables(inputs, starts, contexts, width, block_size, num_blocks, index_dtype)
    k_cache, v_cache = (
        cache(inputs, used, num_blocks, block_size, num_kv_heads, size, cache_dtype or dtype)
        for size in (head_dim, v_head_dim or head_dim)
    )
    factors = {"tensor": [0.5, 1.75], "head": [inputs.uniform(num_kv_heads, low=0.5, high=2.0) for _ in "kv"]}
    k_scale, v_scale = factors.get(scales, (None, None))
    return {
        "q": inputs.normal(cu_q[-1], num_heads + 2 * num_kv_heads, head_dim, dtype=dtype)[:, :num_heads],
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_table": block_table,
        "context_lens": inputs.fixed(contexts, index_dtype),
        "cu_q": inputs.fixed(cu_q, index_dtype),
        "scale": head_dim**-0.5,
        "max_q": max_q,
        "window": window,
        "soft_cap": soft_cap,
        "sinks": inputs.normal(num_heads, dtype="float32", scale=2.0) if has_sinks else None,
        "return_lse": return_lse,
        "k_scale": k_scale,
        "v_scale": v_scale,
    }


def expected(q, k_cache, v_cache, block_table, context_lens, cu_q, scale, *, max_q=None, **options):
    """The definition in float64.

    A half dtype has one rounding of the result and one of each weight. fp32 errors follow the size of the averaged
    values, those of the logarithm the size of the summed products.
    """
    caches = (k_cache, v_cache, block_table, as_list(context_lens), as_list(cu_q))
    out, lse = prefill_attention_reference(q.double(), *caches, scale, **(options | {"return_lse": True}))
    values = largest_values(v_cache, *caches[2:], q.shape[0], options["window"], options["v_scale"])
    answer = (Expected(out, ulps=8 if q.dtype == torch.float32 else 1, scale=values),)
    if not options["return_lse"]:
        return answer
    products = largest_products(q, k_cache, *caches[2:], options["window"], options["k_scale"])
    return (*answer, Expected(lse, ulps=8, scale=1 + products * scale))


def largest_values(v_cache, block_table, context_lens, cu_q, num_tokens, window, v_scale):
    """[T, 1, 1]: the largest |v| that any query of the token's sequence sees."""
    largest = torch.zeros(num_tokens, 1, 1, dtype=torch.float64, device=v_cache.device)
    for tokens, first, context, table_row in spans(block_table, context_lens, cu_q, window):
        largest[tokens] = read_cache(v_cache, v_scale, table_row, first, context, torch.float64).abs().max()
    return largest


def largest_products(q, k_cache, block_table, context_lens, cu_q, window, k_scale):
    """[T, H]: the largest Σ|q||k| of each query over the keys of its sequence."""
    largest = torch.zeros(q.shape[:2], dtype=torch.float64, device=q.device)
    for tokens, first, context, table_row in spans(block_table, context_lens, cu_q, window):
        k = read_cache(k_cache, k_scale, table_row, first, context, torch.float64).abs()
        for head in range(q.shape[1]):
            kv_head = head // (q.shape[1] // k.shape[1])
            largest[tokens, head] = (q[tokens, head].double().abs() @ k[:, kv_head].T).amax(dim=1)
    return largest


def spans(block_table, context_lens, cu_q, window):
    """(tokens, first key, context, its row of the table) of each sequence whose queries see a key; lists."""
    for sequence, (start, end) in enumerate(pairwise(cu_q)):
        first, context = first_key(context_lens[sequence], end - start, window), context_lens[sequence]
        if start < end and first < context:
            yield slice(start, end), first, context, block_table[sequence]


def eager(
    q,
    k_cache,
    v_cache,
    block_table,
    context_lens,
    cu_q,
    scale,
    *,
    max_q=None,
    window=None,
    soft_cap=None,
    sinks=None,
    return_lse=False,
    k_scale=None,
    v_scale=None,
):
    """What a model file in plain torch does: pad the batch, gather the pages, repeat the heads, two products around a
    softmax.
    """
    rows, place = padded_rows(q, cu_q, max_q)
    slots, seen = padded_slots(block_table, context_lens, cu_q, k_cache.shape[1], rows.shape[1], window)
    group = q.shape[1] // k_cache.shape[2]
    k, v = (
        gathered(cached, slots, factor, q.dtype).transpose(1, 2).repeat_interleave(group, dim=1)
        for cached, factor in ((k_cache, k_scale), (v_cache, v_scale))
    )  # [B, H, S, D]
    scores = torch.matmul(rows.transpose(1, 2), k.mT) * scale
    if soft_cap is not None:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    logits = scores.float().masked_fill(~seen[:, None], -torch.inf)
    if sinks is not None:
        logits = torch.cat([logits, sinks.float()[None, :, None, None].expand(*logits.shape[:3], 1)], dim=-1)
    weights = logits.softmax(dim=-1).nan_to_num(0.0)[..., : k.shape[2]].to(q.dtype)
    out = torch.matmul(weights, v).transpose(1, 2)[place]
    return (out, logits.logsumexp(dim=-1).transpose(1, 2)[place]) if return_lse else out


def library(q, k_cache, v_cache, block_table, context_lens, cu_q, scale, *, max_q=None, window=None, **options):
    """Pad the batch, gather the pages and call torch's fused attention with a mask.

    ValueError for what that cannot do: a soft cap, sinks, a logarithm, scales.
    """
    refused = [name for name, value in options.items() if value is not None and value is not False]
    require(not refused, f"torch's fused attention has no {', '.join(refused)}")
    rows, place = padded_rows(q, cu_q, max_q)
    slots, seen = padded_slots(block_table, context_lens, cu_q, k_cache.shape[1], rows.shape[1], window)
    k, v = (gathered(cached, slots, None, q.dtype).transpose(1, 2) for cached in (k_cache, v_cache))  # [B, G, S, D]
    out = F.scaled_dot_product_attention(
        rows.transpose(1, 2), k, v, attn_mask=seen[:, None], scale=scale, enable_gqa=True
    )
    # a row that sees nothing is NaN in some of torch's kernels
    return out.transpose(1, 2)[place].masked_fill(~seen.any(dim=2)[place][:, None, None], 0)


def padded_rows(q, cu_q, max_q):
    """(q as [B, max_q, H, D], the index that takes such rows back to [T, …]); nothing is read from the device."""
    max_q, starts = q.shape[0] if max_q is None else max_q, cu_q[:-1].long()
    tokens = (starts[:, None] + torch.arange(max_q, device=q.device)).clamp(max=max(0, q.shape[0] - 1))
    numbers = torch.arange(q.shape[0], device=q.device)
    sequences = torch.searchsorted(cu_q[1:].long(), numbers, right=True)
    return q[tokens], (sequences, numbers - starts[sequences])


def padded_slots(block_table, context_lens, cu_q, block_size, max_q, window):
    """(cache slot of each position [B, S], which keys each row sees [B, max_q, S]) over the width of the table.

    An unused position stands for the last token of its sequence.
    """
    keys = torch.arange(block_table.shape[1] * block_size, device=block_table.device)
    ends, new = context_lens.long()[:, None], cu_q.long().diff()[:, None]
    rows = torch.arange(max_q, device=keys.device)
    positions = ends - new + rows  # [B, max_q]
    seen = (keys <= positions[:, :, None]) & (rows < new)[:, :, None]
    if window is not None:
        seen &= keys > positions[:, :, None] - window
    own = keys.where(seen.any(dim=1), (ends - 1).clamp(min=0))
    return block_table.long().gather(1, own // block_size) * block_size + own % block_size, seen


SUBJECT = Subject(
    "prefill_attention",
    prefill_attention,
    FORMS,
    spec,
    make,
    expected,
    baselines={"eager": eager, "library": library},
)
