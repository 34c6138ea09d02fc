"""The gated delta rule for few tokens in torch, with as few passes over the state as it takes: decay, read for key and
query at once, update. All sequences and heads go together.
"""

import torch

from wholecurve.kernels.gated_delta_decode.reference import L2NORM_EPS
from wholecurve.kernels.gated_delta_decode.slots import initial_states, store_states


def gated_delta_decode_cpu(
    q, k, v, g, beta, state, slots, scale, l2norm=False, has_initial_state=None, write_slots=None
):
    """See `wholecurve.kernels.gated_delta_decode.gated_delta_decode`."""
    if q.dim() == 3:
        q, k, v, g, beta = (tensor.unsqueeze(1) for tensor in (q, k, v, g, beta))
        return gated_delta_decode_cpu(
            q, k, v, g, beta, state, slots, scale, l2norm, has_initial_state, write_slots
        ).squeeze(1)
    if not v.numel():
        return torch.empty(v.shape, dtype=v.dtype)
    wide, group = torch.promote_types(v.dtype, torch.float32), v.shape[2] // q.shape[2]
    rows = torch.stack((k, q), dim=-2).to(wide)  # [B, Q, H, 2, K]
    if l2norm:
        rows *= torch.rsqrt(rows.square().sum(-1, keepdim=True) + L2NORM_EPS)
    if group > 1:
        rows = rows.repeat_interleave(group, dim=2)
    products = rows.prod(dim=-2).sum(-1, keepdim=True)  # [B, Q, HV, 1], k · q
    started, answers = initial_states(state, slots, has_initial_state), []
    flat = started.flatten(0, 1)
    steps = (rows, products, g.exp().unsqueeze(-1).unsqueeze(-1), beta.to(wide).unsqueeze(-1), v.to(wide))
    for token, (pair, product, decay, rate, value) in enumerate(zip(*(step.unbind(1) for step in steps))):
        started.mul_(decay)
        by_key, by_query = torch.bmm(pair.flatten(0, 1), flat).view(*value.shape[:2], 2, -1).unbind(2)
        change = (value - by_key).mul_(rate)
        # the query finds the state of before, and of the change what lies along the key
        answers.append(torch.addcmul(by_query, product, change))
        started.addcmul_(pair.select(2, 0).unsqueeze(-1), change.unsqueeze(2))
        if write_slots is not None:
            store_states(state, write_slots[:, token], started)
    if write_slots is None:
        store_states(state, slots, started)
    return torch.stack(answers, dim=1).mul_(scale).to(v.dtype)
