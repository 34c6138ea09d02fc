"""Paged decode attention as the laboratory sees it."""

import torch
import torch.nn.functional as F

from wholecurve.kernels.decode_attention import FORMS, decode_attention, spec
from wholecurve.kernels.decode_attention.reference import decode_attention_reference, first_key, read_cache
from wholecurve.kernels.forms import require
from wholecurve.kernels.inputs import as_dtype
from wholecurve.kernels.subject import Expected, Subject

UNUSED_ENTRIES = (-1, 2**31 - 1)


def make(
    inputs,
    contexts,
    num_heads,
    num_kv_heads,
    head_dim,
    block_size,
    dtype="bfloat16",
    num_queries=None,
    v_head_dim=None,
    window=None,
    soft_cap=None,
    has_sinks=False,
    return_lse=False,
    cache_dtype=None,
    scales=None,
    table_blocks=None,
    index_dtype="int32",
    spread=1.0,
):
    """Arguments of `decode_attention` for a case: shuffled pages, poison in every entry and slot that is not used."""
    width = spec.table_width(contexts, block_size) if table_blocks is None else table_blocks
    starts = [spec.first_key(context, num_queries or 1, window) for context in contexts]
    num_blocks = 2 + sum(-(-end // block_size) - start // block_size for start, end in zip(starts, contexts) if end)
    block_table = inputs.full(len(contexts), width, value=0, dtype=index_dtype)
    used = None
    if not inputs.is_meta:
        block_table, used = page_tables(inputs, starts, contexts, width, block_size, num_blocks, index_dtype)
    caches = [
        cache(inputs, used, num_blocks, block_size, num_kv_heads, size, cache_dtype or dtype)
        for size in (head_dim, v_head_dim or head_dim)
    ]
    factors = {"tensor": [0.5, 1.75], "head": [inputs.uniform(num_kv_heads, low=0.5, high=2.0) for _ in "kv"]}
    k_scale, v_scale = factors.get(scales, (None, None))
    asked = (num_heads, head_dim) if num_queries is None else (num_queries, num_heads, head_dim)
    return {
        "q": inputs.normal(len(contexts), *asked, dtype=dtype, scale=spread),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "block_table": block_table,
        "context_lens": inputs.fixed(contexts, index_dtype),
        "scale": head_dim**-0.5,
        "window": window,
        "soft_cap": soft_cap,
        "sinks": inputs.normal(num_heads, dtype="float32", scale=2.0) if has_sinks else None,
        "return_lse": return_lse,
        "k_scale": k_scale,
        "v_scale": v_scale,
    }


def page_tables(inputs, starts, contexts, width, block_size, num_blocks, index_dtype):
    """(block_table [B, width], used [num_blocks, block_size] bool): pages in random order, poison in unused entries."""
    starts, ends = (inputs.fixed(numbers, "int64")[:, None] for numbers in (starts, contexts))
    entries = torch.arange(width, device=inputs.device)
    needed = (entries >= starts // block_size) & (entries * block_size < ends)
    block_table = inputs.fixed(UNUSED_ENTRIES, "int64")[entries % 2].repeat(len(contexts), 1)
    block_table[needed] = inputs.permutation(num_blocks)[: int(needed.sum())]
    positions = torch.arange(width * block_size, device=inputs.device)
    sequences, keys = ((positions >= starts) & (positions < ends)).nonzero(as_tuple=True)
    used = inputs.full(num_blocks, block_size, value=False, dtype="bool")
    used[block_table[sequences, keys // block_size], keys % block_size] = True
    return block_table.to(as_dtype(index_dtype)), used


def cache(inputs, used, num_blocks, block_size, num_kv_heads, size, dtype):
    """A cache [num_blocks, block_size, G, size] with NaN in the slots that are not used."""
    if inputs.is_meta:
        return inputs.normal(num_blocks, block_size, num_kv_heads, size, dtype=dtype)
    numbers = inputs.normal(num_blocks, block_size, num_kv_heads, size, dtype="float32")
    return numbers.masked_fill_(~used[:, :, None, None], torch.nan).to(as_dtype(dtype))


def expected(q, k_cache, v_cache, block_table, context_lens, scale, **options):
    """The definition in float64.

    A half dtype has one rounding of the result and one of each weight. fp32 errors follow the size of the averaged
    values, those of the logarithm the size of the summed products.
    """
    caches = (k_cache, v_cache, block_table, context_lens)
    out, lse = decode_attention_reference(q.double(), *caches, scale, **(options | {"return_lse": True}))
    products, values = sizes(q, *caches, **options)
    tolerance = dict(ulps=8, scale=values) if q.dtype == torch.float32 else dict(ulps=1)
    answer = (Expected(out, **tolerance),)
    return (*answer, Expected(lse, ulps=8, scale=1 + products * scale)) if options["return_lse"] else answer


def sizes(q, k_cache, v_cache, block_table, context_lens, *, window, k_scale, v_scale, **_):
    """(largest Σ|q||k| of each query's keys, largest |v| of each sequence), shaped to scale LSE and output."""
    asked = q if q.dim() == 4 else q[:, None]
    products = torch.zeros(asked.shape[:3], dtype=torch.float64, device=q.device)
    values = torch.zeros(len(q), *[1] * (q.dim() - 1), dtype=torch.float64, device=q.device)
    for sequence, context in enumerate(context_lens.tolist()):
        first = first_key(context, asked.shape[1], window)
        if first == context:
            continue
        span = (block_table[sequence], first, context, torch.float64)
        k = read_cache(k_cache, k_scale, *span).abs().repeat_interleave(q.shape[-2] // k_cache.shape[2], dim=1)
        products[sequence] = torch.einsum("qhd,shd->qhs", asked[sequence].double().abs(), k).amax(dim=2)
        values[sequence] = read_cache(v_cache, v_scale, *span).abs().max()
    return products.view(q.shape[:-1]), values


def eager(
    q,
    k_cache,
    v_cache,
    block_table,
    context_lens,
    scale,
    *,
    window=None,
    soft_cap=None,
    sinks=None,
    return_lse=False,
    k_scale=None,
    v_scale=None,
):
    """What a model file in plain torch does: gather the pages, repeat the heads, two products around a softmax."""
    asked = (q if q.dim() == 4 else q[:, None]).transpose(1, 2)  # [B, H, Q, Dk]
    num_queries, group = asked.shape[2], asked.shape[1] // k_cache.shape[2]
    slots, seen = padded_slots(block_table, context_lens, k_cache.shape[1], num_queries, window)
    k, v = (
        gathered(cache, slots, factor, q.dtype).transpose(1, 2).repeat_interleave(group, dim=1)
        for cache, factor in ((k_cache, k_scale), (v_cache, v_scale))
    )  # [B, H, S, D]
    scores = torch.matmul(asked, k.mT) * scale
    if soft_cap is not None:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    logits = scores.float().masked_fill(~seen[:, None], -torch.inf)
    if sinks is not None:
        logits = torch.cat([logits, sinks.float()[None, :, None, None].expand(len(q), -1, num_queries, 1)], dim=-1)
    weights = logits.softmax(dim=-1, dtype=torch.float32).nan_to_num(0.0)[..., : k.shape[2]].to(q.dtype)
    out = torch.matmul(weights, v).transpose(1, 2).reshape(*q.shape[:-1], v.shape[-1])
    return (out, logits.logsumexp(dim=-1).transpose(1, 2).reshape(q.shape[:-1])) if return_lse else out


def library(q, k_cache, v_cache, block_table, context_lens, scale, *, window=None, **options):
    """Gather the pages and call torch's fused attention, the heads of a group as query positions.

    ValueError for what that cannot do: a soft cap, sinks, a logarithm, scales.
    """
    refused = [name for name, value in options.items() if value is not None and value is not False]
    require(not refused, f"torch's fused attention has no {', '.join(refused)}")
    asked = q if q.dim() == 4 else q[:, None]
    num_queries, num_kv_heads = asked.shape[1], k_cache.shape[2]
    slots, seen = padded_slots(block_table, context_lens, k_cache.shape[1], num_queries, window)
    k, v = (gathered(cache, slots, None, q.dtype).transpose(1, 2) for cache in (k_cache, v_cache))  # [B, G, S, D]
    rows = asked.unflatten(2, (num_kv_heads, -1)).transpose(1, 2)  # [B, G, Q, H / G, Dk]
    mask = seen[:, None, :, None].expand(-1, -1, -1, rows.shape[3], -1).flatten(2, 3)
    out = F.scaled_dot_product_attention(rows.flatten(2, 3), k, v, attn_mask=mask, scale=scale)
    return out.unflatten(2, rows.shape[2:4]).transpose(1, 2).reshape(*q.shape[:-1], -1)


def padded_slots(block_table, context_lens, block_size, num_queries, window):
    """(cache slot of each position [B, S], which keys each query token sees [B, Q, S]) over the width of the table.

    Nothing is read from the device. An unused position stands for the last token of its sequence.
    """
    keys = torch.arange(block_table.shape[1] * block_size, device=block_table.device)
    ends = context_lens.long()[:, None]
    positions = ends - num_queries + torch.arange(num_queries, device=keys.device)  # [B, Q]
    seen = keys <= positions[:, :, None]
    if window is not None:
        seen &= keys > positions[:, :, None] - window
    own = keys.where(seen.any(dim=1), (ends - 1).clamp(min=0))
    return block_table.long().gather(1, own // block_size) * block_size + own % block_size, seen


def gathered(cache, slots, factor, dtype):
    """[B, S, G, D] of the cache in `dtype`, times its scale."""
    vectors = cache.flatten(0, 1)[slots]
    if factor is None:
        return vectors.to(dtype)
    return (vectors.float() * (factor[:, None] if isinstance(factor, torch.Tensor) else factor)).to(dtype)


SUBJECT = Subject(
    "decode_attention",
    decode_attention,
    FORMS,
    spec,
    make,
    expected,
    baselines={"eager": eager, "library": library},
)
