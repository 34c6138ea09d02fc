"""One answer while it streams in: bytes to events to chunks, and how it ended."""

from wholecurve.studies.serving.client.chunks import DONE, NotAChunk, Usage, parse_chunk
from wholecurve.studies.serving.client.counting import Received
from wholecurve.studies.serving.client.events import Event, EventParser, NotEvents
from wholecurve.studies.serving.client.outcomes import FAILED_FINISHES, Fault


class Reply:
    """Chunks of one streamed answer with the times at which they came, in seconds.

    keep_text: whether the text is needed, to be tokenised.
    """

    def __init__(self, keep_text: bool = False) -> None:
        self.arrivals_s: list[float] = []
        self.chunks: list[Received] = []
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.fault: Fault | None = None
        self.done_s: float | None = None  # when [DONE] came
        self._texts: list[str] | None = [] if keep_text else None
        self._parser = EventParser()
        self._last_received_s: float | None = None

    @property
    def is_over(self) -> bool:
        """True when nothing that still comes can change the answer."""
        return self.done_s is not None or self.fault is not None

    @property
    def text(self) -> str:
        """All content together; empty where it was not kept."""
        return "".join(self._texts or ())

    def feed(self, received_s: float, received: bytes) -> None:
        """Bytes of the body that came at `received_s`. All events that they complete came then."""
        if self.is_over:
            return
        self._last_received_s = received_s
        try:
            self._take(received_s, self._parser.feed(received))
        except NotEvents as error:
            self._take(received_s, error.events)
            if not self.is_over:
                self.fault = Fault("malformed", str(error))

    def close(self, is_whole: bool) -> None:
        """The body has ended. is_whole: its own framing says that it is complete (a length, or a last HTTP chunk)."""
        if self.is_over:
            return
        cut = not self._parser.is_between_events
        try:
            self._take(self._last_received_s, self._parser.close())
        except NotEvents as error:
            self.fault = Fault("malformed", str(error))
        if cut and not is_whole and self.fault is not None and self.fault.outcome == "malformed":
            self.fault = Fault("disconnected", "the connection was closed in the middle of an event")
        if self.fault is None and self.done_s is None and self.finish_reason is None:
            self.fault = Fault("truncated", self._how_it_stopped())

    def _how_it_stopped(self) -> str:
        if not self.arrivals_s:
            return "the answer ended without one event"
        return f"the answer ended after {len(self.arrivals_s)} chunks, without a finish_reason or [DONE]"

    def _take(self, received_s: float, events: list[Event]) -> None:
        for event in events:
            if event.data == DONE:
                self.done_s = received_s
                return
            try:
                chunk = parse_chunk(event)
            except NotAChunk as error:
                self.fault = Fault("malformed", str(error))
                return
            if chunk.error is not None:
                self.fault = Fault("server error", chunk.error)
                return
            content = chunk.content
            self.arrivals_s.append(received_s)
            self.chunks.append(
                Received(len(content), len(chunk.reasoning), chunk.usage.completion_tokens if chunk.usage else None)
            )
            if content and self._texts is not None:
                self._texts.append(content)
            if chunk.usage is not None and (self.usage is None or chunk.usage.completion_tokens is not None):
                self.usage = chunk.usage
            if chunk.finish_reason is not None:
                self.finish_reason = chunk.finish_reason
                if chunk.finish_reason in FAILED_FINISHES:
                    self.fault = Fault("server error", f"the server ended it with finish_reason {chunk.finish_reason}")
                    return
