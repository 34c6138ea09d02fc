"""The gated activation as the laboratory sees it."""

import math

import torch
import torch.nn.functional as F

from wholecurve.kernels.gated_activation import FORMS, gated_activation, spec
from wholecurve.kernels.subject import Expected, Subject


def make(
    inputs,
    num_tokens,
    intermediate,
    activation="silu",
    limit=None,
    alpha=None,
    gate_shift=0.0,
    dtype="bfloat16",
):
    """Arguments of `gated_activation` for a case; about half of the values pass a limit of 1.5."""
    gate_up = inputs.normal(num_tokens, 2 * intermediate + 16, dtype=dtype, scale=2.0)[:, : 2 * intermediate]
    gate_up[:, :intermediate] += gate_shift
    return {"gate_up": gate_up, "activation": activation, "limit": limit, "alpha": alpha}


def expected(gate_up, activation="silu", limit=None, alpha=None):
    """The product in float64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    if limit is not None:
        limit = float(torch.tensor(limit, dtype=gate_up.dtype))
        gate, up = gate.minimum(gate.new_tensor(limit)), up.clamp(-limit, limit)
    linear = up if alpha is None else up + 1
    if activation == "gelu":
        share = 0.5 * torch.erfc(-gate / math.sqrt(2))
    elif activation == "gelu_tanh":
        share = 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    else:
        share = 1 / (1 + torch.exp(-(1.0 if alpha is None else alpha) * gate))
    value, limits = gate * share * linear, torch.finfo(gate_up.dtype)
    if activation != "silu" and gate_up.dtype == torch.float32:
        # 1 + erf and 1 + tanh cancel for negative gates: what is left is exact to one unit of the gate itself
        return (Expected(value, ulps=1.0, rtol=4 * limits.eps, scale=(gate * linear).abs()),)
    # an activation or a product below the normal numbers is exact to one step of those
    steps = limits.smallest_normal * limits.eps * (1 + linear.abs()) / (1e-3 * limits.eps)
    scale = value.abs().amax(dim=-1, keepdim=True) + steps
    return (Expected(value, ulps=1e-3, rtol=4 * limits.eps, scale=scale),)


def eager(gate_up, activation="silu", limit=None, alpha=None):
    """What a Hugging Face model does, call by call."""
    gate, up = gate_up.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    if alpha is not None:
        return (up + 1) * (gate * torch.sigmoid(gate * alpha))
    if activation == "silu":
        return F.silu(gate) * up
    return F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up


SUBJECT = Subject("gated_activation", gated_activation, FORMS, spec, make, expected, baselines={"eager": eager})
