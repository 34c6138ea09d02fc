"""What the scripted server really did: the truth that a client's trace is held against."""

from array import array
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ReplyLog:
    """One reply; all times on the monotonic clock, which every process of one machine shares.

    ``written_s[i]`` is when the call that hands write i to the kernel began and ``handed_s[i]`` when it had returned:
    a client cannot have seen the bytes before the first, and can from the second on.
    """

    number: int  # in order of requests that were read
    path: str
    body: dict[str, Any]  # without the prompt
    prompt_tokens: int
    first_byte_s: float
    read_s: float  # the whole request was there: the script's zero
    due_s: list[float] = field(default_factory=lambda: array("d"))
    written_s: list[float] = field(default_factory=lambda: array("d"))
    handed_s: list[float] = field(default_factory=lambda: array("d"))
    chunk_write: list[int] = field(default_factory=lambda: array("l"))  # per content chunk, the write that ended it
    chunk_tokens: list[int] = field(default_factory=lambda: array("l"))
    blocked_writes: int = 0  # of them, those that the kernel did not take at once: the client reads too slowly
    status: int = 200
    ended: str | None = None  # "done", a fault's name, or "client closed"; None while it runs
    ended_s: float | None = None
    bearer: bool = False  # whether an Authorization header with a bearer token came

    def document(self) -> dict[str, Any]:
        """Plain values, as they travel from the server's process."""
        return {name: list(value) if isinstance(value, array) else value for name, value in self.__dict__.items()}

    @property
    def label(self) -> str | None:
        """What the request's body called itself, in its field ``label``."""
        return self.body.get("label")

    @property
    def chunk_written_s(self) -> list[float]:
        """Per content chunk, when the call began that wrote its last byte."""
        return [self.written_s[write] for write in self.chunk_write]

    @property
    def output_tokens(self) -> int:
        """Content tokens written."""
        return sum(self.chunk_tokens)

    def lateness_s(self) -> list[float]:
        """Per write, how much later than scripted it was made: the server's own error."""
        return [written - due for due, written in zip(self.due_s, self.written_s)]
