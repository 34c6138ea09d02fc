"""Writing new keys and values into the paged cache as one indexed copy per cache."""

import torch

from wholecurve.kernels.kv_store.reference import quantised


def store_kv_cpu(k, v, k_cache, v_cache, slots, k_scale=None, v_scale=None):
    """See `wholecurve.kernels.kv_store.store_kv`."""
    kept = slots >= 0
    if not kept.all():
        k, v, slots = k[kept], v[kept], slots[kept]
    for new, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        new = quantised(new, cache.dtype, scale)
        if cache.dtype.itemsize == 1:
            new, cache = new.view(torch.uint8), cache.view(torch.uint8)  # indexed copies do not know fp8
        num_blocks, block_size = cache.shape[:2]
        if cache.stride(0) == block_size * cache.stride(1):
            cache.view(num_blocks * block_size, *cache.shape[2:]).index_copy_(0, slots, new)
        else:  # pages with something between them: a flat view would be a copy, and the write would be lost
            cache[slots // block_size, slots % block_size] = new
