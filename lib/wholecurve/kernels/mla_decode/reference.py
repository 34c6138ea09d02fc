"""MLA decode in its absorbed form, the definition: DeepSeek-V2, https://arxiv.org/abs/2405.04434, §2.1 and appendix C.

Keys and values of all heads are one cached latent vector per token once the up-projections are absorbed into the
query and the output. Lists of tokens: DeepSeek-V3.2, https://arxiv.org/abs/2512.02556, §2.
"""

import torch


def mla_decode_reference(
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
    """See `wholecurve.kernels.mla_decode.mla_decode`; in fp32 (fp64 for an fp64 q)."""
    wide = torch.promote_types(q.dtype, torch.float32)
    queries = q if q.dim() == 4 else q.unsqueeze(1)  # [B, Q, H, width]
    lists = indices if indices is None or q.dim() == 4 else indices.unsqueeze(1)
    num_sequences, num_queries, num_heads, _ = queries.shape
    block_size = latent_cache.shape[1]
    out = queries.new_zeros(num_sequences, num_queries, num_heads, value_dim)
    lse = torch.full(queries.shape[:3], -torch.inf, dtype=wide, device=q.device)
    for sequence, context in enumerate(context_lens.tolist()):
        for query in range(num_queries):
            limit = context - (num_queries - 1 - query)  # positions before it are visible
            low = 0 if window is None else max(0, limit - window)
            positions = torch.arange(low, max(limit, low), device=q.device)
            if lists is not None:
                listed = lists[sequence, query].long()
                positions = listed[(listed >= low) & (listed < limit)]
            pages, tokens = block_table[sequence, positions // block_size].long(), positions % block_size
            latents = latent_cache[pages, tokens].to(wide)  # [S, width]
            if latent_scale is not None:
                latents = latents * latent_scale[pages, tokens, None].to(wide)
            logits = queries[sequence, query].to(wide) @ latents.T * scale  # [H, S]
            if sinks is not None:
                logits = torch.cat([logits, sinks.to(wide)[:, None]], dim=1)
            lse[sequence, query] = logits.logsumexp(dim=1)
            weights = logits.softmax(dim=1)[:, : len(positions)]
            out[sequence, query] = (weights @ latents[:, :value_dim]).to(q.dtype)
    out, lse = out.view(*q.shape[:-1], value_dim), lse.view(q.shape[:-1])
    return (out, lse) if return_lse else out
