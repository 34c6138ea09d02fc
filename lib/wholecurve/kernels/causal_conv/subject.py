"""The causal convolution as the laboratory sees it."""

import math

import torch
import torch.nn.functional as F

from wholecurve.kernels.causal_conv import FORMS, causal_conv, spec
from wholecurve.kernels.causal_conv.reference import causal_conv_reference, sequence_bounds
from wholecurve.kernels.gated_delta_decode.slots import initial_states, store_states
from wholecurve.kernels.gated_delta_decode.subject import slot_numbers
from wholecurve.kernels.subject import Expected, Subject


def make(
    inputs,
    lengths,
    channels,
    width,
    dilation=1,
    has_bias=False,
    activation="silu",
    uniform=False,
    fresh=0,
    idle=0,
    kept=None,
    dtype="bfloat16",
):
    """Arguments of `causal_conv` for a case; slots that nobody may read hold NaN."""
    tokens, sequences = sum(lengths), len(lengths)
    slots, num_slots = slot_numbers(sequences, idle)
    write_slots = None
    if kept is not None:
        write_slots = [
            [num_slots + sequence * kept + token if token < kept and slot >= 0 else -1 for token in range(max(lengths))]
            for sequence, slot in enumerate(slots)
        ]
        num_slots += sequences * kept
    state = inputs.full(num_slots, channels, (width - 1) * dilation, value=math.nan, dtype=dtype)
    used = [slot for slot in slots[fresh:] if slot >= 0]
    state[inputs.fixed(used, "int64")] = inputs.normal(len(used), *state.shape[1:], dtype=dtype)
    bounds = [sum(lengths[:sequence]) for sequence in range(sequences + 1)]
    return {
        "x": inputs.normal(tokens, channels, dtype=dtype),
        "weight": inputs.normal(channels, width, dtype=dtype, scale=1 / math.sqrt(width)),
        "state": state,
        "slots": inputs.fixed(slots, "int32"),
        "cu_seqlens": None if uniform else inputs.fixed(bounds, "int32"),
        "bias": inputs.normal(channels, dtype=dtype) if has_bias else None,
        "activation": activation,
        "dilation": dilation,
        "has_initial_state": None if not fresh else inputs.fixed([b >= fresh for b in range(sequences)], "bool"),
        "write_slots": None if write_slots is None else inputs.fixed(write_slots, "int32"),
    }


def expected(
    x,
    weight,
    state,
    slots,
    cu_seqlens=None,
    bias=None,
    activation="silu",
    dilation=1,
    has_initial_state=None,
    write_slots=None,
):
    """The sum in float64; fp32 sums are off by a few units of Σ|weight||x|. States are copies, exact."""
    rest = (slots, cu_seqlens)
    options = dict(dilation=dilation, has_initial_state=has_initial_state, write_slots=write_slots)
    wide = [None if tensor is None else tensor.double() for tensor in (x, weight, state, bias)]
    sizes = [None if tensor is None else tensor.abs() for tensor in wide]
    out = causal_conv_reference(*wide[:3], *rest, wide[3], activation, **options)
    scale = causal_conv_reference(*sizes[:3], *rest, sizes[3], None, **options)
    eps, eps32 = torch.finfo(x.dtype).eps, torch.finfo(torch.float32).eps
    noise = (weight.shape[1] + 2) * eps32
    tiny = torch.finfo(x.dtype).smallest_normal * eps / 2  # half the distance of subnormal numbers
    return (
        Expected(out, ulps=noise / eps, rtol=0.51 * eps, scale=scale + tiny / noise),
        Expected(wide[2], ulps=0.0),
    )


def eager(
    x,
    weight,
    state,
    slots,
    cu_seqlens=None,
    bias=None,
    activation="silu",
    dilation=1,
    has_initial_state=None,
    write_slots=None,
):
    """What a model written in plain torch does: equal lengths in one convolution, others one after another."""
    started = initial_states(state, slots, has_initial_state)
    bounds = sequence_bounds(len(x), len(slots), cu_seqlens)
    if cu_seqlens is None and len(x):
        groups = [(0, len(slots), x.view(len(slots), -1, x.shape[1]))]
    else:
        groups = [(b, b + 1, x[start:end][None]) for b, (start, end) in enumerate(bounds) if end > start]
    answers = [x[:0]]
    for first, last, rows in groups:
        inputs = torch.cat((started[first:last], rows.mT), dim=-1)
        # in float32 up to the end, as a careful model file has it: bfloat16 would round before the activation
        wide_bias = None if bias is None else bias.float()
        answer = F.conv1d(inputs.float(), weight[:, None].float(), wide_bias, dilation=dilation, groups=x.shape[1])
        answer = F.silu(answer) if activation == "silu" else answer
        answers.append(answer.to(x.dtype).mT.flatten(0, 1))
        if write_slots is None:
            store_states(state, slots[first:last], inputs[..., -state.shape[2] :])
            continue
        for token in range(min(rows.shape[1], write_slots.shape[1])):
            store_states(state, write_slots[first:last, token], inputs[..., token + 1 : token + 1 + state.shape[2]])
    return torch.cat(answers)


SUBJECT = Subject(
    "causal_conv",
    causal_conv,
    FORMS,
    spec,
    make,
    expected,
    writes=("state",),
    baselines={"eager": eager},
)
