"""What the next step computes: one token budget for decode rows and prefill chunks."""

from bisect import insort
from dataclasses import dataclass, field

from wholecurve.engine.cache import CacheManager
from wholecurve.engine.sequence import Sequence
from wholecurve.errors import UserError

# A request of the next higher priority number goes as if it had come so many steps later.
AGEING_STEPS = 256


def rank_of(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank


@dataclass
class ScheduledStep:
    """The work of one step. Every entry is (sequence, number of its next tokens to compute)."""

    decodes: list[tuple[Sequence, int]]  # 1 + drafts
    prefills: list[tuple[Sequence, int]]
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.decodes and not self.prefills


class Scheduler:
    """Decode rows go first, then chunks of prompts fill what is left of `max_batch_tokens`.

    Sequences are ranked once, when they come: by priority · AGEING_STEPS + step of arrival, then in order of arrival.
    So a lower priority number goes first, but only before those that have not waited AGEING_STEPS steps longer for each
    step of priority: whoever waits long enough is the first, and nobody starves. A preempted sequence keeps its rank.

    Waiting sequences are let in by rank, none past another, when the cache has room for the tokens they have (see
    `CacheManager.admit`), at most `max_sequences` at once. Blocks are taken as tokens come. When there are none for a
    sequence that decodes, the running sequence of the last rank gives up all of its own and waits again; what it has
    sampled stays, and is computed again with its prompt. The first in rank is never set back unless it is alone, and
    alone it always has room, since `add` refuses what does not fit: so every step that has work makes progress.
    """

    def __init__(self, cache: CacheManager, max_batch_tokens: int, max_sequences: int):
        if max_batch_tokens < 1 or max_sequences < 1:
            raise UserError(
                f"max_batch_tokens is {max_batch_tokens}, max_sequences {max_sequences}; both must be at least 1"
            )
        self.cache, self.max_batch_tokens, self.max_sequences = cache, max_batch_tokens, max_sequences
        self.waiting: list[Sequence] = []  # both by rank
        self.running: list[Sequence] = []
        self.num_steps = self.num_preemptions = self.num_arrivals = self.num_prompt_tokens = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; UserError when it could never fit, so that nothing waits for ever."""
        if refusal := self.cache.refusal(sequence.max_stored):
            raise UserError(
                f"request {sequence.request_id}: prompt {len(sequence.prompt_ids)} + max_new_tokens "
                f"{sequence.params.max_new_tokens} tokens {refusal}"
            )
        sequence.arrival = self.num_arrivals
        self.num_arrivals += 1
        sequence.rank = (sequence.priority * AGEING_STEPS + self.num_steps, sequence.arrival)
        insort(self.waiting, sequence, key=rank_of)

    def schedule(self) -> ScheduledStep:
        """Choose the tokens of the next step and give them blocks; `advance` marks them as computed."""
        step, cache = ScheduledStep([], []), self.cache
        decoding, chunked = [], []
        for sequence in self.running:
            computed, length = sequence.num_computed, len(sequence.token_ids) + sequence.num_pending
            if computed >= sequence.next_boundary:
                cache.register(sequence)
            if length - computed != 1 or computed < sequence.num_prompt:
                chunked.append(sequence)
            elif length < sequence.max_length:  # else what is on its way is its last token
                decoding.append(sequence)
        budget = self._schedule_decodes(step, decoding) if decoding else self.max_batch_tokens
        for sequence in chunked:
            if budget and sequence.row >= 0 and sequence.num_uncomputed:
                budget -= self._schedule_chunk(step, sequence, budget)
        while budget and self.waiting and not step.preempted and len(self.running) < self.max_sequences:
            sequence = self.waiting[0]
            if not cache.admit(sequence, self.running):
                break
            del self.waiting[0]
            insort(self.running, sequence, key=rank_of)
            if not sequence.num_preemptions:
                self.num_prompt_tokens += len(sequence.prompt_ids)
            budget -= self._schedule_chunk(step, sequence, budget)
        if not step.is_empty:
            self.num_steps += 1
        return step

    def advance(self, step: ScheduledStep, sampled: list[tuple[Sequence, int]]) -> None:
        """Mark the tokens of a step that is about to run as computed, and those that it samples as on their way."""
        for entries in (step.decodes, step.prefills):
            for sequence, count in entries:
                sequence.num_computed += count
        for sequence, _ in sampled:
            sequence.num_pending += 1

    def _schedule_decodes(self, step: ScheduledStep, decoding: list[Sequence]) -> int:
        """A row for each, by rank, with as many of its drafts as there is room for. Returns the budget left."""
        budget, cache, decodes = self.max_batch_tokens, self.cache, step.decodes
        for place, sequence in enumerate(decoding):
            count = 1
            if sequence.drafts:
                spare = budget - (len(decoding) - place)  # those still to come need a token each
                del sequence.drafts[max(0, spare) :]
                count = max(1, cache.allocatable(sequence, 1 + len(sequence.drafts)))
                del sequence.drafts[count - 1 :]
            if sequence.num_computed + count > sequence.capacity:
                if sequence.row < 0:  # it gave way to one before it
                    continue
                if not cache.allocate(sequence, count) and not self._make_room(step, sequence):
                    continue
            decodes.append((sequence, count))
            budget -= count
        return budget

    def _make_room(self, step: ScheduledStep, sequence: Sequence) -> bool:
        """Blocks for one more token at the cost of the last in rank; False when that is the sequence itself."""
        while True:
            victim = self.running[-1]
            self._preempt(victim)
            step.preempted.append(victim)
            if victim is sequence:
                return False
            if self.cache.allocate(sequence, 1):
                return True

    def _schedule_chunk(self, step: ScheduledStep, sequence: Sequence, budget: int) -> int:
        """A chunk of a prompt, or of what a preempted sequence computes again. Returns its tokens, 0 for none."""
        wanted = min(budget, sequence.num_uncomputed)
        count = self.cache.allocatable(sequence, wanted)
        if count:
            count = self.cache.cut(sequence, count)
            self.cache.allocate(sequence, count)
        elif not step.is_empty or not self._make_room(step, sequence):
            return 0  # others go on, and leave blocks when they finish
        else:
            count = 1
        step.prefills.append((sequence, count))
        return count

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.cache.free(sequence)
        self._set_back(sequence)
        sequence.num_preemptions += 1
        self.num_preemptions += 1

    def _set_back(self, sequence: Sequence) -> None:
        sequence.num_computed, sequence.drafts = 0, []
        insort(self.waiting, sequence, key=rank_of)

    def reset(self) -> None:
        """After a step that failed: nothing that running sequences have computed counts; they wait to run again."""
        for sequence in self.running:
            self.cache.free(sequence)
            self._set_back(sequence)
        self.running.clear()
        for sequence in self.waiting:
            sequence.num_pending = 0
        self.cache.forget_prefixes()

    def remove(self, sequence: Sequence) -> None:
        """Take a finished or aborted sequence out and free its blocks."""
        if sequence.row >= 0:
            self.running.remove(sequence)
            self.cache.free(sequence)
        else:
            self.waiting.remove(sequence)

    def check_integrity(self) -> None:
        """Invariants that hold between steps; raises AssertionError."""
        self.cache.check_integrity(self.running)
        for queue in (self.running, self.waiting):
            assert queue == sorted(queue, key=rank_of), "sequences out of rank"
        for s in self.waiting:
            assert s.row < 0 and not s.blocks and s.prefix_node is None, f"{s.request_id}: waits, yet owns blocks"
            assert not s.num_computed and not s.drafts, f"{s.request_id}: waits, yet something is computed"
        assert len(self.running) <= self.max_sequences, "too many sequences run"
        for s in self.running:
            assert s.num_computed >= 0 < s.num_uncomputed, f"{s.request_id}: nothing left to compute, yet running"
        for s in [*self.running, *self.waiting]:
            assert s.finish_reason is None, f"{s.request_id}: finished, yet here"
