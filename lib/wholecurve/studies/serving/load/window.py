"""The clock of a load: seconds since its window began, and waiting for moments on it."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from wholecurve.studies.serving.client.event_loop import new_event_loop
from wholecurve.studies.serving.load.alarm import Alarm, make_alarm

# The last of a wait is left to the alarm: more than the event loop's own timers can be late or early by rounding.
_FINE_S = 0.006
# A wait of nothing would never let a loop's timers go on.
_SHORTEST_SLEEP_S = 1e-6


@dataclass(frozen=True)
class TimeSource:
    """A monotonic clock in seconds, event loops whose timers run by it, and the alarm that they need beside them."""

    monotonic: Callable[[], float] = time.monotonic
    new_loop: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    new_alarm: Callable[[], Alarm | None] = make_alarm


class Window:
    """Seconds since the window began: `window()` is now. Used within `awake`, on a running event loop."""

    def __init__(self, source: TimeSource):
        self._source = source
        self._start: float | None = None
        self._alarm: Alarm | None = None

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Hold the alarm, on the running event loop."""
        self._alarm = self._source.new_alarm()
        try:
            yield
        finally:
            if self._alarm is not None:
                self._alarm.close()
            self._alarm = None

    def begin(self, start: float) -> None:
        """Let second 0 be `start`, a moment of the monotonic clock."""
        self._start = start

    def __call__(self) -> float:
        """Now; negative while second 0 is still to come, and 0 while nobody knows when it will be."""
        return 0.0 if self._start is None else self._source.monotonic() - self._start

    async def sleep_until(self, at_s: float) -> None:
        """Wait for a moment; it has come when this returns, never earlier."""
        while (left := at_s - self()) > 0:
            if self._alarm is not None and left <= _FINE_S:
                await self._alarm.sleep(left)
            else:
                await asyncio.sleep(max(left - self._fine_s, _SHORTEST_SLEEP_S))

    async def reaches(self, at_s: float, stopped: asyncio.Event) -> bool:
        """Wait for a moment unless `stopped` is set before: True when the moment came, False when it was stopped."""
        while (left := at_s - self() - self._fine_s) > 0 and not stopped.is_set():
            try:
                async with asyncio.timeout(max(left, _SHORTEST_SLEEP_S)):
                    await stopped.wait()
            except TimeoutError:
                continue
        if not stopped.is_set():
            await self.sleep_until(at_s)
        return not stopped.is_set()

    @property
    def _fine_s(self) -> float:
        return 0.0 if self._alarm is None else _FINE_S
