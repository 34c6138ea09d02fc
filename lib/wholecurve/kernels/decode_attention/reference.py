"""Paged decode attention, the definition: the newest query tokens of each sequence over its cache.

softmax(Q Kᵀ · scale) V is equation 1 of Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, with the grouped heads
of Ainslie et al. 2023, https://arxiv.org/abs/2305.13245. The soft cap is that of Gemma 2,
https://arxiv.org/abs/2408.00118, section 2.1; the logit without a value ("sink") that of gpt-oss,
https://arxiv.org/abs/2508.10925, section 2.2.
"""

import torch


def decode_attention_reference(
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
    """See `wholecurve.kernels.decode_attention.decode_attention`; in fp32 (fp64 for fp64 inputs)."""
    wide = torch.promote_types(q.dtype, torch.float32)
    asked = q if q.dim() == 4 else q[:, None]  # [B, Q, H, D]
    num_queries, num_heads = asked.shape[1:3]
    group = num_heads // k_cache.shape[2]
    out = asked.new_empty(*asked.shape[:3], v_cache.shape[3])
    lse = asked.new_empty(asked.shape[:3], dtype=wide)
    no_sinks = asked.new_full((num_heads,), -torch.inf, dtype=wide)
    sink_logits = (no_sinks if sinks is None else sinks.to(wide))[:, None, None].expand(-1, num_queries, 1)
    for sequence, context in enumerate(context_lens.tolist()):
        first = first_key(context, num_queries, window)
        # [keys, H, D]: each key-value head serves `group` query heads in a row
        k, v = (
            read_cache(cache, factor, block_table[sequence], first, context, wide).repeat_interleave(group, dim=1)
            for cache, factor in ((k_cache, k_scale), (v_cache, v_scale))
        )
        scores = torch.einsum("qhd,shd->hqs", asked[sequence].to(wide), k) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        scores = scores.masked_fill(~seen_keys(first, context, num_queries, window, q.device), -torch.inf)
        logits = torch.cat([scores, sink_logits], dim=2)  # a sink is one more key, without a value
        lse[sequence] = logits.logsumexp(dim=2).T
        # a row that sees nothing would divide 0 by 0
        weights = logits.softmax(dim=2).masked_fill((logits == -torch.inf).all(dim=2, keepdim=True), 0)
        out[sequence] = torch.einsum("hqs,shd->qhd", weights[:, :, :-1], v).to(q.dtype)
    out, lse = out.view(*q.shape[:-1], out.shape[-1]), lse.view(q.shape[:-1])
    return (out, lse) if return_lse else out


def first_key(context, num_queries, window):
    """The first key that any of the last `num_queries` positions of a context sees."""
    return 0 if window is None else max(0, context - num_queries - window + 1)


def read_cache(cache, factor, table_row, first, context, dtype):
    """[context − first, G, D]: the cached vectors of a sequence from position `first` on, times their scale.

    No page is touched that holds none of them. IndexError for one that the cache does not have.
    """
    block_size = cache.shape[1]
    pages = table_row[first // block_size : -(-context // block_size)].long()
    skipped = first % block_size
    vectors = cache.index_select(0, pages).flatten(0, 1)[skipped : skipped + context - first].to(dtype)
    if factor is None:
        return vectors
    return vectors * (factor.to(dtype)[:, None] if isinstance(factor, torch.Tensor) else factor)


def seen_keys(first, context, num_queries, window, device):
    """[num_queries, context − first] bool: the last query token is at position context − 1 and sees itself."""
    keys = torch.arange(first, context, device=device)
    positions = torch.arange(context - num_queries, context, device=device)[:, None]
    seen = keys <= positions
    return seen if window is None else seen & (keys > positions - window)
