"""Rotary embedding, the definition: Su et al. 2021, https://arxiv.org/abs/2104.09864, equation 34."""

import torch


def rope_reference(x, positions, cos, sin, layout="half", inverse=False, offset=0):
    """See `wholecurve.kernels.rope.rope`."""
    # index_select refuses negative positions as well as large ones; plain indexing would wrap them
    cos, sin = (table.index_select(0, positions).unsqueeze(1) for table in (cos, sin))  # [T, 1, pairs]
    if inverse:
        sin = -sin
    out = x.clone(memory_format=torch.contiguous_format)
    first, second = pair_channels(x, cos.shape[2], layout, offset)
    out_first, out_second = pair_channels(out, cos.shape[2], layout, offset)
    out_first.copy_(first * cos - second * sin)
    out_second.copy_(second * cos + first * sin)
    return out


def pair_channels(x, pairs, layout, offset):
    """Views of the first and of the second channel of every rotated pair, each [..., pairs]."""
    rotated = x[..., offset : offset + 2 * pairs]
    if layout == "interleaved":
        return rotated[..., ::2], rotated[..., 1::2]
    return rotated[..., :pairs], rotated[..., pairs:]
