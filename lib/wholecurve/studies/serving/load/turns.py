"""What is sent: turns, and sessions of turns that wait for one another."""

from dataclasses import dataclass, field
from typing import Any

from wholecurve.errors import UserError

Prompt = list[int] | str | list[dict[str, Any]]


@dataclass(frozen=True)
class Turn:
    """One request of a session.

    ``prompt`` is whole, history included: token ids or a text (completions), or messages (chat). It starts
    ``delay_s`` after the last of the turns in ``after`` has ended.
    """

    turn_id: str  # unique in its workload
    prompt: Prompt
    output_tokens: int  # exactly so many where the server ignores end-of-sequence, else at most
    after: tuple[str, ...] = ()  # turns of the same session
    delay_s: float = 0.0  # the user thinks, or a tool works
    extra_body: dict[str, Any] = field(default_factory=dict)  # such as tools
    shared_tokens: int = 0  # of a prompt's ids, those that an earlier turn of the workload begins with as well

    @property
    def prompt_tokens(self) -> int | None:
        """Length of the prompt where it is token ids; None where only the server can count."""
        is_ids = isinstance(self.prompt, list) and all(isinstance(part, int) for part in self.prompt)
        return len(self.prompt) if is_ids else None


@dataclass(frozen=True)
class Session:
    """Turns that belong together; a single request is a session of one turn.

    A session is over when all its turns have ended. After a failed turn, turns that wait for it are not sent.
    """

    session_id: str
    turns: tuple[Turn, ...]
    start_s: float | None = None  # recorded arrival, from the start of the load; None where the load decides

    def check(self) -> None:
        """Raise UserError where a turn waits for one that does not come before it in ``turns``."""
        seen: set[str] = set()
        for turn in self.turns:
            if turn.turn_id in seen:
                raise UserError(f"session {self.session_id}: turn {turn.turn_id} is there twice")
            if unknown := [name for name in turn.after if name not in seen]:
                raise UserError(
                    f"session {self.session_id}: turn {turn.turn_id} waits for {unknown[0]}, which is not before it"
                )
            seen.add(turn.turn_id)
        if not seen:
            raise UserError(f"session {self.session_id} has no turns")
