"""What the next step computes: one token budget for decode rows and prefill chunks."""

from collections import deque
from dataclasses import dataclass

from wholecurve.engine.cache import BlockPool
from wholecurve.engine.sequence import Sequence
from wholecurve.errors import UserError


@dataclass
class ScheduledStep:
    """The work of one step. Every chunk is (sequence, number of its next tokens to compute)."""

    decodes: list[Sequence]
    prefills: list[tuple[Sequence, int]]

    @property
    def is_empty(self) -> bool:
        return not self.decodes and not self.prefills


class Scheduler:
    """First come, first served. Decode rows go first, then chunks of prompts fill what is left of the budget.

    A sequence is admitted when the blocks for its longest possible length are free, so a running sequence never runs
    out of cache; `max_batch_tokens` bounds the tokens of a step, `max_sequences` the sequences that run at once.
    """

    def __init__(self, pool: BlockPool, max_batch_tokens: int, max_sequences: int):
        if max_batch_tokens < 1 or max_sequences < 1:
            raise UserError("max_batch_tokens and max_sequences must be at least 1")
        self.pool = pool
        self.max_batch_tokens, self.max_sequences = max_batch_tokens, max_sequences
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; UserError when it could never fit, so that nothing waits for ever."""
        needed = self.pool.blocks_for(sequence.max_tokens)
        if needed > self.pool.num_blocks:
            raise UserError(
                f"request {sequence.request_id}: prompt {len(sequence.prompt_ids)} + max_new_tokens "
                f"{sequence.params.max_new_tokens} tokens need {needed} cache blocks, "
                f"the cache has {self.pool.num_blocks}"
            )
        self.waiting.append(sequence)

    def _admit(self) -> bool:
        if not self.waiting or len(self.running) >= self.max_sequences:
            return False
        needed = self.pool.blocks_for(self.waiting[0].max_tokens)
        if needed > self.pool.num_free:
            return False
        sequence = self.waiting.popleft()
        sequence.blocks = self.pool.take(needed)
        self.running.append(sequence)
        return True

    def schedule(self) -> ScheduledStep:
        """Choose the tokens of the next step; nothing is marked as computed yet."""
        decodes = [s for s in self.running if s.is_decoding][: self.max_batch_tokens]
        budget = self.max_batch_tokens - len(decodes)
        prefills = []
        pending = [s for s in self.running if not s.is_decoding]
        while budget > 0:
            if not pending:
                if not self._admit():
                    break
                pending = [self.running[-1]]
            sequence = pending.pop(0)
            chunk = min(budget, sequence.num_uncomputed)
            prefills.append((sequence, chunk))
            budget -= chunk
        return ScheduledStep(decodes, prefills)

    def remove(self, sequence: Sequence) -> None:
        """Take a finished or aborted sequence out and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.pool.give_back(sequence.blocks)
            sequence.blocks = []
        else:
            self.waiting.remove(sequence)

    def check_integrity(self) -> None:
        """Invariants that hold between steps; raises AssertionError."""
        self.pool.check_integrity([s.blocks for s in self.running])
        assert all(not s.blocks for s in self.waiting), "a waiting sequence owns blocks"
        for s in self.running:
            assert 0 <= s.num_computed < len(s.token_ids), f"{s.request_id}: nothing left to compute, yet running"
            assert s.num_computed <= len(s.blocks) * self.pool.block_size, f"{s.request_id}: more tokens than blocks"
            assert s.finish_reason is None, f"{s.request_id}: finished, yet running"
