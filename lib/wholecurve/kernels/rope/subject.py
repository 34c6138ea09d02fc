"""The rotary embedding as the laboratory sees it."""

import torch

from wholecurve.kernels.inputs import as_dtype
from wholecurve.kernels.rope import FORMS, rope, rope_tables, spec
from wholecurve.kernels.subject import Expected, Subject

SPARE_POSITIONS = 7


def make(
    inputs,
    num_tokens,
    heads,
    head_dim,
    rotary_dim,
    layout="half",
    inverse=False,
    offset=0,
    table_dtype="float32",
    index_dtype="int64",
    dtype="bfloat16",
):
    """Arguments of `rope` for a case. x is part of a wider tensor, as q and k are of one projection."""
    cos, sin, positions = angles(
        inputs, num_tokens, rotary_dim, dtype if table_dtype == "input" else table_dtype, index_dtype
    )
    return {
        "x": inputs.normal(num_tokens, heads + 2, head_dim, dtype=dtype)[:, :heads],
        "positions": positions,
        "cos": cos,
        "sin": sin,
        "layout": layout,
        "inverse": inverse,
        "offset": offset,
    }


def angles(inputs, num_tokens, rotary_dim, table_dtype, index_dtype="int64"):
    """(cos, sin, positions) with a different position for every token."""
    length = num_tokens + SPARE_POSITIONS
    cos, sin = rope_tables(rotary_dim, 1e4, length, as_dtype(table_dtype), inputs.device)
    return cos, sin, inputs.permutation(length, dtype=index_dtype)[:num_tokens]


def expected(x, positions, cos, sin, layout="half", inverse=False, offset=0):
    """Each pair as a complex number times that of its angle, in float64."""
    return (Expected(rotated(x.double(), positions, cos, sin, layout, inverse, offset)),)


def rotated(x, positions, cos, sin, layout, inverse, offset):
    """float64 x [T, heads, D] with its pairs turned; shares no code with the operation."""
    pairs = cos.shape[1]
    turn = torch.complex(cos.double(), sin.double())[positions.long()].unsqueeze(1)
    if inverse:
        turn = turn.conj()
    shape = (pairs, 2) if layout == "interleaved" else (2, pairs)
    channels = x[..., offset : offset + 2 * pairs].unflatten(-1, shape)
    real, imaginary = channels.unbind(-1 if layout == "interleaved" else -2)
    turned = torch.view_as_real(torch.complex(real, imaginary) * turn)  # [T, heads, pairs, 2]
    if layout == "half":
        turned = turned.transpose(-1, -2)
    return torch.cat([x[..., :offset], turned.flatten(-2), x[..., offset + 2 * pairs :]], dim=-1)


def eager(x, positions, cos, sin, layout="half", inverse=False, offset=0):
    """What a Hugging Face model does, call by call, with the tables looked up by position."""
    rotary_dim = 2 * cos.shape[1]
    cos, sin = cos[positions].to(x.dtype), sin[positions].to(x.dtype)
    part = x[..., offset : offset + rotary_dim]
    if layout == "interleaved":
        cos, sin = (table.repeat_interleave(2, dim=-1).unsqueeze(1) for table in (cos, sin))
        other = torch.stack((-part[..., 1::2], part[..., ::2]), dim=-1).flatten(-2)
    else:
        cos, sin = (torch.cat((table, table), dim=-1).unsqueeze(1) for table in (cos, sin))
        other = torch.cat((-part[..., rotary_dim // 2 :], part[..., : rotary_dim // 2]), dim=-1)
    turned = (part * cos) + (other * (-sin if inverse else sin))
    if rotary_dim == x.shape[-1]:
        return turned
    return torch.cat([x[..., :offset], turned, x[..., offset + rotary_dim :]], dim=-1)


SUBJECT = Subject("rope", rope, FORMS, spec, make, expected, baselines={"eager": eager})
