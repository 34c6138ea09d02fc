"""One request as the client saw it: what every engine, in whatever environment it runs, reports of its work.

Only the standard library is needed, so that a worker in a peer's own environment can make one.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise

from wholecurve.errors import UserError

# How a request of a server can end. Only the first one completed; each other one is a failure of its own kind.
OUTCOMES = (
    "completed",
    "empty",  # ended well, without one token
    "refused",  # an HTTP status of 400 or more, before any token
    "server error",  # an error event inside the stream
    "malformed",  # bytes that are no events, or events that are no chunks
    "disconnected",  # the connection was reset or closed in the middle of a chunk
    "truncated",  # the stream ended without saying that it was finished
    "timed out",  # no end within the client's limit
    "not connected",  # no connection could be made
    "cancelled",  # stopped by the client, because the window had ended
)


@dataclass
class RequestTrace:
    """One request as the client saw it; times in seconds since the start of the measured window.

    ``arrivals_s[i]`` is when chunk i came and ``arrival_tokens[i]`` how many content tokens it held: 0 for a
    role-only or empty chunk, several with speculation. The client fills the fields while the request runs.
    What only a client of a server knows stays None for an engine that was asked without one.
    """

    request: str
    prompt_tokens: int | None  # None where neither the server nor the prompt tells
    cached_tokens: int | None  # prompt tokens that a cache gave; None where the server does not tell
    scheduled_s: float
    sent_s: float
    arrivals_s: list[float] = field(default_factory=list)
    arrival_tokens: list[int] = field(default_factory=list)
    finished_s: float | None = None
    error: str | None = None
    outcome: str | None = None  # one of OUTCOMES
    finish_reason: str | None = None  # as the server wrote it
    wanted_tokens: int | None = None  # what was asked for
    reasoning_tokens: int | None = None  # of the output tokens, those that were thoughts
    token_source: str | None = None  # what the counts rest on: "usage", "usage per chunk", "tokenizer" or "chunks"
    session: str | None = None  # the session that it is a turn of

    @property
    def output_tokens(self) -> int:
        """Content tokens received, all chunks together."""
        return sum(self.arrival_tokens)

    @property
    def completed(self) -> bool:
        """True when the request ended without error and with at least one content token."""
        return self.error is None and self.output_tokens > 0

    @property
    def first_token_s(self) -> float | None:
        """When the first chunk with content came; None for an empty reply."""
        return next((at for at, n in zip(self.arrivals_s, self.arrival_tokens) if n > 0), None)

    @property
    def last_token_s(self) -> float | None:
        """When the last chunk with content came; None for an empty reply."""
        return next((at for at, n in zip(self.arrivals_s[::-1], self.arrival_tokens[::-1]) if n > 0), None)

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from when the request was *scheduled*; None unless it completed."""
        return self.first_token_s - self.scheduled_s if self.completed else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token (t_n - t_1)/(n - 1); None for one token, one chunk or a failed request."""
        if not self.completed or self.last_token_s == self.first_token_s:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """From scheduled to the last token; None unless it completed."""
        return self.last_token_s - self.scheduled_s if self.completed else None

    @property
    def end_s(self) -> float:
        """When it stopped being in flight: last token if completed, else the latest time known."""
        if self.completed:
            return self.last_token_s
        known = [self.finished_s if self.finished_s is not None else self.sent_s, *self.arrivals_s]
        return max(known)

    def check(self) -> None:
        """Raise UserError, naming request and field, where times or token counts contradict each other."""
        where = f"request {self.request}"
        if len(self.arrivals_s) != len(self.arrival_tokens):
            raise UserError(
                f"{where}: arrivals_s has {len(self.arrivals_s)} entries, arrival_tokens "
                f"{len(self.arrival_tokens)}; one token count per arrival is needed"
            )
        if any(n < 0 for n in self.arrival_tokens):
            raise UserError(f"{where}: arrival_tokens has a negative count; 0 marks a chunk without content")
        times = [self.scheduled_s, self.sent_s, *self.arrivals_s]
        if self.finished_s is not None:
            times.append(self.finished_s)
        if not all(math.isfinite(t) for t in times):
            raise UserError(f"{where}: a time is not finite; seconds since the start of the window are needed")
        if any(later < earlier for earlier, later in pairwise(times)):
            raise UserError(
                f"{where}: times run backwards; scheduled_s <= sent_s <= arrivals_s <= finished_s is needed"
            )
