"""A load, from sessions to traces."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wholecurve.errors import UserError
from wholecurve.studies.serving.client.endpoint import Endpoint
from wholecurve.studies.serving.load.closed import ClosedShare, deal_closed
from wholecurve.studies.serving.load.job import ClientFactory, Job, JobResult, run_job
from wholecurve.studies.serving.load.kinds import ClosedLoad, Load
from wholecurve.studies.serving.load.lag import merged_lag
from wholecurve.studies.serving.load.open_loop import OpenShare, deal_open
from wholecurve.studies.serving.load.processes import run_processes
from wholecurve.studies.serving.load.turns import Session
from wholecurve.studies.serving.load.window import TimeSource
from wholecurve.trace import RequestTrace


@dataclass(frozen=True)
class LoadResult:
    """What a load brought; times of traces in seconds since the window began."""

    traces: list[RequestTrace]  # in the order of the turns
    lag: dict  # what the client cost: lag.merged_lag
    not_sent: list[str]  # turns without a trace, in order: their session did not start, or an earlier turn failed
    gave_up: str | None  # why the load was stopped before its end; None where it was not
    began_monotonic_s: float  # second 0 on the monotonic clock of this machine


def run_load(
    endpoint: Endpoint,
    sessions: Sequence[Session],
    load: Load,
    *,
    processes: int = 1,
    until_s: float | None = None,
    grace_s: float | None = None,
    on_progress: Callable[[int], None] | None = None,
    client_factory: ClientFactory | None = None,
    time_source: TimeSource | None = None,
) -> LoadResult:
    """Send `sessions` to `endpoint` as `load` says, and wait for the last one.

    From `until_s` on no session starts; those in flight are finished, or cancelled `grace_s` later. `on_progress` is
    called with the number of requests that have ended. A load whose requests all fail gives up, see
    `LoadResult.gave_up`. With several `processes`, sessions are dealt round robin, each process has its part of the
    concurrency, and all begin at one moment; a closed loop may then run dry in one process before the others.
    `time_source` and `client_factory` replace the clock and the client. Raises UserError for a load or sessions that
    are impossible and for a process that dies; what a server does is never an error, but an outcome of a trace.
    """
    shares = dealt(sessions, load, processes, until_s, grace_s)
    jobs = [Job(endpoint, share, client_factory, until_s, grace_s) for share in shares]
    # A notebook has an event loop of its own, and no second one can run beside it.
    if len(jobs) > 1 or (time_source is None and _is_in_a_loop()):
        began, results = run_processes(jobs, on_progress)
    else:
        began, results = _run_here(jobs[0], time_source or TimeSource(), on_progress)
    return merged_result(sessions, results, began)


def dealt(
    sessions: Sequence[Session], load: Load, hands: int, until_s: float | None, grace_s: float | None
) -> list[ClosedShare | OpenShare]:
    """Check a load and deal it to at most `hands` processes. UserError where it is impossible."""
    if hands < 1:
        raise UserError(f"load: processes are {hands}; at least 1 is needed")
    if until_s is not None and not until_s > 0:
        raise UserError(f"load: until_s is {until_s}; seconds above 0 are needed")
    if grace_s is not None and (until_s is None or not grace_s >= 0):
        raise UserError(f"load: grace_s is {grace_s} with until_s {until_s}; it is 0 or more, after an until_s")
    if not sessions:
        raise UserError("load: there are no sessions to send")
    seen: set[str] = set()
    for session in sessions:
        session.check()
        for turn in session.turns:
            if turn.turn_id in seen:
                raise UserError(f"session {session.session_id}: turn {turn.turn_id} is in an earlier session as well")
            seen.add(turn.turn_id)
    deal = deal_closed if isinstance(load, ClosedLoad) else deal_open
    return deal(load, sessions, hands)


def merged_result(
    sessions: Sequence[Session],
    results: Sequence[JobResult],
    began_monotonic_s: float,
    clock_uncertainty_s: float = 0.0,
) -> LoadResult:
    """The results of all processes as one, in the order of the sessions."""
    traces = {turn_id: trace for result in results for turn_id, trace in result.traces.items()}
    turns = [turn.turn_id for session in sessions for turn in session.turns]
    return LoadResult(
        traces=[traces[turn_id] for turn_id in turns if turn_id in traces],
        lag=merged_lag([result.lag for result in results], clock_uncertainty_s),
        not_sent=[turn_id for turn_id in turns if turn_id not in traces],
        gave_up=next((result.gave_up for result in results if result.gave_up), None),
        began_monotonic_s=began_monotonic_s,
    )


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_here(
    job: Job, time_source: TimeSource, on_progress: Callable[[int], None] | None
) -> tuple[float, list[JobResult]]:
    start = 0.0

    async def begin() -> float:
        nonlocal start
        start = time_source.monotonic()
        return start

    with asyncio.Runner(loop_factory=time_source.new_loop) as runner:
        result = runner.run(run_job(job, begin, time_source, on_progress))
    return start, [result]
