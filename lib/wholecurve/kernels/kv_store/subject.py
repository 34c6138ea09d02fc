"""Storing keys and values as the laboratory sees it."""

import torch

from wholecurve.kernels.kv_store import FORMS, spec, store_kv
from wholecurve.kernels.subject import Expected, Subject

SPARE_PAGES = 2


def make(
    inputs,
    num_tokens,
    num_kv_heads,
    head_dim,
    block_size,
    v_head_dim=None,
    skipped=0,
    pages="plain",
    cache_dtype="input",
    scale="none",
    dtype="bfloat16",
):
    """Arguments of `store_kv` for a case: tokens in shuffled slots of a cache that is full of other values.

    Heads of k lie apart and those of v side by side. Scales are so small that some values leave the range of fp8.
    """
    v_head_dim = v_head_dim or head_dim
    cache_dtype = dtype if cache_dtype == "input" else cache_dtype
    num_blocks = -(-num_tokens // block_size) + SPARE_PAGES
    slots = inputs.permutation(num_blocks * block_size)[:num_tokens]
    if skipped:
        slots[:: num_tokens // skipped][:skipped] = -1
    caches = [
        inputs.normal(num_blocks, block_size, num_kv_heads, size, dtype=cache_dtype) for size in (head_dim, v_head_dim)
    ]
    if pages == "interleaved":
        both = inputs.normal(num_blocks, 2, block_size, num_kv_heads, head_dim, dtype=cache_dtype)
        caches = list(both.unbind(1))
    scales = {
        "none": (None, None),
        # 7 · 2ⁿ: a seventh of many bf16 numbers lies just between two of fp8, and a product with 1/7 beside it
        "float": (7 / 1024, 7 / 2048),
        "per head": [inputs.uniform(num_kv_heads, low=0.003, high=0.02) for _ in "kv"],
    }[scale]
    return {
        "k": inputs.normal(num_tokens, num_kv_heads, head_dim + 16, dtype=dtype)[..., :head_dim],
        "v": inputs.normal(num_tokens, num_kv_heads + 2, v_head_dim, dtype=dtype)[:, :num_kv_heads],
        "k_cache": caches[0],
        "v_cache": caches[1],
        "slots": slots,
        "k_scale": scales[0],
        "v_scale": scales[1],
    }


def expected(k, v, k_cache, v_cache, slots, k_scale=None, v_scale=None):
    """Both caches, exactly: a division in fp32 and one rounding to a dtype have one right answer."""
    stored = slots >= 0
    pages, offsets = slots[stored] // k_cache.shape[1], slots[stored] % k_cache.shape[1]
    outputs = []
    for new, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        value = cache.double()
        value[pages, offsets] = held(new[stored], cache.dtype, scale).double()
        outputs.append(Expected(value, ulps=0.0))
    return tuple(outputs)


def held(new, dtype, scale):
    """What a cache of this dtype holds of new values [T, G, D]."""
    if new.dtype == dtype:
        return new
    divisor = torch.as_tensor(1.0 if scale is None else scale, dtype=torch.float32, device=new.device)
    return (new.float() / divisor.view(-1, 1)).clamp(-448, 448).to(dtype)


def eager(k, v, k_cache, v_cache, slots, k_scale=None, v_scale=None):
    """What an engine in plain torch does, call by call."""
    stored = slots >= 0
    pages, offsets = slots[stored] // k_cache.shape[1], slots[stored] % k_cache.shape[1]
    for new, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        cache[pages, offsets] = held(new[stored], cache.dtype, scale)


SUBJECT = Subject(
    "kv_store",
    store_kv,
    FORMS,
    spec,
    make,
    expected,
    writes=("k_cache", "v_cache"),
    baselines={"eager": eager},
)
