"""A streamed answer: server-sent events, written as the engine's steps bring them."""

from typing import TYPE_CHECKING, Protocol

from starlette.types import Receive, Scope, Send

from wholecurve.engine.server.answer import Answer, Choice, Format
from wholecurve.engine.server.loop import EngineLoop
from wholecurve.engine.server.metrics import ServerMetrics

if TYPE_CHECKING:
    from wholecurve.engine.engine import StepOutput

CONNECTION = "wholecurve.connection"  # a Connection, in the extensions of a request's scope where the server has one

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy must not collect events
]


class Connection(Protocol):
    """What a server can do beyond ASGI."""

    def write_part(self, body: bytes) -> bool:
        """Write a part of a body that has begun and goes on, at once; False, and nothing written, when it would wait.

        The same as a `send` that is awaited, for a third of the time: no task has to be woken.
        """

    def abort(self) -> None:
        """Close the socket, with all that has not been sent."""


class StreamedAnswer(Answer):
    """Events of all choices in one response, at most one write per step and choice.

    While a client does not read, events pile up here and go out as one when it does. Beyond `max_bytes` of them the
    client is cut off.
    """

    def __init__(
        self, engine_loop: EngineLoop, metrics: ServerMetrics, style: Format, arrival_s: float, max_bytes: int
    ):
        super().__init__(engine_loop, metrics, style, arrival_s)
        self._max_bytes = max_bytes
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._is_open = False
        self._is_parked = False  # the response has begun, everything is sent, and it waits for more
        self._connection: Connection | None = None

    def opened(self, choice: Choice) -> None:
        self._is_open = True
        self._push(self._style.opening(choice))
        self._wake()

    def _write(self, choice: Choice, output: "StepOutput") -> None:
        events = self._style.chunk(choice, output)
        if self.is_finished:
            self._push(events + self._style.closing(self.choices))
        elif events and not (self._is_parked and not self._pending and self._connection.write_part(events)):
            self._push(events)

    def _push(self, events: bytes) -> None:
        if not events or self._is_gone:
            return
        self._pending.append(events)
        self._pending_bytes += len(events)
        if self._pending_bytes > self._max_bytes:
            self._metrics.slow_readers.inc()
            self._pending.clear()
            self.leave()
            if self._connection is not None:
                self._connection.abort()
        else:
            self._wake()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._connection = (scope.get("extensions") or {}).get(CONNECTION)
        while not (self._is_open or self.is_finished):
            await self._wait()
        if self._error is not None and not self._is_open:
            await self._error.response()(scope, receive, send)
            return
        if not self._is_gone:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        while not self._is_gone:
            # what is there when the last choice has ended is the rest, so the response ends with the same write
            is_last = self.is_finished
            if self._error is not None:
                self._pending.append(b"data: " + self._error.body() + b"\n\n")
            if self._pending or is_last:
                events, self._pending, self._pending_bytes = b"".join(self._pending), [], 0
                await send({"type": "http.response.body", "body": events, "more_body": not is_last})
                if is_last:
                    return
            else:
                self._is_parked = self._connection is not None
                await self._wait()
                self._is_parked = False
