"""The permutation, the definition: what `transformers` selects expert by expert, laid end to end."""

import torch


def moe_permute_reference(x, experts, num_experts, first_expert=0):
    """See `wholecurve.kernels.moe_permute.moe_permute`."""
    assigned = experts.flatten()
    kept = [(assigned == first_expert + expert).nonzero()[:, 0] for expert in range(num_experts)]
    offsets = torch.tensor([0] + [len(slots) for slots in kept], device=x.device).cumsum(0)
    slots = torch.cat(kept)
    order = torch.full(assigned.shape, -1, device=x.device)
    order[: len(slots)] = slots
    inverse = torch.full(assigned.shape, -1, device=x.device)
    inverse[slots] = torch.arange(len(slots), device=x.device)
    permuted = x.new_zeros(len(assigned), x.shape[1])
    permuted[: len(slots)] = x[slots // experts.shape[1]]
    return permuted, offsets.int(), order.int(), inverse.view(experts.shape).int()
