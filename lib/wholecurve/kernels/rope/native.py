"""The rotary embedding in C, and the norm of heads in front of it: see `wholecurve.kernels.native`."""

import torch

from wholecurve.kernels.native.library import (
    LAYOUTS,
    MAX_HEAD,
    MAX_PAIRS,
    NO_WEIGHT,
    ROPE,
    load,
    plain,
    threads_for,
)
from wholecurve.kernels.rope.cpu import rope_cpu


def rope_native(x, positions, cos, sin, layout="half", inverse=False, offset=0):
    """See `wholecurve.kernels.rope.rope`: the bits of the reference. What C does not take goes to the CPU form: no
    library, float64, tables with a strided last dimension, heads of more than 1024 channels, gradients.
    """
    library = load()
    if library is None or not takes(library, x, cos, sin):
        return rope_cpu(x, positions, cos, sin, layout, inverse, offset)
    return turned(library, x, positions, cos, sin, layout, inverse, offset)


def takes(library, x, cos, sin):
    """Whether C takes these tensors."""
    return (
        plain(x)
        and x.dtype in library.codes
        and cos.dtype in library.codes
        and x.shape[2] <= MAX_HEAD
        and cos.stride(1) == sin.stride(1) == 1
        and cos.shape[1] <= MAX_PAIRS
    )


def turned(library, x, positions, cos, sin, layout, inverse, offset, norm=(0, NO_WEIGHT, 0, 0), eps=0.0):
    """x rotated; IndexError for a position outside the table.

    norm: (address of the weight, the number of its dtype, of the style, 1) to normalise each head first.
    """
    tokens, heads, head_dim = x.shape
    length, pairs = cos.shape
    token_stride, head_stride, _ = x.stride()
    weight, weight_code, style, norms = norm
    out = x.new_empty(tokens, heads, head_dim)
    codes = library.codes
    record = ROPE(
        *(x.data_ptr(), positions.data_ptr(), cos.data_ptr(), sin.data_ptr(), weight, out.data_ptr()),
        *(tokens, heads, head_dim, pairs, token_stride, head_stride, positions.stride(0)),
        *(positions.dtype == torch.int64, cos.stride(0), sin.stride(0), offset, inverse, LAYOUTS[layout]),
        *(codes[x.dtype], codes[cos.dtype], weight_code, style, norms, threads_for(tokens * heads * head_dim), eps),
    )
    if library.native_rope(record, length):
        raise IndexError("a position is outside the table")
    return out
