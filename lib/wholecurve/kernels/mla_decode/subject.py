"""MLA decode as the laboratory sees it."""

import torch
import torch.nn.functional as F

from wholecurve.kernels.cost import ceil_div
from wholecurve.kernels.forms import require
from wholecurve.kernels.mla_decode import FORMS, mla_decode, spec
from wholecurve.kernels.subject import Expected, Subject

SPARE_PAGES = 2  # of the cache, that no table names


def make(
    inputs,
    contexts,
    num_heads,
    value_dim,
    rope_dim,
    block_size,
    num_queries=1,
    max_context=None,
    window=None,
    sinks=False,
    return_lse=False,
    fp8=False,
    num_listed=None,
    dtype="bfloat16",
):
    """Arguments of `mla_decode` for a case: shuffled pages; NaN, −1 and huge page ids where nothing is stored."""
    width, num_sequences = value_dim + rope_dim, len(contexts)
    table_blocks = ceil_div(max(contexts, default=0) if max_context is None else max_context, block_size)
    num_blocks = sum(ceil_div(context, block_size) for context in contexts) + SPARE_PAGES
    latent_cache = inputs.normal(num_blocks, block_size, width, dtype="float8_e4m3fn" if fp8 else dtype)
    latent_scale = inputs.uniform(num_blocks, block_size, low=0.25, high=2.0) if fp8 else None
    block_table = inputs.full(num_sequences, table_blocks, value=-1, dtype="int32")
    if not inputs.is_meta:
        block_table[:, 1::2] = 2**31 - 1
        fill_pages(contexts, block_table, inputs.permutation(num_blocks), latent_cache, latent_scale)
    queries = (num_queries,) if num_queries > 1 else ()
    indices = None
    if num_listed:
        indices = inputs.full(num_sequences, num_queries, num_listed, value=-1, dtype="int32")
        if not inputs.is_meta:
            fill_lists(inputs, contexts, indices, window)
        indices = indices.view(num_sequences, *queries, num_listed)
    return {
        "q": inputs.normal(num_sequences, *queries, num_heads, width, dtype=dtype),
        "latent_cache": latent_cache,
        "block_table": block_table,
        "context_lens": inputs.fixed(contexts, "int32"),
        "scale": (value_dim / 4 + rope_dim) ** -0.5,  # heads before absorption are a quarter of the latent wide
        "value_dim": value_dim,
        "window": window,
        "sinks": inputs.normal(num_heads, dtype="float32") if sinks else None,
        "return_lse": return_lse,
        "latent_scale": latent_scale,
        "indices": indices,
    }


def fill_pages(contexts, block_table, pages, latent_cache, latent_scale):
    """Give each sequence its pages, and poison every slot that then holds no token."""
    stored = torch.zeros(latent_cache.shape[:2], dtype=torch.bool, device=latent_cache.device)
    block_size, taken = latent_cache.shape[1], 0
    for sequence, context in enumerate(contexts):
        blocks = ceil_div(context, block_size)
        block_table[sequence, :blocks] = pages[taken : taken + blocks]
        stored[pages[taken : taken + blocks]] = True
        if context % block_size:
            stored[pages[taken + blocks - 1], context % block_size :] = False
        taken += blocks
    if latent_scale is None:
        latent_cache[~stored] = torch.nan
    else:
        latent_cache.view(torch.uint8)[~stored] = 0x7F  # NaN of float8_e4m3fn, which cannot be filled
        latent_scale[~stored] = torch.nan


def fill_lists(inputs, contexts, indices, window):
    """Random visible positions in ascending order in front of the padding, as top-k gives them."""
    num_queries, num_listed = indices.shape[1:]
    for sequence, context in enumerate(contexts):
        shuffled = inputs.permutation(context)
        for query in range(num_queries):
            limit = context - num_queries + 1 + query
            low = 0 if window is None else limit - window
            chosen = shuffled[(shuffled >= low) & (shuffled < limit)][:num_listed].sort().values
            indices[sequence, query, : len(chosen)] = chosen


def expected(
    q,
    latent_cache,
    block_table,
    context_lens,
    scale,
    *,
    value_dim,
    window,
    sinks,
    return_lse,
    latent_scale,
    indices,
):
    """Attention in float64, each token weighted by how often a query takes it.

    A weight is rounded to the dtype of q before it meets its value, and the result after: 1 eps of Σ weight · |value|.
    fp32 sums err by some eps(fp32) of Σ|q||latent|, and so do their exponentials relatively: that decides for a
    result in fp32 and for the logarithm, and is far below one rounding of a narrower result.
    """
    queries = (q if q.dim() == 4 else q.unsqueeze(1)).double()  # [B, Q, H, width]
    lists = [None] * len(q) if indices is None else indices.view(*queries.shape[:2], -1).long()
    sink = queries.new_full(queries.shape[2:3], -torch.inf) if sinks is None else sinks.double()
    out, size = (queries.new_zeros(*queries.shape[:3], value_dim) for _ in range(2))
    lse, products = (queries.new_zeros(queries.shape[:3]) for _ in range(2))
    for sequence, context in enumerate(context_lens.tolist()):
        lowest, times = visible(context, queries.shape[1], window, lists[sequence], q.device)
        positions = torch.arange(lowest, context, device=q.device)
        latents = stored_latents(latent_cache, latent_scale, block_table[sequence], positions)
        logits = (queries[sequence] @ latents.T * scale).masked_fill(times == 0, -torch.inf)  # [Q, H, S]
        shift = torch.cat([logits, sink[:, None].expand(len(logits), -1, -1)], dim=2).amax(dim=2, keepdim=True)
        shift = shift.masked_fill(shift == -torch.inf, 0.0)
        weights = times * (logits - shift).exp()
        total = weights.sum(dim=2, keepdim=True) + (sink[:, None] - shift).exp()
        lse[sequence] = (shift + total.log())[..., 0]
        weights /= total.where(total > 0, 1.0)
        out[sequence] = weights @ latents[:, :value_dim]
        size[sequence] = weights @ latents[:, :value_dim].abs()
        if context > lowest:
            sums = queries[sequence].abs() @ latents.abs().T * abs(scale)
            products[sequence] = (sums * (times > 0)).amax(dim=2)
    out, size, lse, products = (result.view(*q.shape[:-1], *result.shape[3:]) for result in (out, size, lse, products))
    tolerance = dict(ulps=2, scale=size)
    if q.dtype == torch.float32:
        tolerance = dict(ulps=4, scale=size * (1 + products[..., None]))
    return (Expected(out, **tolerance), *[Expected(lse, ulps=4, scale=1 + products)] * return_lse)


