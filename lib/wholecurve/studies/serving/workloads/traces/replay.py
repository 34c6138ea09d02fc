"""From a recording to sessions: what is taken of it, what is left out, and the contents that it does not hold."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.studies.serving.workloads.plan_parts import TracePlan
from wholecurve.studies.serving.workloads.prepared import Prepared
from wholecurve.studies.serving.workloads.prompts import Writer
from wholecurve.studies.serving.workloads.seeds import Seeds
from wholecurve.studies.serving.workloads.traces.contents import Contents
from wholecurve.studies.serving.workloads.traces.recognise import read_trace
from wholecurve.studies.serving.workloads.traces.schema import RecordedSession, Recording

NAMED = 3  # dropped sessions whose names are told


def trace_sessions(
    plan: TracePlan,
    seeds: Seeds,
    writer: Writer,
    tokenizer: Any | None = None,
    count: int | None = None,
    limit_tokens: int | None = None,
) -> Prepared:
    """The sessions that a plan takes of its trace, the earliest first; see ``TracePlan`` for what is taken."""
    path = Path(plan.path)
    recording = read_trace(path, plan.format, tokenizer, keep_contents=plan.prompts == "messages")
    if plan.block_tokens is not None:
        recording = replace(recording, block_tokens=plan.block_tokens)
    contents = Contents(recording, plan.prompts, writer, seeds, tokenizer)
    wanted = min((n for n in (plan.first, count) if n is not None), default=None)
    taken, dropped = _take(_in_window(plan, recording, path), plan, contents, wanted, limit_tokens)
    if count is not None and len(taken) < count:
        raise UserError(
            f"{path}: {len(taken)} sessions can be taken, and the load needs {count}; a longer trace, a wider window_s "
            "or a lower load is needed"
        )
    if not taken:
        raise UserError(f"{path}: no session is left to replay; {sum(dropped.values())} were dropped")
    origin = min((session.start_s for session in taken if session.start_s is not None), default=0.0)
    sessions = [_replayed(session, contents, origin, plan.speed_up) for session in taken]
    return Prepared(sessions, [*contents.notes, *recording.notes, *_dropped_notes(dropped, len(taken))])


def _in_window(plan: TracePlan, recording: Recording, path: Path) -> list[RecordedSession]:
    sessions = recording.sessions
    without = [session for session in sessions if session.start_s is None]
    if plan.window_s is not None:
        if without:
            raise UserError(f"workload.window_s: {without[0].where}: the session has no arrival to choose by")
        start = min(session.start_s for session in sessions)
        low, high = plan.window_s
        sessions = [session for session in sessions if low <= session.start_s - start < high]
        if not sessions:
            raise UserError(f"workload.window_s: no session of {path} arrives in [{low:g}, {high:g}) seconds")
    # Traces are nearly in the order of arrival; a load that follows the clock needs them wholly so.
    return sessions if without else sorted(sessions, key=lambda session: session.start_s)


def _take(
    sessions: Sequence[RecordedSession],
    plan: TracePlan,
    contents: Contents,
    wanted: int | None,
    limit_tokens: int | None,
) -> tuple[list[RecordedSession], Counter]:
    """The first ``wanted`` sessions that can be replayed, and the others met on the way, by reason and name."""
    taken: list[RecordedSession] = []
    dropped: Counter = Counter()
    for session in sessions:
        if wanted is not None and len(taken) == wanted:
            break
        reason = contents.misfit(session, limit_tokens)
        if reason is None:
            taken.append(session)
        elif plan.misfits == "refuse":
            raise UserError(
                f"{session.where}: session {session.session_id} {reason[1]}; misfits: drop leaves such sessions out"
            )
        else:
            dropped[reason[0], session.session_id] += 1
    return taken, dropped


def _dropped_notes(dropped: Counter, kept: int) -> Iterator[str]:
    reasons = Counter(reason for reason, _ in dropped)
    for reason, number in reasons.items():
        names = [name for why, name in dropped if why == reason]
        more = ", …" if len(names) > NAMED else ""
        yield f"{number} of {kept + len(dropped)} sessions dropped: {reason} ({', '.join(names[:NAMED])}{more})"


def _replayed(session: RecordedSession, contents: Contents, origin_s: float, speed_up: float) -> Session:
    turns = []
    for recorded in session.turns:
        prompt, shared_tokens = contents.prompt(recorded)
        turns.append(
            Turn(
                recorded.turn_id,
                prompt,
                recorded.output_tokens,
                recorded.after,
                recorded.delay_s / speed_up,
                recorded.extra_body,
                shared_tokens,
            )
        )
    start_s = None if session.start_s is None else (session.start_s - origin_s) / speed_up
    return Session(session.session_id, tuple(turns), start_s)
