"""Chunked prefill attention over the paged cache, the definition.

softmax(Q Kᵀ · scale) V is equation 1 of Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, with the grouped heads
of Ainslie et al. 2023, https://arxiv.org/abs/2305.13245. The soft cap is that of Gemma 2,
https://arxiv.org/abs/2408.00118, section 2.1; the logit without a value ("sink") that of gpt-oss,
https://arxiv.org/abs/2508.10925, section 2.2.
"""

import torch

from wholecurve.kernels.decode_attention.reference import first_key, read_cache, seen_keys


def prefill_attention_reference(
    q,
    k_cache,
    v_cache,
    block_table,
    context_lens,
    cu_q,
    scale,
    *,
    window=None,
    soft_cap=None,
    sinks=None,
    return_lse=False,
    k_scale=None,
    v_scale=None,
):
    """See `wholecurve.kernels.prefill_attention.prefill_attention`, with lists for context_lens and cu_q; in fp32
    (fp64 for fp64 inputs), one key-value head of one sequence at a time.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // k_cache.shape[2]
    out = q.new_empty(*q.shape[:2], v_cache.shape[3])
    lse = q.new_empty(q.shape[:2], dtype=wide)
    sink_logits = q.new_full((q.shape[1],), -torch.inf, dtype=wide) if sinks is None else sinks.to(wide)
    for sequence, context in enumerate(context_lens):
        tokens = slice(cu_q[sequence], cu_q[sequence + 1])
        new = tokens.stop - tokens.start
        if not new:
            continue
        first = first_key(context, new, window)
        k, v = (
            read_cache(cache, factor, block_table[sequence], first, context, wide)
            for cache, factor in ((k_cache, k_scale), (v_cache, v_scale))
        )  # [keys, G, D]
        unseen = ~seen_keys(first, context, new, window, q.device)
        for kv_head in range(k_cache.shape[2]):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            scores = torch.einsum("thd,sd->hts", q[tokens, heads].to(wide), k[:, kv_head]) * scale
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            scores = scores.masked_fill(unseen, -torch.inf)
            # a sink is one more key, without a value
            logits = torch.cat([scores, sink_logits[heads, None, None].expand(-1, new, 1)], dim=2)
            lse[tokens, heads] = logits.logsumexp(dim=2).T
            # a row that sees nothing would divide 0 by 0
            weights = logits.softmax(dim=2).masked_fill((logits == -torch.inf).all(dim=2, keepdim=True), 0)
            out[tokens, heads] = torch.einsum("hts,sd->thd", weights[:, :, :-1], v[:, kv_head]).to(q.dtype)
    return (out, lse) if return_lse else out
