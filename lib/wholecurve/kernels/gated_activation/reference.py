"""The gated activation, the definition: Shazeer 2020, https://arxiv.org/abs/2002.05202, equation 6.

GELU: Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415, section 2. Limit and alpha: gpt-oss
(https://arxiv.org/abs/2508.10925, section 2.2), whose SwiGLU has a clamp and a sum in its linear part.
"""

import math

import torch
import torch.nn.functional as F


def gated_activation_reference(gate_up, activation="silu", limit=None, alpha=None):
    """See `wholecurve.kernels.gated_activation.gated_activation`."""
    gate, up = gate_up.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    gate, up = (half.to(torch.promote_types(half.dtype, torch.float32)) for half in (gate, up))
    if activation == "silu":
        activated = F.silu(gate) if alpha is None else gate * torch.sigmoid(alpha * gate)
    elif activation == "gelu":
        activated = 0.5 * gate * (1 + torch.erf(gate * math.sqrt(0.5)))
    else:
        activated = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    linear = up if alpha is None else up + 1
    return (activated.to(gate_up.dtype) * linear).to(gate_up.dtype)
