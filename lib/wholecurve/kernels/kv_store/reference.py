"""Writing new keys and values into the paged cache, the definition."""


def store_kv_reference(k, v, k_cache, v_cache, slots):
    """See `wholecurve.kernels.kv_store.store_kv`."""
    block_size = k_cache.shape[1]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            k_cache[slot // block_size, slot % block_size] = k[token]
            v_cache[slot // block_size, slot % block_size] = v[token]
