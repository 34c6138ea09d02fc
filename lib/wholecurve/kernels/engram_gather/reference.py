"""The lookup of Engram, the definition: https://arxiv.org/abs/2601.07372, section 2.2, e = concatenated table rows."""

import torch


def engram_gather_reference(table, rows, scales=None, out_dtype=None):
    """See `wholecurve.kernels.engram_gather.engram_gather`. Scales are multiplied in float32."""
    picked = rows.flatten().to(table.device)
    values = table[picked].to(torch.float32)
    if scales is not None:
        group = table.shape[1] // max(1, scales.shape[1])
        values = values * scales[picked].to(torch.float32).repeat_interleave(group, dim=1)
    out = values.to(out_dtype or (table.dtype if scales is None else torch.bfloat16))
    return out.view(rows.shape[0], rows.shape[1] * table.shape[1]).to(rows.device)
