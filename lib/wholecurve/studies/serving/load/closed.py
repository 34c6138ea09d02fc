"""The closed loop: so many sessions in flight, the next one when one is over."""

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.kinds import ClosedLoad
from wholecurve.studies.serving.load.progress import LoadProgress
from wholecurve.studies.serving.load.sessions import run_session
from wholecurve.studies.serving.load.turns import Session

# A slot whose sessions fail one after another waits longer each time, so that a server that refuses everything is not
# asked as fast as it can refuse. One failure alone costs no wait.
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 1.0


@dataclass(frozen=True)
class ClosedShare:
    """What one process sends: its sessions in order, and when each of its slots opens."""

    sessions: tuple[Session, ...]
    slots_s: tuple[float, ...]

    def starters(self, progress: LoadProgress) -> list[asyncio.Task]:
        """The tasks that start sessions; the load is over when they are."""
        sessions = iter(self.sessions)
        return [asyncio.create_task(_slot(progress, sessions, opens_s)) for opens_s in self.slots_s]


def deal_closed(load: ClosedLoad, sessions: Sequence[Session], processes: int) -> list[ClosedShare]:
    """Sessions and slots, dealt round robin to at most so many processes; none is without a slot.

    UserError where the load is impossible, or has fewer sessions than slots.
    """
    if load.concurrency < 1:
        raise UserError(f"closed load: concurrency is {load.concurrency}; at least 1 is needed")
    if not (math.isfinite(load.ramp_s) and load.ramp_s >= 0):
        raise UserError(f"closed load: ramp_s is {load.ramp_s}; seconds of 0 or more are needed")
    if len(sessions) < load.concurrency:
        raise UserError(
            f"closed load: {len(sessions)} sessions cannot keep {load.concurrency} in flight; "
            "at least as many sessions as the concurrency are needed"
        )
    slots_s = [round(load.ramp_s * slot / load.concurrency, 6) for slot in range(load.concurrency)]
    hands = min(processes, load.concurrency)
    return [ClosedShare(tuple(sessions[hand::hands]), tuple(slots_s[hand::hands])) for hand in range(hands)]


async def _slot(progress: LoadProgress, sessions: Iterator[Session], opens_s: float) -> None:
    free_s, failures = opens_s, 0
    while progress.is_open_at(free_s) and await progress.window.reaches(free_s, progress.stopped):
        session = next(sessions, None)
        if session is None:
            return
        end = await run_session(progress, session, free_s)
        failures = failures + 1 if end.failed else 0
        free_s = end.at_s + _wait_s(failures)


def _wait_s(failures: int) -> float:
    if failures < 2:
        return 0.0
    return min(_FIRST_WAIT_S * 2.0 ** min(failures - 2, 16), _LONGEST_WAIT_S)
