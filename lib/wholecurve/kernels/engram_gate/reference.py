"""The gate of Engram, the definition: https://arxiv.org/abs/2601.07372, section 2.3, and its published demo."""

import math

import torch

SMALLEST = 1e-6


def engram_gate_reference(hidden, keys, value, hidden_weight, key_weight, eps):
    """See `wholecurve.kernels.engram_gate.engram_gate`. In fp32 (fp64 for fp64 inputs), rounded once."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    score = (normed(hidden, hidden_weight, eps, wide) * normed(keys, key_weight, eps, wide)).sum(dim=-1)
    score = score / math.sqrt(max(1, hidden.shape[-1]))
    gate = torch.sigmoid(score.sign() * score.abs().clamp(min=SMALLEST).sqrt())
    return (hidden.to(wide) + gate[..., None] * value[:, None, :].to(wide)).to(hidden.dtype)


def normed(x, weight, eps, wide):
    """RMSNorm of each stream with its own weight."""
    x = x.to(wide)
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight.to(wide)
