"""One process's load while it runs: what was sent, how it ended, and whether to go on."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from wholecurve.studies.serving.load.turns import Turn
from wholecurve.studies.serving.load.window import Window
from wholecurve.trace import RequestTrace

# A server that refuses everything is not asked for ever: so many failures in a row, and more than what was in flight
# at once, so that at least some were sent when others had already failed.
_FAILURES_IN_A_ROW = 10
_FLIGHTS_IN_A_ROW = 2


class TurnSender(Protocol):
    """What a load needs of a client. It raises for nothing that a server does: a fault is an outcome of the trace."""

    async def send(self, turn: Turn, scheduled_s: float, session: str | None = None) -> RequestTrace: ...


class LoadProgress:
    """Sends turns at their moments and keeps their traces, until it is stopped."""

    def __init__(
        self,
        client: TurnSender,
        window: Window,
        until_s: float | None = None,
        on_ended: Callable[[int], None] | None = None,
    ):
        self.client, self.window, self.until_s = client, window, until_s
        self.traces: dict[str, RequestTrace] = {}
        self.late_s: list[float] = []  # of each request sent, how much later than it could have been
        self.gave_up: str | None = None  # why
        self.stopped = asyncio.Event()
        self._on_ended = on_ended
        self._sending: set[asyncio.Task] = set()
        self._most_in_flight = self._failures_in_a_row = 0

    def is_open_at(self, at_s: float) -> bool:
        """Whether a session may still start at a moment."""
        return not self.stopped.is_set() and (self.until_s is None or at_s < self.until_s)

    async def send(self, turn: Turn, scheduled_s: float, ready_s: float, session: str) -> RequestTrace | None:
        """Send a turn at `ready_s`, which is later than `scheduled_s` where it had to wait for a place.

        Returns its trace, or None when the load was stopped before it was sent.
        """
        if not await self.window.reaches(ready_s, self.stopped):
            return None
        sent_s = self.window()
        task = asyncio.create_task(self.client.send(turn, scheduled_s, session=session))
        self._sending.add(task)
        self._most_in_flight = max(self._most_in_flight, len(self._sending))
        try:
            # Not `await task`: a client may end a cancelled request with a trace, or with the cancellation.
            await asyncio.wait([task])
        finally:
            self._sending.discard(task)
        if task.cancelled():
            trace = cancelled_trace(turn, session, scheduled_s, sent_s, self.window(), "stopped by the client")
        else:
            trace = task.result()
        self.late_s.append(trace.sent_s - ready_s)
        self.keep(turn, trace)
        return trace

    def keep(self, turn: Turn, trace: RequestTrace) -> None:
        """Take in how a turn ended; gives up when too many in a row have failed."""
        self.traces[turn.turn_id] = trace
        if self._on_ended is not None:
            self._on_ended(len(self.traces))
        if trace.completed:
            self._failures_in_a_row = 0
        elif trace.outcome != "cancelled":
            self._failures_in_a_row += 1
        most = max(_FAILURES_IN_A_ROW, _FLIGHTS_IN_A_ROW * self._most_in_flight)
        if self._failures_in_a_row >= most and self.gave_up is None:
            last = f"{trace.outcome or 'failed'}{f': {trace.error}' if trace.error else ''}"
            self.gave_up = f"{self._failures_in_a_row} requests in a row failed; the last one, {turn.turn_id}: {last}"
            self.stopped.set()

    def cancel(self) -> None:
        """Send nothing more, and cancel what is in flight."""
        self.stopped.set()
        for task in self._sending:
            task.cancel()


def cancelled_trace(
    turn: Turn, session: str, scheduled_s: float, sent_s: float, finished_s: float, why: str
) -> RequestTrace:
    """The trace of a request that ended without a word from the server."""
    return RequestTrace(
        request=turn.turn_id,
        prompt_tokens=turn.prompt_tokens,
        cached_tokens=None,
        scheduled_s=scheduled_s,
        sent_s=sent_s,
        finished_s=finished_s,
        error=why,
        outcome="cancelled",
        wanted_tokens=turn.output_tokens,
        session=session,
    )
