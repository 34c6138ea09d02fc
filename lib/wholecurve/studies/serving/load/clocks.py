"""The clock of another machine: how far it is from this one's, and how sure that is."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from wholecurve.trace import RequestTrace

_EXCHANGES = 50


@dataclass(frozen=True)
class ClockOffset:
    """Their clock minus this one, in seconds; it is wrong by at most `uncertainty_s`."""

    offset_s: float
    uncertainty_s: float


def measure_offset(there: Callable[[], float], here: Callable[[], float], exchanges: int = _EXCHANGES) -> ClockOffset:
    """Ask for their clock several times and trust the quickest answer (Cristian, 1989).

    It was read somewhere between question and answer, so the middle is wrong by at most half the round trip.
    """
    best: ClockOffset | None = None
    for _ in range(exchanges):
        asked = here()
        theirs = there()
        answered = here()
        half_trip = (answered - asked) / 2
        if best is None or half_trip < best.uncertainty_s:
            best = ClockOffset(theirs - (asked + half_trip), half_trip)
    return best


def offset_between(before: ClockOffset, after: ClockOffset) -> ClockOffset:
    """The offset during a window, from one measured before it and one after it.

    Clocks of two machines drift apart: within the window the offset is somewhere between the two, and half of what
    lies between them is added to the uncertainty.
    """
    drift = abs(after.offset_s - before.offset_s)
    return ClockOffset(
        (before.offset_s + after.offset_s) / 2, max(before.uncertainty_s, after.uncertainty_s) + drift / 2
    )


def shifted(trace: RequestTrace, seconds: float) -> RequestTrace:
    """The same request, all its times later by `seconds`."""
    return dataclasses.replace(
        trace,
        scheduled_s=trace.scheduled_s + seconds,
        sent_s=trace.sent_s + seconds,
        arrivals_s=[at + seconds for at in trace.arrivals_s],
        finished_s=None if trace.finished_s is None else trace.finished_s + seconds,
    )
