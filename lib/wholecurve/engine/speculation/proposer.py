"""What the engine asks of speculation."""

from typing import Protocol

import torch

from wholecurve.engine.sampling import SamplingParams
from wholecurve.engine.sequence import Sequence


class Proposer(Protocol):
    """Guesses the next tokens of sequences that decode. The engine verifies what it schedules of them."""

    max_drafts: int

    def propose(self, sequences: list[Sequence], limits: list[int]) -> list[list[int]]:
        """Drafts that follow `token_ids` of each sequence, at most its limit (0 or more) and at most `max_drafts`."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence is finished, aborted or preempted: give back all that is kept for it. Unknown ones are fine."""
        ...


class Judge(Proposer, Protocol):
    """A proposer that also decides which drafts stay; the engine then does not sample."""

    def check_request(self, request_id: str, params: SamplingParams) -> None:
        """UserError for a request that cannot be judged."""
        ...

    def judge(self, sequences: list[Sequence], drafts: list[list[int]], logits: torch.Tensor) -> list[list[int]]:
        """Per sequence its tokens: drafts that stay and one more. logits: [R, V], 1 + drafts rows per sequence."""
        ...
