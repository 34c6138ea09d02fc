"""The gate of Engram on a CPU: few tokens at once, so that what is made of them stays in the cache."""

import math

import torch
import torch.nn.functional as F

from wholecurve.kernels.engram_gate.reference import SMALLEST, engram_gate_reference

AT_ONCE = 2**17  # elements of all streams
VECTOR = 32  # elements of a step of torch's elementwise loops; what is left over is rounded another way


def engram_gate_cpu(hidden, keys, value, hidden_weight, key_weight, eps):
    """See `wholecurve.kernels.engram_gate.engram_gate`. A token's bits do not depend on the other tokens."""
    wants_gradient = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (hidden, keys, value, hidden_weight, key_weight)
    )
    if wants_gradient or hidden.dtype == torch.float64 or not hidden.numel():
        return engram_gate_reference(hidden, keys, value, hidden_weight, key_weight, eps)
    num_tokens, streams, width = hidden.shape
    weight = hidden_weight.float() * key_weight.float()
    out = torch.empty(hidden.shape, dtype=hidden.dtype)
    step = max(1, AT_ONCE // (streams * width))
    for first in range(0, num_tokens, step):
        part = slice(first, first + step)
        h, k = hidden[part].float(), keys[part].float()
        gate = gates(h, k, weight, eps)[:, :, None]
        out[part] = torch.addcmul(h, gate, value[part, None].float())
    return out


def gates(h, k, weight, eps):
    """[tokens, streams]: the share of the value that each stream takes."""
    width = h.shape[-1]
    score = (h * weight).mul_(k).sum(dim=-1)
    for x in (h, k):  # the norms as factors of the sum, so that no normed tensor is made
        norm = torch.linalg.vector_norm(x, 2, -1)
        score *= (norm.square_() / width).add_(eps).rsqrt_()
    score /= math.sqrt(width)
    root = score.abs().clamp_(min=SMALLEST).sqrt_().mul_(score.sign()).flatten()
    return F.pad(root, (0, -root.numel() % VECTOR)).sigmoid_()[: root.numel()].view(score.shape)
