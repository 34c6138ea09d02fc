"""The weighted sum as torch's embedding bag: it adds up weighted rows in order, a bag per token."""

import torch
import torch.nn.functional as F

AT_ONCE = 2**18  # elements of 16-bit rows: their fp32 copies stay in the cache


def moe_unpermute_cpu(y, inverse, weights):
    """See `wholecurve.kernels.moe_unpermute.moe_unpermute`."""
    wide = torch.promote_types(y.dtype, torch.float32)
    if y.dtype == wide:
        return add_up(y, inverse, weights.to(wide))
    out = y.new_empty(len(inverse), y.shape[1])
    step = max(1, AT_ONCE // max(1, inverse.shape[1] * y.shape[1]))
    for first in range(0, len(inverse), step):
        rows = inverse[first : first + step]
        widened = y.index_select(0, rows.clamp(min=0).flatten()).to(wide)
        own = torch.arange(rows.numel(), dtype=torch.int32).view(rows.shape).where(rows >= 0, -1)
        out[first : first + step] = add_up(widened, own, weights[first : first + step])
    return out


def add_up(y, inverse, weights):
    """[T, hidden] in the dtype of y and weights."""
    kept = inverse >= 0
    if kept.all():
        return F.embedding_bag(inverse, y, mode="sum", per_sample_weights=weights)
    starts = F.pad(kept.sum(dim=1, dtype=torch.int32).cumsum(0, dtype=torch.int32)[:-1], (1, 0))
    return F.embedding_bag(inverse[kept], y, starts, mode="sum", per_sample_weights=weights[kept])
