"""The lightning indexer, the definition: DeepSeek-V3.2, https://arxiv.org/abs/2512.02556, §2.1, equation 1."""

import torch


def indexer_scores_reference(
    q,
    weights,
    k_cache,
    block_table,
    sequences,
    lengths,
    *,
    max_context=None,
    compress=1,
    q_scale=None,
    k_scale=None,
):
    """See `wholecurve.kernels.indexer_scores.indexer_scores`; in fp32 (fp64 for an fp64 q)."""
    wide = torch.promote_types(torch.float32, q.dtype if q.dtype.itemsize > 1 else torch.float32)
    block_size = k_cache.shape[1]
    width = block_table.shape[1] * block_size if max_context is None else max_context
    out = torch.full((len(q), width), -torch.inf, dtype=wide, device=q.device)
    for row, (sequence, length) in enumerate(zip(sequences.tolist(), lengths.tolist())):
        positions = torch.arange(length // compress, device=q.device)
        pages, tokens = block_table[sequence, positions // block_size].long(), positions % block_size
        keys, query = k_cache[pages, tokens].to(wide), q[row].to(wide)  # [S, D], [H, D]
        if k_scale is not None:
            keys = keys * k_scale[pages, tokens, None].to(wide)
        if q_scale is not None:
            query = query * q_scale[row, :, None].to(wide)
        out[row, : len(positions)] = weights[row].to(wide) @ (query @ keys.T).relu()
    return out
