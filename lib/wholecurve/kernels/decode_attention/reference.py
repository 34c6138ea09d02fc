"""Paged decode attention, the definition: one new query token per sequence over its cache."""

import torch


def decode_attention_reference(q, k_cache, v_cache, block_table, context_lens, scale):
    """See `wholecurve.kernels.decode_attention.decode_attention`; in fp32 (fp64 for fp64 inputs)."""
    num_heads, block_size, num_kv_heads = q.shape[1], k_cache.shape[1], k_cache.shape[2]
    wide = torch.promote_types(q.dtype, torch.float32)
    out = torch.zeros(q.shape[0], num_heads, v_cache.shape[3], dtype=q.dtype, device=q.device)
    for sequence, context in enumerate(context_lens.tolist()):
        if context == 0:
            continue
        pages = block_table[sequence, : -(-context // block_size)].long()
        group = num_heads // num_kv_heads
        # [context, H, D]: each key-value head serves `group` query heads in a row
        k, v = (
            cache[pages].flatten(0, 1)[:context].to(wide).repeat_interleave(group, dim=1)
            for cache in (k_cache, v_cache)
        )
        scores = torch.einsum("hd,shd->hs", q[sequence].to(wide), k) * scale
        out[sequence] = torch.einsum("hs,shd->hd", scores.softmax(dim=-1), v).to(q.dtype)
    return out
