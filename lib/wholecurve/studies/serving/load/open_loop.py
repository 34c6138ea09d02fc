"""The open loop: sessions are due by the clock, whatever the server does."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from wholecurve.studies.serving.load.arrivals import due_times_s
from wholecurve.studies.serving.load.kinds import OpenLoad
from wholecurve.studies.serving.load.progress import LoadProgress, cancelled_trace
from wholecurve.studies.serving.load.sessions import run_session
from wholecurve.studies.serving.load.turns import Session


@dataclass(frozen=True)
class OpenShare:
    """What one process sends: its sessions in the order of their moments, and how many it may have in flight."""

    sessions: tuple[Session, ...]
    due_s: tuple[float, ...]
    most_in_flight: int | None

    def starters(self, progress: LoadProgress) -> list[asyncio.Task]:
        """The tasks that start sessions; the load is over when they are."""
        if self.most_in_flight is None:
            return [asyncio.create_task(self._without_limit(progress))]
        queue: asyncio.Queue[tuple[Session, float] | None] = asyncio.Queue()
        places = min(self.most_in_flight, len(self.sessions))
        return [
            asyncio.create_task(self._fill(progress, queue, places)),
            *(asyncio.create_task(_place(progress, queue)) for _ in range(places)),
        ]

    async def _without_limit(self, progress: LoadProgress) -> None:
        def ended(task: asyncio.Task) -> None:
            if task.cancelled() or task.exception() is None:
                running.discard(task)
            else:
                progress.stopped.set()  # a fault of the client itself ends the load, and not only at the next arrival

        running: set[asyncio.Task] = set()
        async for session, due_s in self._due(progress):
            running.add(task := asyncio.create_task(run_session(progress, session, due_s)))
            task.add_done_callback(ended)
        await asyncio.gather(*running)

    async def _fill(self, progress: LoadProgress, queue: asyncio.Queue, places: int) -> None:
        async for due in self._due(progress):
            queue.put_nowait(due)
        for _ in range(places):
            queue.put_nowait(None)

    async def _due(self, progress: LoadProgress):
        for session, due_s in zip(self.sessions, self.due_s, strict=True):
            if not (progress.is_open_at(due_s) and await progress.window.reaches(due_s, progress.stopped)):
                return
            yield session, due_s


async def _place(progress: LoadProgress, queue: asyncio.Queue) -> None:
    """One of the places of a limited load: sessions that are due wait for it in order, and their wait counts."""
    free_s = 0.0
    while (due := await queue.get()) is not None:
        session, due_s = due
        if progress.stopped.is_set():
            _keep_unsent(progress, session, due_s)
        else:
            end = await run_session(progress, session, due_s, max(due_s, free_s))
            free_s = end.at_s


def _keep_unsent(progress: LoadProgress, session: Session, due_s: float) -> None:
    """A session that was due and found no place is a failure of the load, not a session that never was."""
    now_s = progress.window()
    for turn in session.turns:
        if not turn.after:
            why = "due, but never sent: the sessions in flight were at their limit until the load was stopped"
            progress.keep(turn, cancelled_trace(turn, session.session_id, due_s, now_s, now_s, why))


def deal_open(load: OpenLoad, sessions: Sequence[Session], processes: int) -> list[OpenShare]:
    """Sessions in the order of their moments, dealt round robin to at most so many processes.

    UserError where the load is impossible.
    """
    due = sorted(zip(due_times_s(load, sessions), range(len(sessions)), strict=True))
    hands = min(processes, len(sessions), load.most_in_flight or processes)
    shares = []
    for hand in range(hands):
        own = due[hand::hands]
        limit = load.most_in_flight and len(range(hand, load.most_in_flight, hands))
        shares.append(OpenShare(tuple(sessions[i] for _, i in own), tuple(at for at, _ in own), limit))
    return shares
