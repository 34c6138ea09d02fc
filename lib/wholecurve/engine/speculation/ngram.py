"""Prompt lookup: a sequence's own tokens foretell what follows.

Saxena 2023, "Prompt lookup decoding", https://github.com/apoorvumang/prompt-lookup-decoding.
"""

from dataclasses import dataclass, field

from wholecurve.engine.sequence import Sequence
from wholecurve.errors import UserError


@dataclass
class RunIndex:
    """Where each run of `min_match` … `max_match` tokens of one sequence was last seen.

    Every token is entered once, so a step costs what it adds, however long the context is.
    """

    sequence: Sequence
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)  # run -> position after its last token
    length: int = 0  # runs that end at or before it are entered

    def enter(self, length: int, min_match: int, max_match: int) -> None:
        """Enter the runs that end at or before `length`; a later one takes the place of an earlier one."""
        for run in range(min_match, max_match + 1):
            first = max(self.length + 1, run)
            part = self.sequence.token_ids[first - run : length]
            runs = zip(*(part[offset:] for offset in range(run)))
            self.ends.update(zip(runs, range(first, length + 1)))
        self.length = length


class NgramProposer:
    """Finds the longest suffix of `max_match` … `min_match` tokens that occurs earlier in prompt and output, takes its
    most recent occurrence, and proposes the up to `max_drafts` tokens that follow there.

    Where the occurrence overlaps the end, what follows it goes on with the proposal itself, as a copy in LZ77 does: a
    text that repeats a period of two tokens gets as many drafts as any other.
    """

    def __init__(self, max_drafts: int, min_match: int = 2, max_match: int = 4):
        if max_drafts < 1:
            raise UserError(f"n-gram speculation with {max_drafts} drafts; it must be at least 1")
        if not 1 <= min_match <= max_match:
            raise UserError(f"n-gram speculation matches {min_match} to {max_match} tokens; 1 ≤ least ≤ most must hold")
        self.max_drafts, self.min_match, self.max_match = max_drafts, min_match, max_match
        self._indices: dict[str, RunIndex] = {}

    def propose(self, sequences: list[Sequence], limits: list[int]) -> list[list[int]]:
        """Drafts of each sequence, at most its limit; none where nothing matches."""
        return [self._drafts(sequence, min(limit, self.max_drafts)) for sequence, limit in zip(sequences, limits)]

    def forget(self, sequence: Sequence) -> None:
        """Drop the index of a sequence that has left the running ones. One that comes back is indexed anew."""
        self._indices.pop(sequence.request_id, None)

    def _drafts(self, sequence: Sequence, limit: int) -> list[int]:
        if limit < 1:
            return []
        tokens = sequence.token_ids
        index = self._indices.get(sequence.request_id)
        if index is None or index.sequence is not sequence:
            index = self._indices[sequence.request_id] = RunIndex(sequence)
        # runs that end with the last token are entered later: the suffix must not find itself
        index.enter(len(tokens) - 1, self.min_match, self.max_match)
        for run in range(min(self.max_match, len(tokens) - 1), self.min_match - 1, -1):
            if found := index.ends.get(tuple(tokens[-run:])):
                drafts = tokens[found : found + limit]
                while len(drafts) < limit:
                    drafts.append(drafts[found + len(drafts) - len(tokens)])
                return drafts
        return []
