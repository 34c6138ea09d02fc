"""An event loop whose clock jumps to the next timer, and a client that answers by it: hours pass in milliseconds."""

import asyncio
import selectors
from contextlib import asynccontextmanager

from wholecurve.studies.serving.client.endpoint import Endpoint
from wholecurve.studies.serving.load.window import TimeSource
from wholecurve.trace import RequestTrace

ENDPOINT = Endpoint("http://127.0.0.1:1/v1", "fake")


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: the time that it was asked to wait has passed at once."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("nothing is left that could wake the loop")
        if not ready:
            self._clock.now += timeout
        return ready


class VirtualClock:
    """Seconds since it was made, moved by event loops alone."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now

    def new_loop(self):
        loop = asyncio.SelectorEventLoop(_JumpingSelector(self))
        loop.time = self
        return loop

    def time_source(self):
        return TimeSource(self, self.new_loop, lambda: None)


def reply(turn, scheduled_s, sent_s, arrivals_s, finished_s, session, **fields):
    """A trace with one token per arrival."""
    return RequestTrace(
        request=turn.turn_id, prompt_tokens=turn.prompt_tokens or 0, cached_tokens=None, scheduled_s=scheduled_s,
        sent_s=sent_s, arrivals_s=arrivals_s, arrival_tokens=[1] * len(arrivals_s), finished_s=finished_s,
        wanted_tokens=turn.output_tokens, session=session, **{"outcome": "completed", **fields},
    )  # fmt: skip


class FakeClient:
    """Answers `turn` after `service_s(turn)` seconds, all tokens at the end; `fails(turn)` names an outcome instead."""

    def __init__(self, clock, service_s, fails=lambda turn: None):
        self._clock, self._service_s, self._fails = clock, service_s, fails
        self.in_flight = self.most_in_flight = 0

    async def send(self, turn, scheduled_s, session=None):
        sent_s, outcome = self._clock(), self._fails(turn)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self._service_s(turn))
        except asyncio.CancelledError:
            outcome = "cancelled"
        finally:
            self.in_flight -= 1
        now = self._clock()
        arrivals = [] if outcome else [now] * turn.output_tokens
        fields = {"outcome": outcome, "error": f"scripted: {outcome}"} if outcome else {}
        return reply(turn, scheduled_s, sent_s, arrivals, now, session, **fields)


def factory(service_s=lambda turn: 1.0, fails=lambda turn: None, made=None):
    """A client factory of fakes; each one made is put into `made`."""

    @asynccontextmanager
    async def make(endpoint, clock):
        client = FakeClient(clock, service_s, fails)
        if made is not None:
            made.append(client)
        yield client

    return make
