"""Writing new keys and values into the paged cache."""

from wholecurve.kernels import forms
from wholecurve.kernels.kv_store.cpu import store_kv_cpu
from wholecurve.kernels.kv_store.reference import store_kv_reference

FORMS = ("reference", "cpu")


def form_for(device):
    """Name of the form that `store_kv` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def store_kv(k, v, k_cache, v_cache, slots, form=None):
    """Write k and v of each token into its slot of the caches, in place.

    k, v: [T, G, D], any strides. k_cache, v_cache: [num_blocks, block_size, G, D]. slots: [T] int64, each
    block · block_size + offset, or −1 to skip the token; slots other than −1 must differ from each other.
    IndexError for a slot outside the cache, ValueError for shapes.
    """
    num_blocks, block_size = k_cache.shape[:2]
    for name, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
        forms.require(
            new.shape == (slots.shape[0], *cache.shape[2:]) and cache.shape[:2] == (num_blocks, block_size),
            f"store_kv: {name} is {tuple(new.shape)} for {slots.shape[0]} slots of a cache {tuple(cache.shape)}",
        )
        forms.require(new.dtype == cache.dtype, f"store_kv: {name} is {new.dtype} but its cache is {cache.dtype}")
    if slots.numel():
        low, high = (int(bound) for bound in slots.aminmax())
        if low < -1 or high >= num_blocks * block_size:
            raise IndexError(f"store_kv: slots {low}..{high} leave the cache of {num_blocks * block_size} slots")
    chosen = forms.choose_form(form, k_cache.device, FORMS)
    (store_kv_cpu if chosen == "cpu" else store_kv_reference)(k, v, k_cache, v_cache, slots)
