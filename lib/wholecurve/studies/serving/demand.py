"""What the points of a plan ask of a server: requests at once, the longest of them, and cache for all of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from wholecurve.studies.serving.load.turns import Session

# Requests of an open load that a server may run at once, where the plan does not say.
OPEN_SEQUENCES = 64
# Beyond a request's own tokens: whole blocks of any server's cache, and what a chat template may add.
_SPARE_TOKENS = 64
_LEAST_CACHE_TOKENS = 4096


@dataclass(frozen=True)
class Demand:
    """``sequences`` requests in flight, the longest of ``sequence_tokens``; ``cache_tokens`` hold all at their
    longest."""

    sequences: int
    sequence_tokens: int
    cache_tokens: int


def longest_tokens(sessions: Sequence[Session]) -> int:
    """Prompt and output of the longest turn; texts are taken at three characters to a token."""
    return max(_prompt_tokens(turn.prompt) + turn.output_tokens for session in sessions for turn in session.turns)


def beside_each_other(session: Session) -> int:
    """The most turns of a session that can be in flight at once: those that wait for the same ones before them."""
    return max(Counter(turn.after for turn in session.turns).values())


def demand(sessions_in_flight: int, sessions: Sequence[Session]) -> Demand:
    """What so many of these sessions ask for together."""
    sequences = sessions_in_flight * max(map(beside_each_other, sessions))
    longest = longest_tokens(sessions) + _SPARE_TOKENS
    return Demand(sequences, longest, max(sequences * longest, _LEAST_CACHE_TOKENS))


def within(asked: Demand, longest: int, window: int | None) -> Demand:
    """The demand where a request may also have `longest` tokens; no request is longer than the model's window."""
    sequence = max(asked.sequence_tokens, longest + _SPARE_TOKENS if longest else 0)
    sequence = sequence if window is None else min(sequence, window)
    return Demand(asked.sequences, sequence, max(asked.cache_tokens, sequence))


def _prompt_tokens(prompt: object) -> int:
    if isinstance(prompt, list) and (not prompt or isinstance(prompt[0], int)):
        return len(prompt)
    return len(str(prompt)) // 3
