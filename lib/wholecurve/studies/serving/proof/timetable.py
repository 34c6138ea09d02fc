"""Calls at exact moments: an event loop's own timers are a millisecond coarse, which is what is to be measured."""

import asyncio
import ctypes
import heapq
import os
import sys
import time
from collections.abc import Callable
from itertools import count

_CLOCK_MONOTONIC = 1  # what time.monotonic reads on Linux
_TFD_TIMER_ABSTIME = 1
# So many due calls at once, then the loop may read and write: a burst must not keep every other reply waiting.
_AT_ONCE = 256


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timetable:
    """Runs callbacks at moments of ``time.monotonic``, in order, on one event loop.

    On Linux a timerfd wakes the loop (timerfd_create(2), resolution of the kernel's high-resolution timers);
    elsewhere the loop's own timer does, which is a millisecond late.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()  # equal moments keep their order
        self._timer: int | None = None
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._timer = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if self._timer < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create failed")
            loop.add_reader(self._timer, self._woken)

    def at(self, due_s: float, call: Callable[[], None]) -> None:
        """Run ``call`` at ``due_s`` on the monotonic clock; a moment that has passed is the next one."""
        heapq.heappush(self._calls, (due_s, next(self._number), call))
        if self._calls[0][2] is call:
            self._arm()

    def close(self) -> None:
        """Forget all calls."""
        self._calls.clear()
        if self._timer is not None:
            self._loop.remove_reader(self._timer)
            os.close(self._timer)
            self._timer = None

    def _arm(self) -> None:
        due_s = self._calls[0][0]
        if self._timer is None:
            self._loop.call_later(max(0.0, due_s - time.monotonic()), self._run)
            return
        # A value of zero would disarm it; a moment that has passed fires at once.
        nanoseconds = max(1, int(due_s * 1e9))
        value = _Itimerspec(_Timespec(0, 0), _Timespec(*divmod(nanoseconds, 1_000_000_000)))
        if self._libc.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, ctypes.byref(value), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def _woken(self) -> None:
        try:
            os.read(self._timer, 8)
        except BlockingIOError:
            return
        self._run()

    def _run(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._calls or self._calls[0][0] > time.monotonic():
                break
            heapq.heappop(self._calls)[2]()
        if self._calls:
            self._arm()
