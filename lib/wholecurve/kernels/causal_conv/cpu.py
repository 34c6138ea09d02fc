"""Depthwise causal convolution in torch: one product per tap over whole rows, all sequences of a batch at once where
they have one length. Tap by tap, no sum depends on the number of rows.
"""

import torch

from wholecurve.kernels.causal_conv.reference import sequence_bounds
from wholecurve.kernels.gated_delta_decode.slots import initial_states, store_states

ROWS_IN_CACHE = 262_144  # elements of one pass: all taps read them before they leave the cache


def causal_conv_cpu(
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
    """See `wholecurve.kernels.causal_conv.causal_conv`."""
    out = torch.empty(x.shape, dtype=x.dtype)
    bounds = sequence_bounds(len(x), len(slots), cu_seqlens)
    lengths = {end - start for start, end in bounds}
    wide = torch.promote_types(x.dtype, torch.float32)
    taps, bias = weight.T.to(wide).contiguous(), None if bias is None else bias.to(wide)
    started = initial_states(state, slots, has_initial_state).mT  # [B, history, C]
    groups = [(0, len(slots), 0, len(x))] if len(lengths) == 1 else [(b, b + 1, *rows) for b, rows in enumerate(bounds)]
    for first, last, start, end in groups:
        length = (end - start) // (last - first) if last > first else 0
        if not length:
            continue
        inputs = torch.cat((started[first:last], x[start:end].view(last - first, length, -1)), dim=1)
        answers = out[start:end].view(last - first, length, -1)
        step = max(1, ROWS_IN_CACHE // max(1, (last - first) * x.shape[1]))
        for token in range(0, length, step):
            rows = inputs[:, token : token + step + state.shape[2]].to(wide)
            answers[:, token : token + step] = convolve(rows, taps, bias, activation, dilation)
        if write_slots is None:
            store_states(state, slots[first:last], inputs[:, length:].mT)
            continue
        for token in range(min(length, write_slots.shape[1])):
            reached = inputs[:, token + 1 : token + 1 + state.shape[2]]
            store_states(state, write_slots[first:last, token], reached.mT)
    return out


def convolve(inputs, taps, bias, activation, dilation):
    """The outputs [B, tokens, C] of inputs [B, history + tokens, C] with taps [W, C], oldest first."""
    tokens = inputs.shape[1] - (len(taps) - 1) * dilation
    answer = inputs[:, :tokens] * taps[0] if bias is None else torch.addcmul(bias, inputs[:, :tokens], taps[0])
    for tap in range(1, len(taps)):
        first = tap * dilation
        answer.addcmul_(inputs[:, first : first + tokens], taps[tap])
    if activation == "silu":
        answer.div_(answer.neg().exp_().add_(1))  # as in the reference, not torch's own
    return answer
