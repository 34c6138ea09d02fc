"""Writing new keys and values into the paged cache in Triton."""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.kv_store.spec import tile
from wholecurve.kernels.launch import Launch, run_all

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST = tl.constexpr(448.0)  # of float8_e4m3fn


@triton.jit
def store_heads(
    new,
    cache,
    scale,
    source,
    target,
    new_stride_g,
    cache_stride_g,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    QUANTISE: tl.constexpr,
    SCALE_PER_HEAD: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Copy all heads of one token, [NUM_HEADS, HEAD_DIM] at `source`, to `target` of the cache."""
    heads, dims = tl.arange(0, BLOCK_HEADS), tl.arange(0, BLOCK_DIM)[None, :]
    inside = (heads < NUM_HEADS)[:, None] & (dims < HEAD_DIM)
    wide_heads = heads.to(tl.int64)[:, None]
    values = tl.load(new + (source + wide_heads * new_stride_g) + dims, mask=inside, other=0.0)
    if QUANTISE:
        if SCALE_PER_HEAD:
            divisor = tl.load(scale + heads, mask=heads < NUM_HEADS, other=1.0)[:, None]
        else:
            divisor = scale
        values = tl.div_rn(values.to(tl.float32), divisor.to(tl.float32))
        # comparisons, since a minimum would turn NaN into the largest number
        values = tl.where(values > LARGEST, LARGEST, tl.where(values < -LARGEST, -LARGEST, values))
    values = values.to(cache.dtype.element_ty)
    tl.store(cache + (target + wide_heads * cache_stride_g) + dims, values, mask=inside)


@triton.jit
def store_kv_kernel(
    k,  # [T, NUM_HEADS, K_DIM], last dimension contiguous
    v,  # [T, NUM_HEADS, V_DIM], last dimension contiguous
    k_cache,  # [num_blocks, BLOCK_SIZE, NUM_HEADS, K_DIM], last dimension contiguous
    v_cache,  # [num_blocks, BLOCK_SIZE, NUM_HEADS, V_DIM], last dimension contiguous
    slots,  # [T]
    k_scale,  # [NUM_HEADS] with K_SCALE_PER_HEAD, else a number
    v_scale,  # [NUM_HEADS] with V_SCALE_PER_HEAD, else a number
    num_slots,
    k_stride_t,
    k_stride_g,
    v_stride_t,
    v_stride_g,
    k_cache_stride_block,
    k_cache_stride_token,
    k_cache_stride_g,
    v_cache_stride_block,
    v_cache_stride_token,
    v_cache_stride_g,
    NUM_HEADS: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    K_QUANTISE: tl.constexpr,
    V_QUANTISE: tl.constexpr,
    K_SCALE_PER_HEAD: tl.constexpr,
    V_SCALE_PER_HEAD: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_K_DIM: tl.constexpr,
    BLOCK_V_DIM: tl.constexpr,
):
    """One program handles one token: all its heads of k and of v."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    # −1 asks for nothing to be written; a slot past the cache must not be written
    if (slot < 0) | (slot >= num_slots):
        return
    # 64 bits before the products: caches pass 2³¹ elements
    page, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    # fmt: off
    store_heads(
        k, k_cache, k_scale, token * k_stride_t, page * k_cache_stride_block + offset * k_cache_stride_token,
        k_stride_g, k_cache_stride_g, NUM_HEADS, K_DIM, K_QUANTISE, K_SCALE_PER_HEAD, BLOCK_HEADS, BLOCK_K_DIM,
    )
    store_heads(
        v, v_cache, v_scale, token * v_stride_t, page * v_cache_stride_block + offset * v_cache_stride_token,
        v_stride_g, v_cache_stride_g, NUM_HEADS, V_DIM, V_QUANTISE, V_SCALE_PER_HEAD, BLOCK_HEADS, BLOCK_V_DIM,
    )
    # fmt: on


def launches(k, v, k_cache, v_cache, slots, k_scale=None, v_scale=None, config=None):
    """([launch], None) for arguments as in `wholecurve.kernels.kv_store.store_kv`."""
    num_tokens, num_heads, k_dim = k.shape
    block_size, v_dim = k_cache.shape[1], v.shape[2]
    for name, new, scale in (("k", k, k_scale), ("v", v, v_scale)):
        require(new.dtype in DTYPES, f"store_kv: the Triton form takes {', '.join(map(str, DTYPES))}, not {new.dtype}")
        require(new.stride(2) == 1 or new.shape[2] == 1, f"store_kv: last dimension of {name} is strided")
        strided = isinstance(scale, torch.Tensor) and not scale.is_contiguous()
        require(not strided, f"store_kv: {name}_scale must be contiguous")
    require(slots.is_contiguous(), "store_kv: slots must be contiguous")
    block_heads, block_k_dim, num_warps = tile(num_heads, k_dim, **(config or {}))
    launch = Launch(
        store_kv_kernel,
        (num_tokens,),
        (
            *(k, v, k_cache, v_cache, slots),
            *(1.0 if scale is None else scale for scale in (k_scale, v_scale)),
            k_cache.shape[0] * block_size,
            *(*k.stride()[:2], *v.stride()[:2], *strides(k_cache), *strides(v_cache)),
        ),
        dict(
            NUM_HEADS=num_heads,
            K_DIM=k_dim,
            V_DIM=v_dim,
            BLOCK_SIZE=block_size,
            K_QUANTISE=k_cache.dtype != k.dtype,
            V_QUANTISE=v_cache.dtype != v.dtype,
            K_SCALE_PER_HEAD=isinstance(k_scale, torch.Tensor),
            V_SCALE_PER_HEAD=isinstance(v_scale, torch.Tensor),
            BLOCK_HEADS=block_heads,
            BLOCK_K_DIM=block_k_dim,
            BLOCK_V_DIM=tile(num_heads, v_dim)[1],
            num_warps=num_warps,
        ),
    )
    return [launch], None


def strides(cache):
    """Elements between pages, tokens and heads of a cache."""
    return cache.stride()[:3]


def store_kv_triton(k, v, k_cache, v_cache, slots, k_scale, v_scale, interpreted):
    """See `wholecurve.kernels.kv_store.store_kv`; interpreted: not on the GPU."""
    started, _ = launches(k, v, k_cache, v_cache, slots, k_scale, v_scale)
    run_all(started, interpreted)
