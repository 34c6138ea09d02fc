"""A trace as it was recorded: lengths, hashes or contents of requests, whichever format they came in."""

from dataclasses import dataclass, field
from typing import Any

from wholecurve.studies.serving.load.turns import Prompt


@dataclass(frozen=True)
class RecordedTurn:
    """One request of a recording. It tells of its prompt in one of four ways:

    - ``prompt``: the contents themselves;
    - ``blocks`` and ``prompt_tokens``: hashes of its blocks; equal hashes of a ``scope`` are equal tokens;
    - ``continues`` and ``prompt_tokens``: the prompt of an earlier turn, the reply to it, and so many new tokens;
    - ``prompt_tokens`` alone: contents that nothing else shares.
    """

    turn_id: str
    output_tokens: int
    prompt_tokens: int | None = None
    prompt: Prompt | None = None
    blocks: tuple[int | str, ...] = ()
    scope: str = ""
    continues: str | None = None
    after: tuple[str, ...] = ()
    delay_s: float = 0.0
    extra_body: dict[str, Any] = field(default_factory=dict)
    shared_tokens: int = 0  # with ``prompt``: as in a Turn
    misfit: str | None = None  # why it cannot be replayed, where the recording itself says so


@dataclass(frozen=True)
class RecordedSession:
    """Turns that belong together; ``where`` is its place in the file, for errors."""

    session_id: str
    turns: tuple[RecordedTurn, ...]
    where: str
    start_s: float | None = None


@dataclass(frozen=True)
class Recording:
    """A trace that was read. ``notes`` say what its format leaves open and how that was taken."""

    format: str
    sessions: list[RecordedSession]
    block_tokens: int | None = None  # tokens that a hash stands for
    notes: list[str] = field(default_factory=list)
