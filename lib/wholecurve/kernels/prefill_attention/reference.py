"""Chunked prefill attention over the paged cache, the definition."""

import torch


def prefill_attention_reference(q, k_cache, v_cache, block_table, context_lens, cu_q, scale):
    """See `wholecurve.kernels.prefill_attention.prefill_attention`; in fp32 (fp64 for fp64 inputs)."""
    block_size, group = k_cache.shape[1], q.shape[1] // k_cache.shape[2]
    wide = torch.promote_types(q.dtype, torch.float32)
    out = torch.zeros(q.shape[0], q.shape[1], v_cache.shape[3], dtype=q.dtype, device=q.device)
    for sequence, context in enumerate(context_lens):
        start, end = cu_q[sequence], cu_q[sequence + 1]
        if start == end or context == 0:
            continue
        pages = block_table[sequence, : -(-context // block_size)].long()
        k, v = (
            cache[pages].flatten(0, 1)[:context].to(wide).repeat_interleave(group, dim=1)
            for cache in (k_cache, v_cache)
        )
        scores = torch.einsum("thd,shd->hts", q[start:end].to(wide), k) * scale
        # bottom-right alignment: the last query sees the whole context
        seen = torch.ones(end - start, context, dtype=torch.bool, device=q.device).tril(context - (end - start))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1).masked_fill(~seen, 0)
        out[start:end] = torch.einsum("hts,shd->thd", weights, v).to(q.dtype)
    return out
