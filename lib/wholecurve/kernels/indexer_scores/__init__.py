"""The indexer of DeepSeek sparse attention: a score of each cached token for each query token."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.indexer_scores.reference import indexer_scores_reference

FORMS = ("reference", "triton", "interpret")


def form_for(device):
    """Name of the form that `indexer_scores` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def indexer_scores(
    q,
    weights,
    k_cache,
    block_table,
    sequences,
    lengths,
    form=None,
    *,
    max_context=None,
    compress=1,
    q_scale=None,
    k_scale=None,
):
    """Σ_h weights[t, h] · ReLU(q[t, h] · key(s)) for row t and each visible position s of its sequence, else −inf.

    q: [T, H, D]. weights: [T, H] float32; factors such as H^-1/2 · D^-1/2 belong in them. k_cache: [num_blocks,
    block_size, D], the dtype of q or float8_e4m3fn, one key per position. block_table: [B, max_blocks] int32 or
    int64; entries of no visible position may hold anything and are never dereferenced. sequences: [T] int, the row
    of block_table that row t reads. lengths: [T] int, tokens that row t sees, itself included.
    compress: tokens behind one cached key. Key w of a cache of pooled keys is visible to row t once all of its tokens
    are, w < floor(lengths[t] / compress) (DeepSeek-V4, Qwen's blocks of index keys).
    q_scale: [T, H], k_scale: [num_blocks, block_size], both float32 and not negative: they multiply queries and keys
    (of fp8), and go outside the ReLU.
    max_context: positions of the output, None for all that a row of block_table names.
    Returns [T, max_context] float32. A NaN in a visible key or in the query gives NaN. The bits of a row do not depend
    on the other rows.
    ValueError for shapes or dtypes outside this contract. On the CPU also for a row that sees more than max_context
    positions, and IndexError for a sequence outside block_table and for a page outside the cache.
    """
    if max_context is None and block_table.dim() == 2 and k_cache.dim() == 3:
        max_context = block_table.shape[1] * k_cache.shape[1]
    require_shapes(q, weights, k_cache, block_table, sequences, lengths, max_context, compress)
    require_dtypes(q, weights, k_cache, q_scale, k_scale)
    if q.device.type == "cpu":
        require_values(k_cache, block_table, sequences, lengths, max_context, compress)
    options = dict(max_context=max_context, compress=compress, q_scale=q_scale, k_scale=k_scale)
    chosen = forms.choose_form(form, q.device, FORMS)
    if chosen == "reference":
        return indexer_scores_reference(q, weights, k_cache, block_table, sequences, lengths, **options)
    from wholecurve.kernels.indexer_scores.kernel import indexer_scores_triton

    given = (q, weights, k_cache, block_table, sequences, lengths)
    return indexer_scores_triton(*given, interpreted=chosen == "interpret", **options)


def require_shapes(q, weights, k_cache, block_table, sequences, lengths, max_context, compress):
    """ValueError for shapes that do not fit each other."""
    forms.require(
        q.dim() == 3 and 0 not in q.shape[1:],
        f"indexer_scores: q must be [tokens, heads, head size], it is {list(q.shape)}",
    )
    num_rows, num_heads, head_dim = q.shape
    forms.require(
        weights.shape == (num_rows, num_heads),
        f"indexer_scores: weights must be [{num_rows}, {num_heads}], they are {list(weights.shape)}",
    )
    forms.require(
        k_cache.dim() == 3 and k_cache.shape[2] == head_dim,
        f"indexer_scores: k_cache must be [blocks, block size, {head_dim}], it is {list(k_cache.shape)}",
    )
    forms.require(
        block_table.dim() == 2,
        f"indexer_scores: block_table must be [sequences, blocks], it is {list(block_table.shape)}",
    )
    for name, tensor in (("sequences", sequences), ("lengths", lengths)):
        forms.require(
            tensor.shape == (num_rows,), f"indexer_scores: {name} must be [{num_rows}], they are {list(tensor.shape)}"
        )
    capacity = block_table.shape[1] * k_cache.shape[1]
    forms.require(
        0 <= max_context <= capacity,
        f"indexer_scores: max_context is {max_context}, a row of block_table names {capacity} positions",
    )
    forms.require(compress >= 1, f"indexer_scores: compress must be at least 1, it is {compress}")


def require_dtypes(q, weights, k_cache, q_scale, k_scale):
    """ValueError for dtypes, and for scales of other shapes."""
    forms.require(
        k_cache.dtype in (q.dtype, torch.float8_e4m3fn),
        f"indexer_scores: k_cache is {k_cache.dtype}, it must be {q.dtype} as q or torch.float8_e4m3fn",
    )
    for name, tensor, shape in (
        ("weights", weights, weights.shape),
        ("q_scale", q_scale, weights.shape),
        ("k_scale", k_scale, k_cache.shape[:2]),
    ):
        forms.require(
            tensor is None or (tensor.shape == shape and tensor.dtype == torch.float32),
            f"indexer_scores: {name} must be {list(shape)} torch.float32, it is "
            + ("" if tensor is None else f"{list(tensor.shape)} {tensor.dtype}"),
        )


def require_values(k_cache, block_table, sequences, lengths, max_context, compress):
    """ValueError or IndexError for lengths, sequences and pages that name no memory."""
    if not len(lengths):
        return
    longest = int(lengths.max()) // compress
    forms.require(
        longest <= max_context, f"indexer_scores: a row sees {longest} positions, max_context is {max_context}"
    )
    num_blocks, block_size = k_cache.shape[:2]
    if int(sequences.min()) < 0 or int(sequences.max()) >= len(block_table):
        raise IndexError(f"indexer_scores: sequences name a row outside block_table, which has {len(block_table)}")
    needed = torch.zeros(len(block_table), dtype=torch.int64)
    needed.scatter_reduce_(0, sequences.long(), lengths.long() // compress, "amax")
    visible = torch.arange(block_table.shape[1]) * block_size < needed[:, None]
    outside = visible & ((block_table < 0) | (block_table >= num_blocks))
    if outside.any():
        raise IndexError(
            f"indexer_scores: block_table names page {int(block_table[outside][0])}, there are {num_blocks}"
        )
