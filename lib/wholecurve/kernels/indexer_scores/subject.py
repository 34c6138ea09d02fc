"""The indexer's scores as the laboratory sees them."""

import torch

from wholecurve.kernels.cost import ceil_div
from wholecurve.kernels.indexer_scores import FORMS, indexer_scores, spec
from wholecurve.kernels.subject import Expected, Subject

SPARE_PAGES = 2  # of the cache, that no table names
CHUNK = 2**30  # numbers of gathered keys at once in the baseline


def make(
    inputs,
    rows,
    num_heads,
    head_dim,
    block_size,
    compress=1,
    max_context=None,
    fp8=None,
    dtype="bfloat16",
):
    """Arguments of `indexer_scores` for a case: shuffled pages; NaN, −1 and huge page ids where nothing is stored."""
    needed = [0] * (max((sequence for sequence, _ in rows), default=-1) + 1)
    for sequence, length in rows:
        needed[sequence] = max(needed[sequence], length // compress)
    width = max(needed, default=0) if max_context is None else max_context
    num_blocks = sum(ceil_div(keys, block_size) for keys in needed) + SPARE_PAGES
    k_cache = inputs.normal(num_blocks, block_size, head_dim, dtype="float8_e4m3fn" if fp8 else dtype)
    k_scale = inputs.uniform(num_blocks, block_size, low=0.25, high=2.0) if fp8 else None
    block_table = inputs.full(len(needed), ceil_div(width, block_size) + 1, value=-1, dtype="int32")
    if not inputs.is_meta:
        block_table[:, 1::2] = 2**31 - 1
        fill_pages(needed, block_table, inputs.permutation(num_blocks), k_cache, k_scale)
    is_fp8 = fp8 == "both"
    return {
        "q": inputs.normal(len(rows), num_heads, head_dim, dtype="float8_e4m3fn" if is_fp8 else dtype),
        "weights": inputs.normal(len(rows), num_heads, dtype="float32", scale=(num_heads * head_dim) ** -0.5),
        "k_cache": k_cache,
        "block_table": block_table,
        "sequences": inputs.fixed([sequence for sequence, _ in rows], "int32"),
        "lengths": inputs.fixed([length for _, length in rows], "int32"),
        "max_context": width,
        "compress": compress,
        "q_scale": inputs.uniform(len(rows), num_heads, low=0.25, high=2.0) if is_fp8 else None,
        "k_scale": k_scale,
    }


def fill_pages(needed, block_table, pages, k_cache, k_scale):
    """Give each sequence its pages, and poison every slot that then holds no key."""
    stored = torch.zeros(k_cache.shape[:2], dtype=torch.bool, device=k_cache.device)
    block_size, taken = k_cache.shape[1], 0
    for sequence, keys in enumerate(needed):
        blocks = ceil_div(keys, block_size)
        block_table[sequence, :blocks] = pages[taken : taken + blocks]
        stored[pages[taken : taken + blocks]] = True
        if keys % block_size:
            stored[pages[taken + blocks - 1], keys % block_size :] = False
        taken += blocks
    if k_scale is None:
        k_cache[~stored] = torch.nan
    else:
        k_cache.view(torch.uint8)[~stored] = 0x7F  # NaN of float8_e4m3fn, which cannot be filled
        k_scale[~stored] = torch.nan


def expected(q, weights, k_cache, block_table, sequences, lengths, *, max_context, compress, q_scale, k_scale):
    """The sum in float64, head by head for all rows of a sequence at once.

    fp32 sums over H · D products err by some eps(fp32) of Σ|weight||q||k|. The matrix units of sm_90 align products
    of fp8 and keep 13 bits below the largest one of a sum, so with fp8 on both sides a GPU errs by 2⁻¹³ of it.
    """
    out = torch.full((len(q), max_context), -torch.inf, dtype=torch.float64, device=q.device)
    size = torch.zeros(len(q), 1, dtype=torch.float64, device=q.device)
    factors = weights.double() if q_scale is None else weights.double() * q_scale.double()
    for sequence in sequences.unique().tolist():
        rows = (sequences == sequence).nonzero()[:, 0]
        ends = lengths[rows].long() // compress
        keys = stored_keys(k_cache, k_scale, block_table[sequence], int(ends.max()))
        scores = torch.zeros(len(rows), len(keys), dtype=torch.float64, device=q.device)
        bound = keys.abs().amax(dim=0) if len(keys) else keys.new_zeros(q.shape[2])
        for head in range(q.shape[1]):
            queries = q[rows, head].double()
            scores += factors[rows, head, None] * (queries @ keys.T).relu_()
            size[rows, 0] += factors[rows, head].abs() * (queries.abs() @ bound)
        hidden = torch.arange(len(keys), device=q.device) >= ends[:, None]
        out[rows, : len(keys)] = scores.masked_fill_(hidden, -torch.inf)
    on_fp8_units = q.dtype == torch.float8_e4m3fn and q.device.type == "cuda"
    return (Expected(out, ulps=2**10 if on_fp8_units else 4, scale=size),)


def stored_keys(k_cache, k_scale, pages, count):
    """The first `count` keys [count, D] of one sequence in float64."""
    positions = torch.arange(count, device=k_cache.device)
    pages, tokens = pages[positions // k_cache.shape[1]].long(), positions % k_cache.shape[1]
    keys = k_cache[pages, tokens].double()
    return keys if k_scale is None else keys * k_scale[pages, tokens, None].double()


def eager(
    q,
    weights,
    k_cache,
    block_table,
    sequences,
    lengths,
    *,
    max_context=None,
    compress=1,
    q_scale=None,
    k_scale=None,
):
    """What a model file in plain torch does: gather each row's keys, one batched product, ReLU, weighted sum.

    In chunks of rows, as a prompt's keys for every row at once fit into no memory.
    """
    block_size = k_cache.shape[1]
    width = block_table.shape[1] * block_size if max_context is None else max_context
    positions = torch.arange(width, device=q.device)
    slots = block_table.long()[:, positions // block_size] * block_size + positions % block_size
    wide = torch.float32 if q.dtype.itemsize == 1 else q.dtype
    factors = weights if q_scale is None else weights * q_scale
    out = torch.empty(len(q), width, dtype=torch.float32, device=q.device)
    for rows in torch.arange(len(q), device=q.device).split(max(1, CHUNK // max(1, width * q.shape[2]))):
        seen = positions < lengths[rows, None] // compress  # [R, S]
        own = slots[sequences[rows].long()].where(seen, 0)
        keys = k_cache.flatten(0, 1)[own].to(wide)  # [R, S, D]
        scores = torch.matmul(keys.float(), q[rows].to(wide).mT.float()).relu_()  # [R, S, H]
        scores = torch.matmul(scores, factors[rows, :, None])[:, :, 0]
        if k_scale is not None:
            scores = scores * k_scale.flatten()[own]
        out[rows] = scores.masked_fill(~seen, -torch.inf)
    return out


SUBJECT = Subject("indexer_scores", indexer_scores, FORMS, spec, make, expected, baselines={"eager": eager})
