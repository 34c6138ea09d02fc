"""The gated activation in two calls: torch's activations compute in fp32 and round, as the definition asks."""

import torch.nn.functional as F

from wholecurve.kernels.gated_activation.reference import gated_activation_reference


def gated_activation_cpu(gate_up, activation="silu", limit=None, alpha=None):
    """See `wholecurve.kernels.gated_activation.gated_activation`."""
    # torch's exact gelu goes to oneDNN, where bits of a row depend on its batch and +inf gives NaN
    if alpha is not None or activation == "gelu":
        return gated_activation_reference(gate_up, activation, limit, alpha)
    gate, up = gate_up.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")).mul_(up)
