"""What the client itself costs: requests sent late, an event loop that is late, processor time."""

import asyncio
import itertools
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from wholecurve.curves.metrics import percentile
from wholecurve.studies.serving.load.window import Window

_INTERVAL_S = 0.005


@dataclass
class LagSamples:
    """What one process noted of itself; seconds."""

    send_late_s: Sequence[float] = ()
    loop_delay_s: array = field(default_factory=lambda: array("d"))
    cpu_s: float = 0.0
    wall_s: float = 0.0


def merged_lag(samples: Sequence[LagSamples], clock_uncertainty_s: float = 0.0) -> dict:
    """The lag of all processes as one record.

    `send_late_*_ms`: of requests, sent − the moment when each could have been: scheduled, or when a place was free.
    `loop_delay_*_ms`: how late the event loop was at a moment, looked at every 5 ms. p99 needs 300 samples, and what
    has none is None. `cpu_s` is the sum over processes, `wall_s` the longest, `clock_uncertainty_ms` how far the
    clocks of several machines may be apart after merging (0 on one machine).
    """
    return {
        **_spread("send_late", [late for one in samples for late in one.send_late_s]),
        **_spread("loop_delay", [delay for one in samples for delay in one.loop_delay_s]),
        "cpu_s": sum(one.cpu_s for one in samples),
        "wall_s": max((one.wall_s for one in samples), default=0.0),
        "processes": len(samples),
        "clock_uncertainty_ms": 1e3 * clock_uncertainty_s,
    }


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    found = {"p50": percentile(seconds, 50), "p99": percentile(seconds, 99), "max": max(seconds, default=None)}
    return {f"{name}_{which}_ms": None if value is None else 1e3 * value for which, value in found.items()}


class LoopWatch:
    """Samples how late the event loop is, and the processor time that passes, from `begin` to `end`."""

    def __init__(self, window: Window):
        self._window = window
        self._delays = array("d")
        self._task: asyncio.Task | None = None
        self._cpu_s = 0.0

    def begin(self) -> None:
        """Start sampling, on the running event loop."""
        self._cpu_s = time.process_time()
        self._task = asyncio.create_task(self._sample())

    async def end(self, send_late_s: Iterable[float]) -> LagSamples:
        """Stop sampling; returns what was seen."""
        self._task.cancel()
        await asyncio.wait([self._task])
        return LagSamples(list(send_late_s), self._delays, time.process_time() - self._cpu_s, self._window())

    async def _sample(self) -> None:
        # After a stall the moments that passed meanwhile come at once, each late by its own time: only so does a long
        # stall weigh what it should.
        for number in itertools.count():
            await self._window.sleep_until(number * _INTERVAL_S)
            self._delays.append(self._window() - number * _INTERVAL_S)
