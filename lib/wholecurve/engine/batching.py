"""From sequences to the tensors of a ForwardBatch.

A step's numbers are gathered by numpy out of the groups' tables, whose rows grow as blocks are taken, and packed into
one buffer, so that a GPU gets them in one copy.
"""

from dataclasses import dataclass

import numpy as np
import torch

from wholecurve.engine.cache import CacheManager
from wholecurve.engine.scheduler import ScheduledStep
from wholecurve.engine.sequence import Sequence
from wholecurve.models.batch import ForwardBatch, GroupBatch


@dataclass
class StepInputs:
    """A step as the host knows it, with nothing in it that changes afterwards.

    arrays: token_ids, positions, logits_rows and context_lens of `ForwardBatch`; `pending_places` and `pending_rows`,
    the tokens that only the device knows: their places among the T, and the table rows of their sequences;
    `sampled_rows`, the table rows of the sequences that get a token; then block_table and slots of each group.
    """

    arrays: list[np.ndarray]
    cu_q: np.ndarray
    num_decodes: int
    decode_queries: int
    max_q: int
    sampled: list[tuple[Sequence, int]]  # sequences whose next tokens the logits decide, each with its number of drafts
    copies: list[tuple[int, int, int]]  # (group, source, target), to be made before the step runs

    def to_device(self, device: torch.device) -> tuple[ForwardBatch, torch.Tensor, torch.Tensor, torch.Tensor]:
        """(batch, pending places, pending rows, sampled rows) on `device`; the host does not wait."""
        if device.type == "cpu":
            tensors = [torch.from_numpy(array) for array in self.arrays]
        else:
            packed = torch.from_numpy(np.concatenate([array.ravel() for array in self.arrays])).pin_memory()
            parts = packed.to(device, non_blocking=True).split([array.size for array in self.arrays])
            tensors = [part.view(array.shape) for part, array in zip(parts, self.arrays, strict=True)]
        token_ids, positions, logits_rows, context_lens, pending_places, pending_rows, sampled_rows, *groups = tensors
        batch = ForwardBatch(
            token_ids=token_ids,
            positions=positions,
            logits_rows=logits_rows,
            cu_q=torch.from_numpy(self.cu_q),
            context_lens=context_lens,
            groups=[GroupBatch(table, slots) for table, slots in zip(groups[::2], groups[1::2], strict=True)],
            num_decodes=self.num_decodes,
            decode_queries=self.decode_queries,
            max_q=self.max_q,
        )
        return batch, pending_places, pending_rows, sampled_rows


