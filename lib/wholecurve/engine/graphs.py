"""Decode steps as CUDA graphs over padded numbers of sequences, behind the face of a model.

A decode step of a small batch launches hundreds of kernels that each run for microseconds; replaying them as one graph
leaves the host out of it. A graph has fixed shapes and addresses, so a batch is copied into static buffers of the next
larger size, and the rows that are left over are padding: their slot is −1, which stores nothing, and their context is
0, which attends to nothing.
"""

from bisect import bisect_left
from contextlib import nullcontext

import torch

from wholecurve.engine.replay import no_synchronisation, replay_for
from wholecurve.errors import UserError
from wholecurve.models.batch import CacheSpec, ForwardBatch, GroupBatch

SMALLEST_WIDTH = 64  # blocks of the narrowest block table; wider ones double
PAGED = ("full", "window", "latent")  # kinds whose block table grows with the context


def graph_sizes(max_sequences: int) -> list[int]:
    """Padded numbers of sequences: 1, 2, 4, then multiples of 8, up to the first that holds `max_sequences`."""
    if max_sequences < 1:
        raise UserError(f"max_sequences is {max_sequences}; a graph needs at least 1 sequence")
    sizes = [1, 2, 4, *range(8, max_sequences + 8, 8)]
    return sizes[: bisect_left(sizes, max_sequences) + 1]


def padded_width(spec: CacheSpec, width: int) -> int:
    """Width of the static block table for a batch whose own is `width`.

    Attention starts programs for the whole width, so one as wide as the longest context that is allowed would cost
    every short step; doubling widths keep that, and the number of graphs, small.
    """
    if spec.kind not in PAGED:
        return width
    padded = SMALLEST_WIDTH
    while padded < width:
        padded *= 2
    return padded


class StaticBatch:
    """The buffers of a decode step of `sequences` sequences with `queries` tokens each; new ones are all padding.

    widths: of the block table of each cache group.
    """

    def __init__(self, sequences: int, queries: int, widths: tuple[int, ...], device: torch.device):
        tokens = sequences * queries

        def whole(*shape: int, value: int = 0) -> torch.Tensor:
            return torch.full(shape, value, dtype=torch.int64, device=device)

        self.sequences, self.queries, self.filled = sequences, queries, 0
        self.token_ids, self.positions, self.logits_rows = whole(tokens), whole(tokens), whole(tokens)
        self.context_lens = whole(sequences)
        self.groups = [GroupBatch(whole(sequences, width, value=-1), whole(tokens, value=-1)) for width in widths]
        self.cu_q = torch.arange(sequences + 1) * queries  # on the host

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Every buffer on the device."""
        of_groups = [tensor for group in self.groups for tensor in (group.block_table, group.slots)]
        return [self.token_ids, self.positions, self.logits_rows, self.context_lens, *of_groups]

    def forward_batch(self) -> ForwardBatch:
        """A batch of all rows over these buffers, with plans of its own."""
        return ForwardBatch(
            token_ids=self.token_ids,
            positions=self.positions,
            logits_rows=self.logits_rows,
            cu_q=self.cu_q,
            context_lens=self.context_lens,
            groups=self.groups,
            num_decodes=self.sequences,
            decode_queries=self.queries,
            max_q=self.queries,
        )

    def fill(self, batch: ForwardBatch) -> None:
        """Copy a batch into the first rows; rows that the former batch used beyond it become padding again.

        Only copies: nothing is allocated, and tensors of `batch` on the device (or in pinned memory) are not waited
        for. Entries of a block table past its own width may stay from before: no context reaches them.
        """
        sequences, tokens, rows = len(batch.context_lens), len(batch.token_ids), len(batch.logits_rows)
        for target, source in (
            (self.token_ids[:tokens], batch.token_ids),
            (self.positions[:tokens], batch.positions),
            (self.logits_rows[:rows], batch.logits_rows),
            (self.context_lens[:sequences], batch.context_lens),
        ):
            target.copy_(source, non_blocking=True)
        for group, given in zip(self.groups, batch.groups, strict=True):
            group.block_table[:sequences, : given.block_table.shape[1]].copy_(given.block_table, non_blocking=True)
            if len(given.slots):
                group.slots[:tokens].copy_(given.slots, non_blocking=True)
        if sequences < self.filled:
            self._pad(sequences, self.filled)
        self.filled = sequences

    def _pad(self, start: int, end: int) -> None:
        """Sequences start … end − 1 store nothing and attend to nothing."""
        first, last = start * self.queries, end * self.queries
        self.context_lens[start:end].zero_()
        for tensor in (self.token_ids, self.positions, self.logits_rows):
            tensor[first:last].zero_()
        for group in self.groups:
            group.block_table[start:end].fill_(-1)
            group.slots[first:last].fill_(-1)


class CapturedStep:
    """One padded decode step: its buffers, and the model and the argmax over them, ready to be replayed."""

    def __init__(self, model, caches: list, static: StaticBatch, pool=None):
        self.static = static

        @torch.inference_mode()
        def work() -> tuple[torch.Tensor, torch.Tensor]:
            logits = model(static.forward_batch(), caches)
            return logits, logits.argmax(dim=-1)  # the lowest id of equal ones, on a CPU and on a GPU

        self._replay = replay_for(model.device, work, pool)

    @torch.inference_mode()
    def run(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits [R, V], their argmax [R]) of a batch; both stay what they are until the next run."""
        self.static.fill(batch)
        logits, tokens = self._replay.replay()
        rows = len(batch.logits_rows)
        return logits[:rows], tokens[:rows]


