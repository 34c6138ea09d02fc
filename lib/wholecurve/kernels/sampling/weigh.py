"""Weighing rows of logits in chunks, in Triton: the first step of sampling and of verification."""

import typing

import torch
import triton
import triton.language as tl

from wholecurve.kernels.launch import Launch
from wholecurve.kernels.sampling.device import LOG2_E, NEVER, kept, load_logits, scale_of, weights_of
from wholecurve.kernels.sampling.spec import plan


@triton.jit
def is_wanted(drafts, row, GROUP: tl.constexpr):
    """Whether a row is needed: of the GROUP rows of a request the first is, and one for each drafted token."""
    wanted = True
    if GROUP > 1:
        request, position = row // GROUP, row % GROUP
        token = tl.load(drafts + request * (GROUP - 1) + position - 1, mask=position > 0, other=0)
        wanted = token >= 0
    return wanted


@triton.jit
def weigh_kernel(
    logits,  # [rows, V]
    counts,  # [rows, V], any pointer without HAS_PENALTIES
    penalties,  # [rows, 3] fp32, any pointer without HAS_PENALTIES
    drafts,  # [rows / GROUP, GROUP − 1] int64, any pointer when GROUP is 1
    temperature,  # [rows / GROUP] fp32
    thresholds,  # [rows] fp32, any pointer without HAS_FILTER
    lasts,  # [rows] int32, any pointer without HAS_FILTER
    tops,  # [rows, chunks] fp32
    indexes,  # [rows, chunks] int32
    masses,  # [rows, chunks] fp32
    raw_tops,  # [rows, chunks] fp32, any pointer without HAS_LOGPROBS
    raw_masses,  # [rows, chunks] fp32, any pointer without HAS_LOGPROBS
    vocab,
    chunks,
    row_stride,
    count_stride,
    GROUP: tl.constexpr,
    HAS_PENALTIES: tl.constexpr,
    HAS_FILTER: tl.constexpr,
    HAS_LOGPROBS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program handles one chunk of one row: its best token and the sum of its weights, set against its best."""
    # 64 bits before the products: rows · V passes 2³¹
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    if not is_wanted(drafts, row, GROUP):
        return
    ids, raw, values = load_logits(
        logits, counts, penalties, row, chunk * CHUNK, vocab, row_stride, count_stride, HAS_PENALTIES, CHUNK
    )
    top = tl.max(values, axis=0)
    weights = weights_of(values, top, scale_of(tl.load(temperature + row // GROUP)))
    if HAS_FILTER:
        weights = tl.where(kept(values, ids, tl.load(thresholds + row), tl.load(lasts + row)), weights, 0.0)
    slot = row * chunks + chunk
    best = tl.min(tl.where((values == top) & (values > -float("inf")), ids, NEVER), axis=0)
    tl.store(tops + slot, top)
    tl.store(indexes + slot, best)
    tl.store(masses + slot, tl.sum(weights, axis=0))
    if HAS_LOGPROBS:
        raw_top = tl.max(raw, axis=0)
        tl.store(raw_tops + slot, raw_top)
        tl.store(raw_masses + slot, tl.sum(weights_of(raw, raw_top, LOG2_E), axis=0))


@triton.jit
def row_mass(tops, masses, row, top, scale, chunks, BLOCK_CHUNKS: tl.constexpr):
    """The sum of a row's weights set against its top, from the sums of its chunks."""
    lanes = tl.arange(0, BLOCK_CHUNKS)
    slots, inside = row * chunks + lanes, lanes < chunks
    shares = weights_of(tl.load(tops + slots, mask=inside, other=-float("inf")), top, scale)
    return tl.sum(tl.load(masses + slots, mask=inside, other=0.0) * shares, axis=0)


class Rows(typing.NamedTuple):
    """Rows of logits with what belongs to them. logits: [rows, V]. group: rows that share a request's parameters;
    drafts: [rows / group, group − 1] with −1 where a row is not needed, None for a group of 1. counts, penalties: as
    in `sampling`, for a group of 1.
    """

    logits: torch.Tensor
    temperature: torch.Tensor
    group: int = 1
    drafts: torch.Tensor | None = None
    counts: torch.Tensor | None = None
    penalties: torch.Tensor | None = None

    def plan(self, config):
        """What `spec.plan` says about these rows."""
        dtype = str(self.logits.dtype).removeprefix("torch.")
        return plan(self.logits.shape[1], dtype, self.penalties is not None, **(config or {}))

    def empty(self, *shape, dtype=torch.float32):
        """Memory with a place per row and whatever comes after."""
        return torch.empty((len(self.logits), *shape), dtype=dtype, device=self.logits.device)

    def launch(self, kernel, grid, tensors, numbers=(), *, tiles, names, **options):
        """A launch with the arguments that all kernels here begin with, then these; names: of the tile sizes that the
        kernel takes.
        """
        logits = self.logits
        leading = (logits, self.counts, self.penalties, self.drafts, self.temperature, *tensors)
        count_stride = 0 if self.counts is None else self.counts.stride(0)
        sizes = (logits.shape[1], tiles["CHUNKS"], logits.stride(0), count_stride, *numbers)
        options |= {name: tiles[name] for name in (*names, "num_warps")}
        options |= dict(GROUP=self.group, HAS_PENALTIES=self.penalties is not None)
        return Launch(kernel, grid, (*(logits if tensor is None else tensor for tensor in leading), *sizes), options)


def weigh_launch(rows, filtered, tiles, logprobs=False):
    """(launch, (tops, indexes, masses, raw tops, raw masses)) of `weigh_kernel`; filtered: () or a filter."""
    chunks = tiles["CHUNKS"]
    found = (rows.empty(chunks), rows.empty(chunks, dtype=torch.int32), rows.empty(chunks))
    found += (rows.empty(chunks), rows.empty(chunks)) if logprobs else (None, None)
    options = dict(HAS_FILTER=bool(filtered), HAS_LOGPROBS=logprobs)
    tensors = (*(filtered or (None, None)), *found)
    grid = (len(rows.logits), chunks)
    return rows.launch(weigh_kernel, grid, tensors, tiles=tiles, names=("CHUNK",), **options), found
