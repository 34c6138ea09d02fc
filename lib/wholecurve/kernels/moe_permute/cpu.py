"""The permutation in torch: one stable sort of the experts and one gather of the rows."""

import torch


def moe_permute_cpu(x, experts, num_experts, first_expert=0):
    """See `wholecurve.kernels.moe_permute.moe_permute`."""
    assigned, top_k = experts.flatten(), experts.shape[1]
    local = assigned if first_expert == 0 else assigned - first_expert
    local = local.where((local >= 0) & (local < num_experts), num_experts)  # the dropped go last
    in_order, order = local.sort(stable=True)
    offsets = torch.searchsorted(in_order, torch.arange(num_experts + 1, dtype=in_order.dtype), out_int32=True)
    num_kept = int(offsets[-1])
    inverse = torch.empty(assigned.shape, dtype=torch.int32)
    inverse[order] = torch.arange(len(order), dtype=torch.int32)
    permuted = x.index_select(0, order // top_k)
    order = order.int()
    if num_kept < len(order):
        inverse[order[num_kept:]] = -1
        order[num_kept:] = -1
        permuted[num_kept:] = 0
    return permuted, offsets, order, inverse.view(experts.shape)
