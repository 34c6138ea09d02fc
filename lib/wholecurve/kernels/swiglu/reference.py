"""SwiGLU, the definition: Shazeer 2020, https://arxiv.org/abs/2002.05202, equation 6."""

import torch
import torch.nn.functional as F


def swiglu_reference(gate_up):
    """See `wholecurve.kernels.swiglu.swiglu`."""
    gate, up = gate_up.chunk(2, dim=-1)
    wide = torch.promote_types(gate_up.dtype, torch.float32)
    return F.silu(gate.to(wide)).to(gate_up.dtype) * up
