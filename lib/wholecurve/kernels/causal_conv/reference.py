"""Depthwise causal convolution with carried inputs, the definition: van den Oord et al. 2016,
https://arxiv.org/abs/1609.03499, section 2.1, one filter per channel.
"""

import itertools

import torch

from wholecurve.kernels.gated_delta_decode.slots import initial_states, store_states


def causal_conv_reference(
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
    """See `wholecurve.kernels.causal_conv.causal_conv`; in fp32 (fp64 for fp64 inputs)."""
    wide, (width, history) = torch.promote_types(x.dtype, torch.float32), (weight.shape[1], state.shape[2])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    started = initial_states(state, slots, has_initial_state)
    for sequence, (start, end) in enumerate(sequence_bounds(len(x), len(slots), cu_seqlens)):
        inputs = torch.cat((started[sequence].T, x[start:end]))  # [history + tokens, C]
        answer = torch.zeros(end - start, x.shape[1], dtype=wide, device=x.device)
        if bias is not None:
            answer += bias.to(wide)
        for tap in range(width):
            first = tap * dilation
            answer += weight[:, tap].to(wide) * inputs[first : first + end - start].to(wide)
        out[start:end] = (silu(answer) if activation == "silu" else answer).to(x.dtype)
        if write_slots is None:
            ends = [(end - start, slots[sequence : sequence + 1])] if end > start else []
        else:
            drafts = range(min(end - start, write_slots.shape[1]))
            ends = [(token + 1, write_slots[sequence, token, None]) for token in drafts]
        for reached, slot in ends:
            store_states(state, slot, inputs[reached : reached + history].T[None])
    return out


def silu(x):
    """x / (1 + exp(−x)). The bits of torch's own silu and sigmoid depend on where in a tensor an element stands: the
    last few are computed by another exp.
    """
    return x / (1 + torch.exp(-x))


def sequence_bounds(num_tokens, num_sequences, cu_seqlens):
    """[(first token, token after the last)] of the sequences; cu_seqlens None: of equal lengths."""
    if cu_seqlens is None:
        length = num_tokens // max(1, num_sequences)
        return [(sequence * length, (sequence + 1) * length) for sequence in range(num_sequences)]
    bounds = cu_seqlens.tolist()
    return list(itertools.pairwise(bounds))
