"""RMSNorm, the definition: Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467, equation 4."""

import torch


def rms_norm_reference(x, weight, eps, residual=None, style="llama"):
    """See `wholecurve.kernels.rms_norm.rms_norm`. Statistics in fp32 (fp64 for fp64 inputs)."""
    wide = torch.promote_types(x.dtype, torch.float32)
    if residual is not None:
        x = (x.to(wide) + residual.to(wide)).to(x.dtype)
    values = x.to(wide)
    normed = values * torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + eps)
    if weight is None:
        out = normed.to(x.dtype)
    elif style == "gemma":
        out = (normed * (1 + weight.to(wide))).to(x.dtype)
    else:
        out = (normed.to(x.dtype) * weight).to(x.dtype)
    return out if residual is None else (out, x)
