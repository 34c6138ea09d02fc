"""Writing new keys and values into the paged cache as one indexed copy per cache."""

from wholecurve.kernels.forms import require


def store_kv_cpu(k, v, k_cache, v_cache, slots):
    """See `wholecurve.kernels.kv_store.store_kv`. ValueError for caches that are not contiguous."""
    # a cache that cannot be viewed flat would be copied, and the write would be lost
    require(k_cache.is_contiguous() and v_cache.is_contiguous(), "store_kv: the cpu form takes contiguous caches")
    kept = slots >= 0
    if not kept.all():
        k, v, slots = k[kept], v[kept], slots[kept]
    for new, cache in ((k, k_cache), (v, v_cache)):
        cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, new)
