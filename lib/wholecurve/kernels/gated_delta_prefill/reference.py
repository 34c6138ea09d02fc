"""The gated delta rule over whole sequences, the definition: token by token, Yang et al. 2024,
https://arxiv.org/abs/2412.06464, equation 10.
"""

import itertools

import torch

from wholecurve.kernels.gated_delta_decode.reference import recurrence, widened
from wholecurve.kernels.gated_delta_decode.slots import initial_states, store_states


def gated_delta_prefill_reference(
    q, k, v, g, beta, cu_seqlens, state, slots, scale, l2norm=False, has_initial_state=None
):
    """See `wholecurve.kernels.gated_delta_prefill.gated_delta_prefill`."""
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    started = initial_states(state, slots, has_initial_state)
    wide, bounds = widened(q, k, v, g, beta, scale, l2norm), cu_seqlens.tolist()
    for sequence, (start, end) in enumerate(itertools.pairwise(bounds)):
        rows = (tensor[start:end] for tensor in wide)
        for token, (output, _) in enumerate(recurrence(*rows, started[sequence])):
            out[start + token] = output.to(v.dtype)
        if end > start:
            store_states(state, slots[sequence : sequence + 1], started[sequence : sequence + 1])
    return out