class GraphedModel:
    """A model whose decode steps are replayed: call it like the model itself, `graphed(batch, caches) -> logits`.

    A batch without chunks and with at most `max_sequences` sequences runs in the smallest graph that holds it, and
    its `argmax` is set; every other batch runs in the model. Graphs are captured when a size is first met, for the
    caches of the first call (an engine has one set), and share their memory: logits and argmax of a step must be used,
    or copied, before the next one starts. On a CPU the same buffers are used without a graph.
    debug: on a GPU, fail where a replayed step would make the host wait.
    """

    def __init__(self, model, max_sequences: int = 64, debug: bool = False):
        self.model, self.debug = model, debug
        self.sizes = graph_sizes(max_sequences)
        self.steps: dict[tuple, CapturedStep] = {}
        self.num_replayed = 0
        self._caches = None
        self._pool = torch.cuda.graph_pool_handle() if torch.device(model.device).type == "cuda" else None

    def __getattr__(self, name: str):
        if name == "model":  # while it is copied or unpickled, before there is a model
            raise AttributeError(name)
        return getattr(self.model, name)

    def holds(self, batch: ForwardBatch) -> bool:
        """Whether a graph can run this batch."""
        return 0 < len(batch.context_lens) == batch.num_decodes <= self.sizes[-1]

    def __call__(self, batch: ForwardBatch, caches: list) -> torch.Tensor:
        if not self.holds(batch):
            return self.model(batch, caches)
        step = self._step(batch, caches)
        with no_synchronisation(self.model.device) if self.debug else nullcontext():
            logits, batch.argmax = step.run(batch)
        self.num_replayed += 1
        return logits

    def _step(self, batch: ForwardBatch, caches: list) -> CapturedStep:
        """The captured step for a batch, captured now where there is none."""
        if self._caches is None:
            self._caches = list(caches)
        if any(bound is not given for bound, given in zip(self._caches, caches, strict=True)):
            raise ValueError("GraphedModel: its graphs hold the caches of the first call; these are others")
        size = self.sizes[bisect_left(self.sizes, len(batch.context_lens))]
        widths = tuple(
            padded_width(spec, group.block_table.shape[1])
            for spec, group in zip(self.model.cache_specs, batch.groups, strict=True)
        )
        key = (size, batch.decode_queries, widths)
        if key not in self.steps:
            static = StaticBatch(size, batch.decode_queries, widths, self.model.device)
            self.steps[key] = CapturedStep(self.model, self._caches, static, self._pool)
        return self.steps[key]
