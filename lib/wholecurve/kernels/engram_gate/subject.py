"""The gate of Engram as the laboratory sees it."""

import math

import torch

from wholecurve.kernels.engram_gate import FORMS, engram_gate, spec
from wholecurve.kernels.subject import Expected, Subject

EPS = 1e-6


def make(inputs, num_tokens, streams, width, dtype="bfloat16"):
    """Arguments of `engram_gate` for a case; every third token is so small that eps counts."""
    hidden = inputs.normal(num_tokens, streams, width, dtype=dtype)
    hidden[::3] *= 2.0**-10
    return {
        "hidden": hidden,
        "keys": inputs.normal(num_tokens, streams, width, dtype=dtype, scale=3.0),
        "value": inputs.normal(num_tokens, width, dtype=dtype),
        "hidden_weight": inputs.normal(streams, width, dtype=dtype),
        "key_weight": inputs.normal(streams, width, dtype=dtype),
        "eps": EPS,
    }


def expected(hidden, keys, value, hidden_weight, key_weight, eps):
    """The gated sum in float64, a stream at a time.

    Allowed are the roundings of the result, and 2⁻²⁰ in s, which the root before the sigmoid makes 2⁻²⁰ / √|s|.
    """
    width, out, scales = max(1, hidden.shape[-1]), [], []
    v = value.double()
    for stream in range(hidden.shape[1]):
        h, k = hidden[:, stream].double(), keys[:, stream].double()
        h_rms, k_rms = ((x.square().sum(-1) / width + eps).sqrt() for x in (h, k))
        weights = hidden_weight[stream].double() * key_weight[stream].double()
        score = (h * k * weights).sum(-1) / (h_rms * k_rms * math.sqrt(width))
        root = score.abs().clamp(min=1e-6).sqrt()
        out.append(h + v / (1 + torch.exp(-torch.sign(score) * root))[:, None])
        scales.append(v.abs() / root[:, None])
    eps_out = torch.finfo(hidden.dtype).eps
    value, slack = torch.stack(out, dim=1), torch.stack(scales, dim=1)
    roundings = 6 if hidden.dtype == torch.float32 else 2
    largest = value.abs().amax(dim=-1, keepdim=True) if value.numel() else value
    scale = 0.02 * largest + 2.0**-20 / eps_out * slack
    return (Expected(value, ulps=1.0, rtol=roundings * eps_out, scale=scale),)


def eager(hidden, keys, value, hidden_weight, key_weight, eps):
    """What a model written in plain torch does, call by call, in fp32 as its norms are."""
    h, k = hidden.float(), keys.float()
    queries = torch.nn.functional.rms_norm(h, h.shape[-1:], None, eps) * hidden_weight.float()
    normed_keys = torch.nn.functional.rms_norm(k, k.shape[-1:], None, eps) * key_weight.float()
    score = (queries * normed_keys).sum(dim=-1) / math.sqrt(hidden.shape[-1])
    gate = torch.sigmoid(score.abs().clamp_min(1e-6).sqrt() * score.sign())
    return (h + gate[..., None] * value.float()[:, None]).to(hidden.dtype)


SUBJECT = Subject("engram_gate", engram_gate, FORMS, spec, make, expected, baselines={"eager": eager})
