"""The norm and rotation of q and k heads as the laboratory sees it."""

import torch

from wholecurve.kernels.qk_norm_rope import FORMS, qk_norm_rope, spec
from wholecurve.kernels.rms_norm import subject as rms_norm_subject
from wholecurve.kernels.rope import subject as rope_subject
from wholecurve.kernels.subject import Expected, Subject


def make(
    inputs,
    num_tokens,
    num_heads,
    num_kv_heads,
    head_dim,
    rotary_dim=None,
    weight="input",
    style="llama",
    layout="half",
    offset=0,
    table_dtype="float32",
    x_scale=1.0,
    dtype="bfloat16",
):
    """Arguments of `qk_norm_rope` for a case. q and k are parts of wider tensors with strides of their own."""
    weight_dtype = {"input": dtype, "float32": "float32", "none": None}[weight]
    q = inputs.normal(num_tokens, num_heads + 1, head_dim, dtype=dtype, scale=x_scale)[:, :num_heads]
    k = inputs.normal(num_tokens, num_kv_heads + 3, head_dim, dtype=dtype, scale=x_scale)[:, :num_kv_heads]
    weights = [None if weight_dtype is None else inputs.normal(head_dim, dtype=weight_dtype) for _ in "qk"]
    cos, sin, positions = rope_subject.angles(
        inputs, num_tokens, rotary_dim or head_dim, dtype if table_dtype == "input" else table_dtype
    )
    return {
        "q": q,
        "k": k,
        "q_weight": weights[0],
        "k_weight": weights[1],
        "eps": rms_norm_subject.EPS,
        "positions": positions,
        "cos": cos,
        "sin": sin,
        "style": style,
        "layout": layout,
        "offset": offset,
    }


def expected(q, k, q_weight, k_weight, eps, positions, cos, sin, style="llama", layout="half", offset=0):
    """Heads over their root mean square, then pairs as complex numbers, in float64."""
    # three roundings to a half dtype, the first two of both channels of a pair; in fp32 the sums and 1/rms count too
    ulps = 6.0 if q.dtype == torch.float32 else 2.0
    outputs = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        normed = x.double() / (x.double().square().mean(dim=-1, keepdim=True) + eps).sqrt()
        if weight is not None:
            normed = normed * (weight.double() + (style == "gemma"))
        turned = rope_subject.rotated(normed, positions, cos, sin, layout, inverse=False, offset=offset)
        outputs.append(Expected(turned, ulps=ulps))
    return tuple(outputs)


def eager(q, k, q_weight, k_weight, eps, positions, cos, sin, style="llama", layout="half", offset=0):
    """What a Hugging Face model does, call by call."""
    return tuple(
        rope_subject.eager(
            rms_norm_subject.eager(x, weight, eps, style=style), positions, cos, sin, layout, offset=offset
        )
        for x, weight in ((q, q_weight), (k, k_weight))
    )


SUBJECT = Subject("qk_norm_rope", qk_norm_rope, FORMS, spec, make, expected, baselines={"eager": eager})
