"""The gated delta rule, the definition: Yang et al. 2024, https://arxiv.org/abs/2412.06464, equation 10."""

import torch

from wholecurve.kernels.gated_delta_decode.slots import initial_states, store_states

L2NORM_EPS = 1e-6


def recurrence(q, k, v, g, beta, state):
    """Yield (output [HV, V], state) after each token of one sequence.

    q, k: [T, HV, K]. v: [T, HV, V]. g, beta: [T, HV]. state: [HV, K, V], updated in place.
    """
    for token in range(len(v)):
        key = k[token]
        state *= g[token].exp()[:, None, None]
        error = v[token] - torch.einsum("hkv,hk->hv", state, key)
        state += key[:, :, None] * (beta[token][:, None] * error)[:, None, :]
        yield torch.einsum("hkv,hk->hv", state, q[token]), state


def widened(q, k, v, g, beta, scale, l2norm):
    """(q, k, v, g, beta) as `recurrence` takes them: in fp32 (fp64 for fp64 inputs), q scaled, one q and k per value
    head. Any leading dimensions.
    """
    wide, group = torch.promote_types(v.dtype, torch.float32), v.shape[-2] // q.shape[-2]
    q, k, v, g, beta = (tensor.to(wide) for tensor in (q, k, v, g, beta))
    if l2norm:
        q, k = (rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + L2NORM_EPS) for rows in (q, k))
    q, k = (rows.repeat_interleave(group, dim=-2) for rows in (q * scale, k))
    return q, k, v, g, beta


def gated_delta_decode_reference(
    q, k, v, g, beta, state, slots, scale, l2norm=False, has_initial_state=None, write_slots=None
):
    """See `wholecurve.kernels.gated_delta_decode.gated_delta_decode`."""
    if q.dim() == 3:
        one_token = (tensor[:, None] for tensor in (q, k, v, g, beta))
        return gated_delta_decode_reference(*one_token, state, slots, scale, l2norm, has_initial_state, write_slots)[
            :, 0
        ]
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    started = initial_states(state, slots, has_initial_state)
    if write_slots is None:
        write_slots = torch.full(v.shape[:2], -1, device=v.device)
        write_slots[:, -1:] = slots[:, None]
    for sequence, rows in enumerate(zip(*widened(q, k, v, g, beta, scale, l2norm))):
        for token, (output, reached) in enumerate(recurrence(*rows, started[sequence])):
            out[sequence, token] = output.to(v.dtype)
            store_states(state, write_slots[sequence, token : token + 1], reached[None])
    return out