class BatchBuilder:
    """Builds the inputs of steps from sequences and the tables of their cache groups."""

    def __init__(self, cache: CacheManager):
        self.cache = cache
        self._by_index = {group.index: group for group in cache.groups}
        self._paged = {group.index for group in cache.block_groups}

    def build(self, step: ScheduledStep) -> StepInputs:
        """The inputs of a step. Its sequences are as they were scheduled, not advanced yet."""
        num_decodes, entries, queries = order(step)
        rows = np.array([sequence.row for sequence, _ in entries])
        starts = np.array([sequence.num_computed for sequence, _ in entries])
        if num_decodes == len(entries) and queries == 1:  # what most steps are
            tokens = OneTokenEach(entries, rows)
            of_token, positions, ends, max_q = np.arange(num_decodes), starts, starts + 1, 1
            cu_q = np.arange(num_decodes + 1)
        else:
            tokens = StepTokens(entries)
            counts = np.array([count for _, count in entries])
            cu_q = np.concatenate([[0], counts.cumsum()])
            of_token, ends, max_q = np.repeat(np.arange(len(entries)), counts), starts + counts, int(counts.max())
            positions = np.arange(cu_q[-1]) + (starts - cu_q[:-1])[of_token]
        arrays = [tokens.token_ids, positions, tokens.logits_rows, ends]
        arrays += [tokens.pending_places, tokens.pending_rows, tokens.sampled_rows]
        for index, spec in enumerate(self.cache.specs):
            if index in self._paged:
                arrays += self._blocks(index, rows, of_token, positions, int(ends.max()))
            elif spec.kind == "state":
                arrays += self._states(index, rows, cu_q, step, entries)
            else:
                arrays += [history([sequence for sequence, _ in entries], spec.window), np.empty(0, dtype=np.int64)]
        copies, self.cache.copies = self.cache.copies, []
        return StepInputs(arrays, cu_q, num_decodes, queries, max_q, tokens.sampled, copies)

    def _blocks(self, index: int, rows, of_token, positions, longest: int) -> list[np.ndarray]:
        group = self._by_index[index]
        size = group.pool.block_size
        table = group.table[rows, : -(-longest // size)]
        return [table, table[of_token, positions // size] * size + positions % size]

    def _states(self, index: int, rows, cu_q, step: ScheduledStep, entries) -> list[np.ndarray]:
        """A chunk writes the state after its last token; a row with drafts the state after each, in slots in order."""
        table = self._by_index[index].table[rows]
        slots = np.full(cu_q[-1], -1, dtype=np.int64)
        slots[cu_q[1:] - 1] = table[:, 0]
        for place, (sequence, count) in enumerate(entries[: len(step.decodes)]):
            if sequence.drafts:
                slots[cu_q[place] : cu_q[place + 1]] = table[place, :count]
        return [table, slots]


class StepTokens:
    """Tokens of a step, and which rows give tokens; see `StepInputs` for the names."""

    def __init__(self, entries: list[tuple[Sequence, int]]):
        token_ids, places, pending_rows, sampled_rows, logits_rows = [], [], [], [], []
        self.sampled: list[tuple[Sequence, int]] = []
        for sequence, count in entries:
            start, known = sequence.num_computed, len(sequence.token_ids)
            if sequence.num_pending:
                places.append(len(token_ids))
                pending_rows.append(sequence.row)
                token_ids.append(0)
                known += 1
            else:
                token_ids += sequence.token_ids[start : start + count]
                token_ids += sequence.drafts[: max(0, start + count - known)]
            drafts = start + count - known
            if drafts >= 0:
                self.sampled.append((sequence, drafts))
                sampled_rows.append(sequence.row)
                logits_rows += range(len(token_ids) - 1 - drafts, len(token_ids))
        lists = (token_ids, logits_rows, places, pending_rows, sampled_rows)
        arrays = [np.array(values, dtype=np.int64) for values in lists]
        self.token_ids, self.logits_rows, self.pending_places, self.pending_rows, self.sampled_rows = arrays


class OneTokenEach:
    """The same for sequences that all decode without drafts, in a few calls."""

    def __init__(self, entries: list[tuple[Sequence, int]], rows: np.ndarray):
        self.sampled = [(sequence, 0) for sequence, _ in entries]
        self.token_ids = np.array([sequence.token_ids[-1] for sequence, _ in entries])
        self.pending_places = np.array([sequence.num_pending for sequence, _ in entries]).nonzero()[0]
        self.pending_rows = rows[self.pending_places]
        self.logits_rows, self.sampled_rows = np.arange(len(rows)), rows


def order(step: ScheduledStep) -> tuple[int, list[tuple[Sequence, int]], int]:
    """(number of decode rows, entries in the order of the batch, tokens of each decode row).

    Decode rows all have as many tokens; sequences that decode with another number of drafts come after them.
    """
    decodes = step.decodes
    if not decodes:
        return 0, step.prefills, 1
    counts = [count for _, count in decodes]
    queries = counts[0]
    if counts.count(queries) == len(counts):
        return len(decodes), decodes + step.prefills, queries
    queries = max(set(counts), key=lambda count: (counts.count(count), count))
    equal = [entry for entry in decodes if entry[1] == queries]
    others = [entry for entry in decodes if entry[1] != queries]
    return len(equal), equal + others + step.prefills, queries


def history(sequences: list[Sequence], length: int) -> np.ndarray:
    """[S, length] of the tokens before the first new one of each sequence, -1 where there are none."""
    table = np.full((len(sequences), length), -1, dtype=np.int64)
    for row, sequence in zip(table, sequences, strict=True):
        before = sequence.token_ids[max(0, sequence.num_computed - length) : sequence.num_computed]
        row[length - len(before) :] = before
    return table


def single_batch(
    token_ids: list[int],
    start: int,
    blocks: list[list[int]],
    block_sizes: list[int],
    device: torch.device,
    logits_rows: list[int] | None = None,
) -> ForwardBatch:
    """One sequence alone, outside an engine: a chunk of `token_ids` that begins at position `start`.

    blocks: per cache group (of kind full, window or latent) the blocks in order of position. A chunk of one token that
    has a context runs as a decode row. logits_rows: of the chunk, None for the last one.
    """
    count = len(token_ids)
    positions = np.arange(start, start + count)
    groups = []
    for table, block_size in zip(blocks, block_sizes, strict=True):
        row = np.asarray(table[: -(-(start + count) // block_size)], dtype=np.int64)
        slots = row[positions // block_size] * block_size + positions % block_size
        groups.append(GroupBatch(torch.from_numpy(row[None]).to(device), torch.from_numpy(slots).to(device)))
    rows = [count - 1] if logits_rows is None else logits_rows
    return ForwardBatch(
        token_ids=torch.tensor(token_ids, device=device),
        positions=torch.from_numpy(positions).to(device),
        logits_rows=torch.tensor(rows, dtype=torch.int64, device=device),
        cu_q=torch.tensor([0, count]),
        context_lens=torch.tensor([start + count], device=device),
        groups=groups,
        num_decodes=int(count == 1 and start > 0),
        max_q=count,
    )
