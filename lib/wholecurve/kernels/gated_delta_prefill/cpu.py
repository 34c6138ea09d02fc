"""The gated delta rule over whole sequences in torch: chunk by chunk, with matrix products.

Within a chunk of C tokens with cumulative decays G the rule is a triangular system (Yang et al. 2024,
https://arxiv.org/abs/2412.06464, section 3.3): (I + A) [w, u] = β [exp(G) k, v] with the strictly lower
A_ij = β_i (k_i · k_j) exp(G_i − G_j). From the state S before the chunk, the new values are u − w S.
"""

import itertools

import torch

from wholecurve.kernels.gated_delta_decode.reference import L2NORM_EPS
from wholecurve.kernels.gated_delta_decode.slots import initial_states, store_states
from wholecurve.kernels.gated_delta_prefill.spec import CHUNK


def gated_delta_prefill_cpu(q, k, v, g, beta, cu_seqlens, state, slots, scale, l2norm=False, has_initial_state=None):
    """See `wholecurve.kernels.gated_delta_prefill.gated_delta_prefill`."""
    wide, bounds = torch.promote_types(v.dtype, torch.float32), cu_seqlens.tolist()
    out = torch.empty(v.shape, dtype=v.dtype)
    started = initial_states(state, slots, has_initial_state)
    for sequence, (start, end) in enumerate(itertools.pairwise(bounds)):
        held, first = started[sequence], start
        while first < end:
            # all full chunks at once, then the rest as one short chunk
            chunk = min(CHUNK, end - first)
            last = first + (end - first) // chunk * chunk
            rows = (tensor[first:last].to(wide).unflatten(0, (-1, chunk)) for tensor in (q, k, v, g, beta))
            chunked_rule(*rows, held, scale, l2norm, out[first:last].unflatten(0, (-1, chunk)))
            first = last
        if end > start:
            store_states(state, slots[sequence : sequence + 1], started[sequence : sequence + 1])
    return out


def chunked_rule(q, k, v, g, beta, state, scale, l2norm, out):
    """Take `state` [HV, K, V] through N chunks of C tokens, in place.

    q, k: [N, C, H, K]. v: [N, C, HV, V]. g, beta: [N, C, HV]. out: like v, written.
    """
    heads = (q.shape[2], v.shape[2] // q.shape[2])
    if l2norm:
        q, k = (rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + L2NORM_EPS) for rows in (q, k))
    q, k = (rows.transpose(1, 2).unsqueeze(2) for rows in (q * scale, k))  # [N, H, 1, C, K]
    v = v.unflatten(2, heads).permute(0, 2, 3, 1, 4)  # [N, H, R, C, V], R value heads share a key
    g, beta = (rates.unflatten(2, heads).permute(0, 2, 3, 1).unsqueeze(-1) for rates in (g, beta))  # [N, H, R, C, 1]
    pairs = pairwise_decays(g)  # [N, H, R, C, C]
    decay = g.cumsum(dim=-2).exp_()
    system = (k @ k.mT) * pairs * beta
    # the solver reads what is below the diagonal alone
    w, u = (
        torch.linalg.solve_triangular(system, side, upper=False, unitriangular=True).flatten(1, 2)
        for side in (k * (decay * beta), v * beta)
    )
    weights, queries = ((q @ k.mT) * pairs).flatten(1, 2), (q * decay).flatten(1, 2)
    keys, total = (k * pairs[..., -1, :, None]).flatten(1, 2).mT, decay[..., -1:, :].flatten(1, 2)
    for chunk in range(len(v)):
        values = torch.baddbmm(u[chunk], w[chunk], state, alpha=-1)
        answer = torch.bmm(queries[chunk], state).baddbmm_(weights[chunk], values)
        out[chunk] = answer.transpose(0, 1)
        state.mul_(total[chunk]).baddbmm_(keys[chunk], values)


def pairwise_decays(g):
    """[..., C, C]: exp of g summed over the tokens j+1 … i, 0 above the diagonal; g: [..., C, 1].

    Each sum is taken by itself. As a difference of two cumulative sums it would lose digits after a strong decay
    and be NaN after one of −inf, and above the diagonal its exp could overflow.
    """
    size = g.shape[-2]
    below = torch.ones(size, size, dtype=torch.bool).tril(-1)
    return g.expand(*g.shape[:-1], size).where(below, 0.0).cumsum(dim=-2).exp_().tril_()
