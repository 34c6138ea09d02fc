"""A cache that is filled without prefill: random keys and values in the blocks of many sequences."""

import contextlib

import torch

from wholecurve.errors import UserError
from wholecurve.models.batch import ForwardBatch, GroupBatch

POOL_ELEMENTS = 2**22  # random numbers that are repeated through the cache; drawing all of them would take minutes
POOL_SHIFT = 4099  # between the beginnings of two tensors, so that no two layers hold the same
PROBE_PER_TOKEN, PROBE_MOST = 8.0, 3e4  # what is added to a cached value; float16 ends at 65,504


class WrongCache(UserError):
    """A step did not run on the cached tokens that it was to run on; its time says nothing."""


class FilledContext:
    """Caches of `requests` sequences with `cached` tokens each and room for `new` more.

    `contexts` different contexts: as many as requests (each has its own keys and values), or fewer, which requests
    then share in turns through the block tables, as with a shared prompt. Blocks are dealt out in random order. Stored
    are normal random numbers; blocks without a cached token are full of NaN, so that a step that reads what nobody
    wrote shows.
    """

    def __init__(self, model, requests: int, cached: int, new: int, *, contexts: int, block_size: int, seed: int = 0):
        check_specs(model)
        self.requests, self.cached, self.new = requests, cached, new
        self.contexts, self.block_size = contexts, block_size
        self.device = torch.device(model.device)
        self.num_blocks = blocks_needed(requests, cached, new, contexts, block_size)
        generator = torch.Generator().manual_seed(seed)
        self.table = self._deal_blocks(generator)  # [requests, W], on the host
        (spec,) = model.cache_specs
        self.caches = [spec.allocate(self.num_blocks, block_size, model.dtype, self.device)]
        self.keys, self.values = paged_tensors(self.caches[0])
        # of every slot of the cache, whether a cached token lies there
        self.is_filled = torch.zeros(self.num_blocks * block_size, dtype=torch.bool)
        self.is_filled[self.slots(torch.arange(requests), torch.arange(cached))] = True
        self._fill(generator)

    def _deal_blocks(self, generator: torch.Generator) -> torch.Tensor:
        shared = self.cached // self.block_size  # whole blocks of a context; the rest is each request's own
        width = -(-(self.cached + self.new) // self.block_size)
        blocks = torch.randperm(self.num_blocks, generator=generator)
        of_contexts = blocks[: self.contexts * shared].view(self.contexts, shared)
        own = blocks[self.contexts * shared :].view(self.requests, width - shared)
        return torch.cat([of_contexts[torch.arange(self.requests) % self.contexts], own], dim=1)

    def _fill(self, generator: torch.Generator) -> None:
        tensors = [*self.keys, *self.values]
        pool = torch.randn(POOL_ELEMENTS + POOL_SHIFT * len(tensors), generator=generator)
        pool = pool.to(tensors[0].dtype).to(self.device)
        of_blocks = self.is_filled.view(self.num_blocks, self.block_size)
        empty = (~of_blocks.any(dim=1)).nonzero().flatten().to(self.device)
        for index, tensor in enumerate(tensors):
            flat, numbers = tensor.view(-1), pool[POOL_SHIFT * index :][:POOL_ELEMENTS]
            for start in range(0, len(flat), POOL_ELEMENTS):
                part = flat[start : start + POOL_ELEMENTS]
                part.copy_(numbers[: len(part)])
            tensor.index_fill_(0, empty, torch.nan)

    def slots(self, requests: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Cache slots [len(requests), len(positions)] of these positions, on the host."""
        blocks = self.table[requests][:, positions // self.block_size]
        return blocks * self.block_size + positions % self.block_size

    def group(self, requests: int, new: list[int]) -> GroupBatch:
        """What a batch of the first `requests` sequences, with so many new tokens each, says of this cache group."""
        width = -(-(self.cached + max(new)) // self.block_size)
        slots = [
            self.slots(torch.tensor([request]), self.cached + torch.arange(count)).flatten()
            for request, count in enumerate(new)
        ]
        table = self.table[:requests, :width].contiguous()
        return GroupBatch(table.to(self.device), torch.cat(slots).to(self.device))

    def require_cached(self, batch: ForwardBatch) -> int:
        """The number of cached tokens of every sequence, counted from the batch itself.

        WrongCache where sequences differ, where a token before the new ones is not a cached one, or where it would be
        overwritten by the step.
        """
        table, written = batch.groups[0].block_table.cpu(), batch.groups[0].slots.cpu()
        is_cached = self.is_filled.clone()
        is_cached[written] = False
        counts = set()
        for sequence, context in enumerate(batch.context_lens.tolist()):
            first, last = batch.cu_q[sequence : sequence + 2].tolist()
            positions = torch.arange(context - (last - first))
            slots = table[sequence, positions // self.block_size] * self.block_size + positions % self.block_size
            counts.add(int(is_cached[slots].sum()))
            if batch.positions[first].item() != len(positions) or counts != {len(positions)}:
                raise WrongCache(
                    f"sequence {sequence}: {sorted(counts)} of {len(positions)} tokens before the new ones are cached, "
                    f"and the first new one has position {batch.positions[first].item()}"
                )
        if counts != {self.cached}:
            raise WrongCache(f"sequences have {sorted(counts)} cached tokens; {self.cached} were to be cached")
        return self.cached

    @contextlib.contextmanager
    def changed_values(self, requests: int):
        """Inside the block the values in the first block of each of these sequences are others, in every layer.

        By as much as shows in the logits although the weight of a token among the cached ones is about 1 / cached.
        """
        blocks = self.table[:requests, 0].unique().to(self.device)
        kept = [values[blocks] for values in self.values]
        amount = min(PROBE_PER_TOKEN * self.cached, PROBE_MOST)
        for values in self.values:
            values[blocks] += amount
        try:
            yield
        finally:
            for values, former in zip(self.values, kept, strict=True):
                values[blocks] = former


def blocks_needed(requests: int, cached: int, new: int, contexts: int, block_size: int) -> int:
    """Blocks of a FilledContext."""
    shared, width = cached // block_size, -(-(cached + new) // block_size)
    return contexts * shared + requests * (width - shared)


def check_specs(model) -> None:
    """UserError for a model whose cache is not one group of keys and values of all tokens."""
    kinds = [spec.kind for spec in model.cache_specs]
    if kinds != ["full"]:
        raise UserError(f"a step study fills one cache group of kind 'full'; this model has {', '.join(kinds)}")


def paged_tensors(cache) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(keys, values) of a cache, per layer one tensor [num_blocks, …]; UserError for a cache without such lists."""
    keys, values = getattr(cache, "keys", None), getattr(cache, "values", None)
    if not isinstance(keys, list) or not isinstance(values, list):
        raise UserError(f"a {type(cache).__name__} cannot be filled: it has no lists of keys and values per layer")
    return keys, values
