"""Rotary embedding with both channels of a pair in one call: the bits of the reference in fewer passes."""

import torch

from wholecurve.kernels.rms_norm.cpu import CAST

# elements that a thread turns at a time: products of longer inputs would leave its cache, and be given back to the
# operating system and fetched again at every call
PIECE = 131072


def rope_cpu(x, positions, cos, sin, layout="half", inverse=False, offset=0):
    """See `wholecurve.kernels.rope.rope`."""
    tokens, heads, head_dim = x.shape
    pairs = cos.shape[1]
    # the two channels of a pair lie along one dimension of size 2
    if layout == "half":
        split, rows, along = (tokens, heads, 2, pairs), (tokens, 1, 1, pairs), 2
    else:
        split, rows, along = (tokens, heads, pairs, 2), (tokens, 1, pairs, 1), 3
    cos = cos.index_select(0, positions).view(rows)
    sin = sin.index_select(0, positions).view(rows)
    part = x if head_dim == 2 * pairs else x[..., offset : offset + 2 * pairs]
    dtype = torch.promote_types(x.dtype, cos.dtype)
    if part is x and tokens * heads * head_dim <= PIECE:
        wide = CAST[dtype](x).view(split)
        by_cos = wide * cos
        # what was cast is a copy, which may be written; what was not is x itself
        by_sin = wide * sin if dtype == x.dtype else wide.mul_(sin)
        add_products(by_cos, by_sin, along, inverse)
        return CAST[x.dtype](by_cos).view(x.shape).contiguous()  # a permuted x gives permuted products
    out = torch.empty(x.shape, dtype=x.dtype) if part is x else x.clone(memory_format=torch.contiguous_format)
    target = out[..., offset : offset + 2 * pairs].view(split)
    turn_in_pieces(part.view(split), cos, sin, target, dtype, along, inverse)
    return out


@torch.no_grad()  # results are written into given memory
def turn_in_pieces(x, cos, sin, out, dtype, along, inverse):
    """Turn x [T, heads, …] into `out` some tokens at a time, always in the same memory."""
    step = max(1, PIECE * torch.get_num_threads() // max(1, x[:1].numel()))
    wide = torch.empty((min(step, len(x)), *x.shape[1:]), dtype=dtype)
    by_cos = torch.empty_like(wide)
    for first in range(0, len(x), step):
        piece = x[first : first + step]
        by_sin, turned = wide[: len(piece)].copy_(piece), by_cos[: len(piece)]
        torch.mul(by_sin, cos[first : first + step], out=turned)
        by_sin.mul_(sin[first : first + step])
        add_products(turned, by_sin, along, inverse)
        out[first : first + step].copy_(turned)


def add_products(by_cos, by_sin, along, inverse):
    """Turn the pairs in `by_cos`, in place, from the products of both channels with cosine and sine."""
    (first, second), (first_by_sin, second_by_sin) = by_cos.unbind(along), by_sin.unbind(along)
    if inverse:
        first.add_(second_by_sin)
        second.sub_(first_by_sin)
    else:
        first.sub_(second_by_sin)
        second.add_(first_by_sin)
