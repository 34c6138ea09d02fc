"""Waits of a few milliseconds that end when they should: an event loop's own timers keep whole milliseconds alone.

On Linux a timer of the kernel (timerfd) wakes the event loop to some tens of microseconds; elsewhere its own timers
have to do.
"""

import asyncio
import ctypes
import heapq
import os
import sys
import time
from contextlib import suppress

_CLOCK_MONOTONIC, _ABSOLUTE = 1, 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """Sleeps on the running event loop; `close` it there. A virtual loop has exact timers and needs none."""

    def __init__(self):
        self._loop = asyncio.get_running_loop()
        self._sleepers: list[tuple[float, int, asyncio.Future]] = []  # a heap by time
        self._count = 0
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop.add_reader(self._timer, self._ring)

    async def sleep(self, seconds: float) -> None:
        """Wait so long by the real monotonic clock."""
        sleeper = self._loop.create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (time.monotonic() + seconds, self._count, sleeper))
        if self._sleepers[0][2] is sleeper:
            self._set()
        await sleeper

    def close(self) -> None:
        """Give the timer back; nobody may be asleep."""
        self._loop.remove_reader(self._timer)
        os.close(self._timer)

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # it was set anew between the ring and the read
            os.read(self._timer, 8)
        while self._sleepers and self._sleepers[0][0] <= time.monotonic():
            _, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)
        if self._sleepers:
            self._set()

    def _set(self) -> None:
        at = max(self._sleepers[0][0], 1e-9)
        value = _Timespec(int(at), min(int(at % 1 * 1e9) + 1, 999_999_999))
        setting = ctypes.byref(_TimerSpec(_Timespec(0, 0), value))
        self._libc.timerfd_settime(self._timer, _ABSOLUTE, setting, None)


def make_alarm() -> Alarm | None:
    """An alarm on the running event loop; None where the system has no such timer."""
    return Alarm() if sys.platform == "linux" else None
