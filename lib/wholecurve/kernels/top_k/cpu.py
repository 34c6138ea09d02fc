"""Top-k without sorting: the k-th largest score decides, then equal ones are counted off by position."""

import torch

CHUNK = 2**20  # scores at once: their masks and counts stay in the cache


def top_k_cpu(scores, k, lengths=None):
    """See `wholecurve.kernels.top_k.top_k`."""
    num_rows, width = scores.shape
    out = torch.full((num_rows, k), -1, dtype=torch.int32)
    if width == 0:
        return out
    rows_at_once = max(1, CHUNK // width)
    for first in range(0, num_rows, rows_at_once):
        values = scores[first : first + rows_at_once].nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
        if lengths is not None:
            outside = torch.arange(width) >= lengths[first : first + rows_at_once, None]
            values.masked_fill_(outside, -torch.inf)
        # torch.topk leaves open which of equal scores it takes, but not their value
        smallest = values.topk(min(k, width), dim=1, sorted=False).values.amin(dim=1, keepdim=True)
        larger, equal = values > smallest, (values == smallest) & (values > -torch.inf)
        wanted = k - larger.sum(dim=1, keepdim=True)
        taken = larger | (equal & (equal.cumsum(dim=1) <= wanted))
        rows, positions = taken.nonzero(as_tuple=True)
        places = taken.cumsum(dim=1)[rows, positions] - 1
        out[first + rows, places] = positions.int()
    return out
