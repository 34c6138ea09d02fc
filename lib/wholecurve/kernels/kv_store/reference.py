"""Writing new keys and values into the paged cache, the definition.

Pages: Kwon et al. 2023, https://arxiv.org/abs/2309.06180, section 4.3. fp8: Micikevicius et al. 2022,
https://arxiv.org/abs/2209.05433, section 3.
"""

import torch


def store_kv_reference(k, v, k_cache, v_cache, slots, k_scale=None, v_scale=None):
    """See `wholecurve.kernels.kv_store.store_kv`."""
    block_size = k_cache.shape[1]
    k, v = quantised(k, k_cache.dtype, k_scale), quantised(v, v_cache.dtype, v_scale)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            k_cache[slot // block_size, slot % block_size] = k[token]
            v_cache[slot // block_size, slot % block_size] = v[token]


def quantised(new, dtype, scale=None):
    """Values [T, G, D] as a cache of this dtype holds them; see `wholecurve.kernels.kv_store.store_kv`."""
    if new.dtype == dtype:
        return new
    wide = new.to(torch.promote_types(new.dtype, torch.float32))
    if scale is not None:
        # a tensor: on a GPU torch multiplies by the reciprocal of a number instead of dividing by it
        wide = wide / torch.as_tensor(scale, dtype=torch.float32, device=new.device).view(-1, 1)
    largest = torch.finfo(dtype).max
    return wide.clamp(-largest, largest).to(dtype)
