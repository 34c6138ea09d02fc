"""RMSNorm as the laboratory sees it."""

import torch

from wholecurve.kernels.rms_norm import FORMS, rms_norm, spec
from wholecurve.kernels.subject import Expected, Subject

EPS = 1e-6


def make(
    inputs,
    num_tokens,
    hidden,
    has_residual=False,
    weight="input",
    style="llama",
    x_scale=1.0,
    dtype="bfloat16",
):
    """Arguments of `rms_norm` for a case."""
    weight_dtype = {"input": dtype, "float32": "float32", "none": None}[weight]
    return {
        "x": inputs.normal(num_tokens, hidden + 16, dtype=dtype, scale=x_scale)[:, :hidden],
        "weight": None if weight_dtype is None else inputs.normal(hidden, dtype=weight_dtype),
        "eps": EPS,
        "residual": inputs.normal(num_tokens, hidden, dtype=dtype, scale=x_scale) if has_residual else None,
        "style": style,
    }


def expected(x, weight, eps, residual=None, style="llama"):
    """The normalised rows in float64; the new residual is the sum rounded once."""
    summed = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    values = summed.double()
    normed = values / (values.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    if weight is not None:
        normed = normed * (weight.double() + (style == "gemma"))
    roundings = 6 if x.dtype == torch.float32 else 2
    outputs = [Expected(normed, ulps=0.02, rtol=roundings * torch.finfo(x.dtype).eps)]
    if residual is not None:
        outputs.append(Expected(summed.double(), ulps=0.0))
    return tuple(outputs)


def eager(x, weight, eps, residual=None, style="llama"):
    """What Hugging Face's Llama does, call by call (Gemma's order with style "gemma")."""
    if residual is not None:
        x = residual + x
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if weight is None:
        normed = wide.to(x.dtype)
    elif style == "gemma":
        normed = (wide * (1.0 + weight.float())).to(x.dtype)
    else:
        normed = (weight * wide.to(x.dtype)).to(x.dtype)
    return normed if residual is None else (normed, x)


def library(x, weight, eps, residual=None, style="llama"):
    """torch's own RMSNorm, which multiplies by the weight before it rounds."""
    if residual is not None:
        x = x + residual
    scale = weight if weight is None or style == "llama" else 1 + weight
    normed = torch.nn.functional.rms_norm(x, x.shape[1:], None if scale is None else scale.to(x.dtype), eps)
    return normed if residual is None else (normed, x)


SUBJECT = Subject("rms_norm", rms_norm, FORMS, spec, make, expected, baselines={"eager": eager, "library": library})
