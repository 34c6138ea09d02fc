"""Writing new keys and values into the paged cache, as they are or quantised to fp8."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.kv_store.cpu import store_kv_cpu
from wholecurve.kernels.kv_store.reference import store_kv_reference

FORMS = ("reference", "cpu", "triton", "interpret")
QUANTISED = torch.float8_e4m3fn


def form_for(device):
    """Name of the form that `store_kv` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def store_kv(k, v, k_cache, v_cache, slots, form=None, *, k_scale=None, v_scale=None):
    """Write k and v of each token into its slot of the caches, in place. Returns None.

    k: [T, G, Dk], v: [T, G, Dv], any strides. k_cache: [num_blocks, block_size, G, Dk], v_cache: [num_blocks,
    block_size, G, Dv], any strides of pages, tokens and heads, last dimension contiguous, in the dtype of k and v or in
    float8_e4m3fn. slots: [T] int64, each block · block_size + offset, or −1 to skip the token; slots other than −1
    must differ from each other.
    k_scale, v_scale: for fp8 caches alone, what attention multiplies cached values by: a float, or [G] float32, None
    for 1. An fp8 cache holds new / scale, divided in fp32, cut to ±448 and rounded to nearest even; NaN stays NaN.
    IndexError for a slot outside the cache; on a GPU, where reading slots would wait for it, such a token is skipped.
    ValueError for shapes, dtypes or strides.
    """
    if problem := refusal(k, v, k_cache, v_cache, slots, k_scale, v_scale):
        raise ValueError(f"store_kv: {problem}")
    if slots.device.type == "cpu" and slots.numel():
        low, high = (int(bound) for bound in slots.aminmax())
        room = k_cache.shape[0] * k_cache.shape[1]
        if low < -1 or high >= room:
            raise IndexError(f"store_kv: slots {low}..{high} leave the cache of {room} slots")
    chosen = forms.choose_form(form, k_cache.device, FORMS)
    if chosen == "cpu":
        return store_kv_cpu(k, v, k_cache, v_cache, slots, k_scale, v_scale)
    if chosen == "reference":
        return store_kv_reference(k, v, k_cache, v_cache, slots, k_scale, v_scale)
    from wholecurve.kernels.kv_store.kernel import store_kv_triton

    return store_kv_triton(k, v, k_cache, v_cache, slots, k_scale, v_scale, interpreted=chosen == "interpret")


def refusal(k, v, k_cache, v_cache, slots, k_scale, v_scale):
    """What is wrong with these arguments, None if nothing is; a text is only built for the error."""
    if slots.dtype != torch.int64:
        return f"slots must be int64, they are {slots.dtype}"
    for name, new, cache, scale in (("k", k, k_cache, k_scale), ("v", v, v_cache, v_scale)):
        if new.shape != (slots.shape[0], *cache.shape[2:]) or cache.shape[:3] != k_cache.shape[:3]:
            return f"{name} is {tuple(new.shape)} for {slots.shape[0]} slots of a cache {tuple(cache.shape)}"
        if cache.stride(3) != 1 and cache.shape[3] > 1:
            return f"last dimension of {name}_cache is strided"
        if new.dtype != cache.dtype and cache.dtype != QUANTISED:
            return f"{name} is {new.dtype} but its cache is {cache.dtype}"
        if scale is None:
            continue
        if cache.dtype != QUANTISED or new.dtype == QUANTISED:
            return f"{name}_scale is for {QUANTISED} caches of wider values, {name} is {new.dtype} in {cache.dtype}"
        if isinstance(scale, torch.Tensor):
            if scale.shape != new.shape[1:2] or scale.dtype != torch.float32:
                given = f"{tuple(scale.shape)} {scale.dtype}"
                return f"{name}_scale must be a float or [{new.shape[1]}] float32, it is {given}"
        elif not scale > 0:
            return f"{name}_scale must be above 0, it is {scale}"
    return None