def visible(context, num_queries, window, lists, device):
    """(first position that a query sees, how often each query takes each position from there on [Q, 1, S])."""
    ends = context - num_queries + 1 + torch.arange(num_queries, device=device)[:, None]
    lowest = min(context, max(0, context - num_queries + 1 - window)) if window else 0
    positions = torch.arange(lowest, context, device=device)
    times = (positions < ends).double()
    if window:
        times *= positions >= ends - window
    if lists is not None:
        # one more place in front, where the padding is counted
        counts = times.new_zeros(num_queries, 1 + context)
        times *= counts.scatter_add_(1, 1 + lists, torch.ones_like(lists).double())[:, 1 + lowest :]
    return lowest, times[:, None]


def stored_latents(latent_cache, latent_scale, pages, positions):
    """The latents [S, width] of positions of one sequence in float64."""
    block_size = latent_cache.shape[1]
    pages, tokens = pages[positions // block_size].long(), positions % block_size
    latents = latent_cache[pages, tokens].double()
    return latents if latent_scale is None else latents * latent_scale[pages, tokens, None].double()


def eager(
    q,
    latent_cache,
    block_table,
    context_lens,
    scale,
    *,
    value_dim,
    window=None,
    sinks=None,
    return_lse=False,
    latent_scale=None,
    indices=None,
):
    """What a model file in plain torch does: gather the latents, two products around a softmax in fp32."""
    queries = q if q.dim() == 4 else q.unsqueeze(1)
    latents, seen = padded_latents(queries, latent_cache, block_table, context_lens, window, latent_scale, indices)
    logits = torch.matmul(queries.float(), latents.mT.float()) * scale  # [B, Q, H, S]
    logits = logits.masked_fill(~seen[:, :, None], -torch.inf)
    if sinks is not None:
        logits = torch.cat([logits, sinks.float()[:, None].expand(*logits.shape[:3], 1)], dim=-1)
    weights = logits.softmax(dim=-1).nan_to_num(0.0)[..., : latents.shape[2]].to(q.dtype)
    out = torch.matmul(weights, latents[..., :value_dim]).view(*q.shape[:-1], value_dim)
    return (out, logits.logsumexp(dim=-1).view(q.shape[:-1])) if return_lse else out


def library(q, latent_cache, block_table, context_lens, scale, *, value_dim, window=None, **options):
    """Gather the latents and call torch's fused attention, the heads as query positions of one head.

    ValueError for what that cannot do: sinks, a logarithm.
    """
    latent_scale, indices = options.pop("latent_scale", None), options.pop("indices", None)
    refused = [name for name, value in options.items() if value is not None and value is not False]
    require(not refused, f"torch's fused attention has no {', '.join(refused)}")
    queries = q if q.dim() == 4 else q.unsqueeze(1)
    latents, seen = padded_latents(queries, latent_cache, block_table, context_lens, window, latent_scale, indices)
    out = F.scaled_dot_product_attention(
        queries, latents, latents[..., :value_dim], attn_mask=seen[:, :, None], scale=scale
    )
    return out.view(*q.shape[:-1], value_dim)


def padded_latents(queries, latent_cache, block_table, context_lens, window, latent_scale, indices):
    """(latents [B, 1, S, width] or with lists [B, Q, K, width], which of them each query sees [B, Q, S or K]).

    Nothing is read from the device. Where no query sees a token there are zeros.
    """
    num_sequences, num_queries = queries.shape[:2]
    block_size, ends = latent_cache.shape[1], context_lens.long()[:, None, None]
    limits = ends - num_queries + 1 + torch.arange(num_queries, device=queries.device)[:, None]  # [B, Q, 1]
    if indices is None:
        positions = torch.arange(block_table.shape[1] * block_size, device=queries.device).view(1, 1, -1)
    else:
        positions = indices.view(num_sequences, num_queries, -1).long()
    seen = (positions >= 0) & (positions < limits)
    if window is not None:
        seen &= positions >= limits - window
    used = seen.any(dim=1, keepdim=True) if indices is None else seen
    positions = positions.where(used, 0)
    pages = block_table.long().gather(1, (positions // block_size).flatten(1)).view(positions.shape)
    slots = (pages * block_size + positions % block_size).where(used, 0)
    latents = latent_cache.flatten(0, 1)[slots].to(queries.dtype)
    if latent_scale is not None:
        latents = (latents.float() * latent_scale.flatten()[slots][..., None]).to(queries.dtype)
    return latents.masked_fill_(~used[..., None], 0.0), seen


SUBJECT = Subject("mla_decode", mla_decode, FORMS, spec, make, expected, baselines={"eager": eager, "library": library})
