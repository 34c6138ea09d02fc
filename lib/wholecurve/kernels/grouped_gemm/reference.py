"""The grouped product, the definition: y = x Wᵉᵀ for the rows of each expert (MegaBlocks, arXiv 2211.15841, §2)."""

import itertools

import torch


def grouped_gemm_reference(x, weights, offsets):
    """See `wholecurve.kernels.grouped_gemm.grouped_gemm`."""
    wide = torch.promote_types(x.dtype, torch.float32)
    out = x.new_zeros(len(x), weights.shape[1])
    bounds = offsets.tolist()
    for expert, (start, end) in enumerate(itertools.pairwise(bounds)):
        if end > start:
            out[start:end] = (x[start:end].to(wide) @ weights[expert].to(wide).T).to(x.dtype)
    return out
