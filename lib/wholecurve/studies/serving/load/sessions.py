"""One session: its turns, each after the ones that it waits for, several at once where they do not."""

import asyncio
from dataclasses import dataclass

from wholecurve.studies.serving.load.progress import LoadProgress
from wholecurve.studies.serving.load.turns import Session
from wholecurve.trace import RequestTrace


@dataclass(frozen=True)
class SessionEnd:
    """When a session was over, in seconds of the window, and whether one of its turns failed."""

    at_s: float
    failed: bool


async def run_session(
    progress: LoadProgress, session: Session, scheduled_s: float, ready_s: float | None = None
) -> SessionEnd:
    """Send the turns of a session that is due at `scheduled_s` and has a place from `ready_s` on.

    A turn is scheduled `delay_s` after the last of those that it waits for has ended. What waits, directly or not,
    for a turn that failed is not sent; what does not wait for it is.
    """
    start_s = scheduled_s if ready_s is None else ready_s
    ended_s: dict[str, float] = {}  # of the turns that completed
    waiting, running = list(session.turns), {}
    end_s, failed = start_s, False
    while True:
        for turn in [turn for turn in waiting if all(name in ended_s for name in turn.after)]:
            waiting.remove(turn)
            before_s = max((ended_s[name] for name in turn.after), default=None)
            due_s = turn.delay_s + (scheduled_s if before_s is None else before_s)
            sendable_s = turn.delay_s + (start_s if before_s is None else before_s)
            running[asyncio.create_task(progress.send(turn, due_s, sendable_s, session.session_id))] = turn
        if not running:
            return SessionEnd(end_s, failed)
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            turn, trace = running.pop(task), task.result()
            if trace is None:
                continue  # the load was stopped
            end_s = max(end_s, _ended_s(trace))
            if trace.completed:
                ended_s[turn.turn_id] = _ended_s(trace)
            else:
                failed = True


def _ended_s(trace: RequestTrace) -> float:
    # The reply is over with its stream, which a server may hold open for a while after the last token.
    return trace.end_s if trace.finished_s is None else trace.finished_s
