"""Rotary embedding, the definition: Su et al. 2021, https://arxiv.org/abs/2104.09864, equation 34."""

import torch


def rope_tables(head_dim, base, max_position, dtype, device):
    """(cos, sin) of every position, each [max_position, head_dim / 2] in `dtype`.

    Angle of position p and pair i is p · base^(−2i / head_dim), computed in fp32 (fp64 when dtype is fp64),
    which is what Llama checkpoints were trained with. ValueError for an odd head_dim.
    """
    if head_dim % 2:
        raise ValueError(f"rope_tables: head_dim must be even, it is {head_dim}")
    wide = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, head_dim, 2, dtype=wide, device=device) / head_dim
    angles = torch.outer(torch.arange(max_position, dtype=wide, device=device), 1.0 / base**exponent)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rope_reference(x, positions, cos, sin):
    """See `wholecurve.kernels.rope.rope`."""
    half = cos.shape[1]
    # index_select refuses negative positions as well as large ones; plain indexing would wrap them
    cos, sin = (table.index_select(0, positions).unsqueeze(1) for table in (cos, sin))  # [T, 1, half]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    parts = [(first * cos).sub_(second * sin).to(x.dtype), (second * cos).add_(first * sin).to(x.dtype)]
    return torch.cat([*parts, rest] if rest.shape[2] else parts, dim=-1)
