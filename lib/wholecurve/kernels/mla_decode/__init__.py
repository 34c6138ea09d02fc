"""Paged multi-head latent attention (MLA) decode, in the absorbed form: one cached vector per token for all heads."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.mla_decode.reference import mla_decode_reference

FORMS = ("reference", "triton", "interpret")


def form_for(device):
    """Name of the form that `mla_decode` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def mla_decode(
    q,
    latent_cache,
    block_table,
    context_lens,
    scale,
    form=None,
    *,
    value_dim,
    window=None,
    sinks=None,
    return_lse=False,
    latent_scale=None,
    indices=None,
):
    """softmax(scale · q Lᵀ) V over the cached latents L, whose first `value_dim` numbers are the values V.

    q: [B, H, width], or [B, Q, H, width] for the last Q tokens of each sequence (verification of drafts), where
    query i sees the first context_lens[b] − (Q − 1 − i) tokens. latent_cache: [num_blocks, block_size, width], the
    dtype of q, or float8_e4m3fn with a `latent_scale`. width is value_dim plus the rope part, which takes part in
    the scores alone (512 + 64 in DeepSeek-V2 to V3.2); with value_dim = width keys and values are the same vector
    (DeepSeek-V4). block_table: [B, max_blocks] int32 or int64; entries of no visible token may hold anything and are
    never dereferenced. context_lens: [B] int, cached tokens with the Q new ones among them.
    scale: for MLA 1 / sqrt(d_nope + d_rope) of the heads before absorption, not of the width.
    window: None, or how many tokens a query sees, its own included. sinks: None or [H], logits that join the
    denominator and have no value. latent_scale: [num_blocks, block_size] float32, multiplies the token's latent.
    indices: None, or [B, K] ([B, Q, K]) int32 or int64 positions in the sequence that a query attends to instead of
    all that it sees: −1 is padding, a position that the query does not see is skipped, and one that is listed twice
    counts twice.
    Returns [B, H, value_dim] ([B, Q, H, value_dim]) in the dtype of q; with `return_lse` also the natural logarithm
    of the denominators, sink included, float32 [B, H] ([B, Q, H]). A query that sees nothing gives 0, and the sink or
    −inf as its logarithm. The bits of a sequence's output do not depend on the rest of the batch.
    ValueError for shapes or dtypes outside this contract. On the CPU also for a context beyond the block table, and
    IndexError for a page outside the cache and for a listed position at or past the context.
    """
    require_shapes(q, latent_cache, block_table, context_lens, value_dim, window)
    require_options(q, latent_cache, sinks, latent_scale, indices)
    if q.device.type == "cpu":
        require_values(q, latent_cache, block_table, context_lens, window, indices)
    options = dict(value_dim=value_dim, window=window, sinks=sinks, return_lse=return_lse)
    options |= dict(latent_scale=latent_scale, indices=indices)
    chosen = forms.choose_form(form, q.device, FORMS)
    if chosen == "reference":
        return mla_decode_reference(q, latent_cache, block_table, context_lens, scale, **options)
    from wholecurve.kernels.mla_decode.kernel import mla_decode_triton

    interpreted = chosen == "interpret"
    return mla_decode_triton(q, latent_cache, block_table, context_lens, scale, interpreted=interpreted, **options)


def require_shapes(q, latent_cache, block_table, context_lens, value_dim, window):
    """ValueError for shapes that do not fit each other."""
    forms.require(
        q.dim() in (3, 4) and 0 not in q.shape[1:],
        f"mla_decode: q must be [sequences, heads, width] or [sequences, queries, heads, width], it is {list(q.shape)}",
    )
    num_sequences, width = q.shape[0], q.shape[-1]
    forms.require(
        latent_cache.dim() == 3 and latent_cache.shape[2] == width,
        f"mla_decode: latent_cache must be [blocks, block size, {width}], it is {list(latent_cache.shape)}",
    )
    forms.require(
        0 < value_dim <= width, f"mla_decode: value_dim must be 1 to {width}, the width of q, it is {value_dim}"
    )
    forms.require(
        block_table.dim() == 2 and block_table.shape[0] == num_sequences and context_lens.shape == (num_sequences,),
        f"mla_decode: block_table {list(block_table.shape)} and context_lens {list(context_lens.shape)} do not fit "
        f"{num_sequences} sequences",
    )
    forms.require(window is None or window >= 1, f"mla_decode: window must be None or at least 1, it is {window}")


def require_options(q, latent_cache, sinks, latent_scale, indices):
    """ValueError for dtypes, and for shapes of the options that are given."""
    is_fp8 = latent_cache.dtype == torch.float8_e4m3fn
    forms.require(
        q.dtype == latent_cache.dtype or is_fp8,
        f"mla_decode: latent_cache is {latent_cache.dtype}, it must be {q.dtype} as q or torch.float8_e4m3fn",
    )
    forms.require(
        is_fp8 == (latent_scale is not None),
        f"mla_decode: latent_scale goes with a cache in torch.float8_e4m3fn, this one is {latent_cache.dtype}",
    )
    for name, tensor, shape in (
        ("latent_scale", latent_scale, latent_cache.shape[:2]),
        ("sinks", sinks, q.shape[-2:-1]),
    ):
        forms.require(
            tensor is None or tensor.shape == shape,
            f"mla_decode: {name} must be {list(shape)}, it is {None if tensor is None else list(tensor.shape)}",
        )
    if indices is not None:
        forms.require(
            indices.dim() == q.dim() - 1 and indices.shape[:-1] == q.shape[:-2],
            f"mla_decode: indices must be {[*q.shape[:-2], 'positions']}, they are {list(indices.shape)}",
        )
        forms.require(
            indices.dtype in (torch.int32, torch.int64),
            f"mla_decode: indices must be torch.int32 or torch.int64, they are {indices.dtype}",
        )


def require_values(q, latent_cache, block_table, context_lens, window, indices):
    """ValueError or IndexError for lengths, pages and positions that name no memory."""
    num_queries = q.shape[1] if q.dim() == 4 else 1
    num_blocks, block_size = latent_cache.shape[:2]
    capacity = block_table.shape[1] * block_size
    longest = int(context_lens.max()) if len(context_lens) else 0
    forms.require(
        longest <= capacity, f"mla_decode: a context has {longest} tokens but a row of block_table names {capacity}"
    )
    contexts = context_lens.long()[:, None]
    positions = torch.arange(capacity, device=q.device).expand(len(context_lens), -1)
    if indices is not None:
        positions = indices.flatten(1).long()
        if (positions >= contexts).any():
            raise IndexError("mla_decode: indices name a position at or past the context of its sequence")
    lowest = 0 if window is None else contexts - num_queries + 1 - window
    visible = (positions >= 0) & (positions >= lowest) & (positions < contexts)
    pages = block_table.long().gather(1, (positions // block_size).where(visible, 0)) if capacity else positions
    outside = visible & ((pages < 0) | (pages >= num_blocks))
    if outside.any():
        raise IndexError(f"mla_decode: block_table names page {int(pages[outside][0])}, there are {num_blocks}")
