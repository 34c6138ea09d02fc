"""The weighted sum, the definition: Shazeer et al. 2017, https://arxiv.org/abs/1701.06538, equation 1."""

import torch


def moe_unpermute_reference(y, inverse, weights):
    """See `wholecurve.kernels.moe_unpermute.moe_unpermute`. Sums in fp32 (fp64 for fp64 inputs)."""
    wide = torch.promote_types(y.dtype, torch.float32)
    total = torch.zeros(len(inverse), y.shape[1], dtype=wide, device=y.device)
    for rows, share in zip(inverse.unbind(1), weights.to(wide).unbind(1)):
        tokens = (rows >= 0).nonzero()[:, 0]
        total[tokens] += share[tokens, None] * y[rows[tokens].long()].to(wide)
    return total.to(y.dtype)
