"""Chunked prefill attention in Triton: a tile of queries walks over tiles of a paged cache with a running softmax.

FlashAttention-2 (Dao 2023, https://arxiv.org/abs/2307.08691, algorithm 1). The query heads of one key-value head are
rows of one tile, so that a short chunk fills it too. Tiles of keys start at multiples of their size, counted from
position 0 of the sequence: which sums a row is made of does not depend on how its prompt is cut into chunks.
"""

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from wholecurve.kernels.decode_attention.kernel import close_softmax, tanh
from wholecurve.kernels.forms import require
from wholecurve.kernels.inputs import dtype_name
from wholecurve.kernels.launch import Launch, run_all
from wholecurve.kernels.prefill_attention.spec import MAX_HEAD_DIM, tile
from wholecurve.kernels.tma import describable, has_tma

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LOG2_E = tl.constexpr(math.log2(math.e))


@triton.jit
def load_rows(cache, rows, inside, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """[N, BLOCK]: the vectors that start at `rows`; 0 past SIZE and where not inside."""
    dims = tl.arange(0, BLOCK)
    return tl.load(cache + rows[:, None] + dims[None, :], mask=inside[:, None] & (dims < SIZE)[None, :], other=0.0)


@triton.jit
def prefill_attention_kernel(
    q,  # [T, H, K_DIM]
    k_cache,  # [num_blocks, BLOCK_SIZE, G, K_DIM]; with TMA its descriptor, a block is [1, BLOCK_N, 1, BLOCK_K]
    v_cache,  # [num_blocks, BLOCK_SIZE, G, V_DIM]
    v_tiles,  # with TMA the descriptor of v_cache, a block is [1, BLOCK_N, 1, BLOCK_V]; else v_cache
    block_table,  # [B, max_blocks]
    context_lens,  # [B]
    cu_q,  # [B + 1]
    k_scale,  # [G] fp32, any pointer without HAS_K_SCALE
    v_scale,  # [G] fp32, any pointer without HAS_V_SCALE
    sinks,  # [H], any pointer without HAS_SINKS
    out,  # [T, H, V_DIM], contiguous
    lse,  # [T, H] fp32, contiguous, any pointer without HAS_LSE
    score_scale,
    soft_cap,
    value_scale,
    window,
    q_stride_t,
    q_stride_h,
    k_stride_block,
    k_stride_token,
    k_stride_g,
    v_stride_block,
    v_stride_token,
    v_stride_g,
    table_stride,
    num_heads,
    GROUP: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_K_SCALE: tl.constexpr,
    HAS_V_SCALE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
    TMA: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program handles BLOCK_M rows of one sequence: the GROUP query heads of one key-value head, token by token."""
    # 64 bits before the products: caches and long batches pass 2³¹ elements
    kv_head, sequence = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    first_token = tl.load(cu_q + sequence).to(tl.int32)
    new = tl.load(cu_q + sequence + 1).to(tl.int32) - first_token
    # the end of a chunk sees the most keys, so its programs start first
    tile = tl.cdiv(new * GROUP, BLOCK_M) - 1 - tl.program_id(1)
    if tile < 0:
        return
    prefix = tl.load(context_lens + sequence).to(tl.int32) - new  # negative with more new tokens than context
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    tokens, heads = rows // GROUP, kv_head * GROUP + rows % GROUP
    q_rows = (first_token + tokens).to(tl.int64) * q_stride_t + heads * q_stride_h
    query = load_rows(q, q_rows, tokens < new, K_DIM, BLOCK_K)
    row_positions = prefix + tokens

    # keys begin … end − 1 are seen by some row; tiles from `whole` to `diagonal` by every row, and need no mask
    first_position = prefix + tile * BLOCK_M // GROUP
    last_position = prefix + tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // GROUP, new - 1)
    end = tl.maximum(last_position + 1, 0)
    diagonal = tl.maximum(first_position + 1, 0) // BLOCK_N * BLOCK_N
    begin, lowest, whole = 0, 0, 0
    if HAS_WINDOW:
        begin = tl.maximum(first_position - window + 1, 0)
        lowest = begin // BLOCK_N * BLOCK_N
        whole = tl.cdiv(tl.maximum(last_position - window + 1, 0), BLOCK_N) * BLOCK_N
        whole = tl.minimum(whole, diagonal)

    if HAS_K_SCALE:
        score_scale *= tl.load(k_scale + kv_head)
    # a row's exponents are factor · score; a factor of 0 would turn the −inf of a masked score into NaN
    factor = (soft_cap if HAS_CAP else tl.maximum(score_scale, 1e-30)) * LOG2_E
    table = block_table + sequence * table_stride
    ONE_PAGE: tl.constexpr = BLOCK_SIZE % BLOCK_N == 0
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    # 0: the edge of the window, masked; 1: tiles that every row sees; 2: the diagonal, masked
    for part in tl.static_range(0 if HAS_WINDOW else 1, 3):
        if part == 0:
            first, last = lowest, whole
        elif part == 1:
            first, last = whole, diagonal
        else:
            first, last = diagonal, end
        for start in tl.range(first, last, BLOCK_N):
            keys = start + tl.arange(0, BLOCK_N)
            inside = (keys >= begin) & (keys < end)
            if ONE_PAGE:
                page = tl.load(table + tl.cast(start // BLOCK_SIZE, tl.int64)).to(tl.int64)
            else:
                page = tl.load(table + (keys // BLOCK_SIZE).to(tl.int64), mask=inside, other=0).to(tl.int64)
            token = (keys % BLOCK_SIZE).to(tl.int64)
            if TMA:
                # what the page holds beside the keys that are inside is masked below, whatever it is
                k = k_cache.load([page.to(tl.int32), start % BLOCK_SIZE, kv_head.to(tl.int32), 0])
                k = k.reshape(BLOCK_N, BLOCK_K)
            else:
                k_rows = page * k_stride_block + token * k_stride_token + kv_head * k_stride_g
                k = load_rows(k_cache, k_rows, inside, K_DIM, BLOCK_K)
            scores = tl.dot(query, tl.trans(k.to(query.dtype)), input_precision="ieee")
            if HAS_CAP:
                scores = tanh(scores * (score_scale / soft_cap))
            if part != 1:
                seen = keys[None, :] <= row_positions[:, None]
                if HAS_WINDOW:
                    seen &= keys[None, :] > row_positions[:, None] - window
                scores = tl.where(seen, scores, -float("inf"))
            new_top = tl.maximum(top, tl.max(scores, axis=1) * factor)
            # a row that has seen nothing yet: −inf − −inf would be NaN
            shift = new_top if part == 1 else tl.where(new_top == -float("inf"), 0.0, new_top)
            # fused by hand: left to the compiler, masked tiles would round otherwise than the others
            weights = tl.exp2(tl.fma(scores, factor, -shift[:, None]))
            rescale = tl.exp2(top - shift)
            total = total * rescale + tl.sum(weights, axis=1)
            top = new_top
            if TMA and part == 1:
                v = v_tiles.load([page.to(tl.int32), start % BLOCK_SIZE, kv_head.to(tl.int32), 0])
                v = v.reshape(BLOCK_N, BLOCK_V)
            else:
                # a weight of 0 does not silence a NaN: what is not inside must not be loaded
                v_rows = page * v_stride_block + token * v_stride_token + kv_head * v_stride_g
                v = load_rows(v_cache, v_rows, inside, V_DIM, BLOCK_V)
            acc = acc * rescale[:, None]
            acc = tl.dot(weights.to(query.dtype), v.to(query.dtype), acc, input_precision="ieee")

    # read again, so that the offsets of the rows do not hold registers through the loops (volatile: not merged)
    first_token = tl.load(cu_q + sequence, volatile=True).to(tl.int32)
    new = tl.load(cu_q + sequence + 1, volatile=True).to(tl.int32) - first_token
    rows = (tl.cdiv(new * GROUP, BLOCK_M) - 1 - tl.program_id(1)) * BLOCK_M + tl.arange(0, BLOCK_M)
    tokens, heads = rows // GROUP, kv_head * GROUP + rows % GROUP
    row_inside = tokens < new
    out_rows = (first_token + tokens).to(tl.int64) * num_heads + heads
    sink = tl.full([BLOCK_M], -float("inf"), tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks + heads, mask=row_inside, other=0.0).to(tl.float32) * LOG2_E
    if HAS_V_SCALE:
        value_scale *= tl.load(v_scale + kv_head)
    last_factor, logarithm = close_softmax(top, total, sink, value_scale)
    if HAS_LSE:
        tl.store(lse + out_rows, logarithm, mask=row_inside)
    dims = tl.arange(0, BLOCK_V)
    tl.store(
        out + (out_rows * V_DIM)[:, None] + dims[None, :],
        (acc * last_factor[:, None]).to(out.dtype.element_ty),
        mask=row_inside[:, None] & (dims < V_DIM)[None, :],
    )


def launches(
    q,
    k_cache,
    v_cache,
    block_table,
    context_lens,
    cu_q,
    scale,
    *,
    max_q=None,
    window=None,
    soft_cap=None,
    sinks=None,
    return_lse=False,
    k_scale=None,
    v_scale=None,
    config=None,
):
    """([launch], out or (out, lse)) for arguments as in `wholecurve.kernels.prefill_attention.prefill_attention`."""
    context_lens, cu_q = (as_tensor(numbers, q.device) for numbers in (context_lens, cu_q))
    check_layout(q, k_cache, v_cache, block_table, context_lens, cu_q, sinks, k_scale, v_scale)
    num_tokens, num_heads, k_dim = q.shape
    block_size, num_kv_heads, v_dim = v_cache.shape[1:]
    group = num_heads // num_kv_heads
    choice = {"tma": has_tma(q.device)} | (config or {})
    choice["tma"] &= describable(k_cache) and describable(v_cache)
    cache_dtype = None if k_cache.dtype == q.dtype else dtype_name(k_cache.dtype)
    chosen = tile(k_dim, v_dim, block_size, dtype_name(q.dtype), cache_dtype, **choice)
    k_tiles, v_tiles = k_cache, v_cache
    if chosen.tma:
        k_tiles = TensorDescriptor.from_tensor(k_cache, [1, chosen.block_n, 1, chosen.block_k])
        v_tiles = TensorDescriptor.from_tensor(v_cache, [1, chosen.block_n, 1, chosen.block_v])

    out = torch.empty((num_tokens, num_heads, v_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((num_tokens, num_heads), dtype=torch.float32, device=q.device) if return_lse else None
    # from a bound, not from cu_q: reading that would wait for the GPU
    row_tiles = triton.cdiv((num_tokens if max_q is None else max_q) * group, chosen.block_m)
    optional = [tensor if is_tensor(tensor) else out for tensor in (k_scale, v_scale, sinks)]
    launch = Launch(
        prefill_attention_kernel,
        (num_kv_heads, row_tiles if num_tokens else 0, len(block_table)),
        (
            *(
                q,
                k_tiles,
                v_cache,
                v_tiles,
                block_table,
                context_lens,
                cu_q,
                *optional,
                out,
                lse if return_lse else out,
            ),
            float(scale * (1.0 if k_scale is None or is_tensor(k_scale) else k_scale)),
            float(soft_cap or 0.0),
            float(1.0 if v_scale is None or is_tensor(v_scale) else v_scale),
            *(0 if window is None else window, *q.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3]),
            *(block_table.stride(0), num_heads),
        ),
        dict(
            GROUP=group,
            K_DIM=k_dim,
            V_DIM=v_dim,
            BLOCK_SIZE=block_size,
            HAS_WINDOW=window is not None,
            HAS_CAP=soft_cap is not None,
            HAS_K_SCALE=is_tensor(k_scale),
            HAS_V_SCALE=is_tensor(v_scale),
            HAS_SINKS=sinks is not None,
            HAS_LSE=return_lse,
            TMA=chosen.tma,
            BLOCK_M=chosen.block_m,
            BLOCK_N=chosen.block_n,
            BLOCK_K=chosen.block_k,
            BLOCK_V=chosen.block_v,
            num_warps=chosen.num_warps,
            num_stages=chosen.num_stages,
        ),
    )
    return [launch], (out, lse) if return_lse else out


def as_tensor(numbers, device):
    """Lengths or offsets as a tensor: a list is copied to the device."""
    return numbers if is_tensor(numbers) else torch.tensor(numbers, dtype=torch.int32, device=device)


def is_tensor(argument):
    """Whether an argument that may be a number or missing is a tensor."""
    return isinstance(argument, torch.Tensor)


def check_layout(q, k_cache, v_cache, block_table, context_lens, cu_q, sinks, k_scale, v_scale):
    """ValueError for what the Triton form cannot read: other dtypes, strided rows, larger heads."""
    require(q.dtype in DTYPES, f"prefill_attention: the Triton form takes {', '.join(map(str, DTYPES))}, not {q.dtype}")
    largest = max(q.shape[2], v_cache.shape[3])
    require(
        largest <= MAX_HEAD_DIM, f"prefill_attention: the Triton form takes heads up to {MAX_HEAD_DIM}, not {largest}"
    )
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache), ("block_table", block_table)):
        require(
            tensor.stride(-1) == 1 or tensor.shape[-1] == 1, f"prefill_attention: last dimension of {name} is strided"
        )
    vectors = dict(context_lens=context_lens, cu_q=cu_q, sinks=sinks, k_scale=k_scale, v_scale=v_scale)
    for name, tensor in vectors.items():
        require(not is_tensor(tensor) or tensor.is_contiguous(), f"prefill_attention: {name} must be contiguous")


def prefill_attention_triton(*arguments, interpreted, **options):
    """See `wholecurve.kernels.prefill_attention.prefill_attention`; interpreted: not on the GPU."""
    started, outputs = launches(*arguments, **options)
    run_all(started, interpreted)
    return outputs
