"""SwiGLU in two calls: torch's silu computes in fp32 and rounds, as the definition asks."""

import torch.nn.functional as F


def swiglu_cpu(gate_up):
    """See `wholecurve.kernels.swiglu.swiglu`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
