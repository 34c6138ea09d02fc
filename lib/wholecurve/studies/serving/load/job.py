"""What one process does of a load, from opening its client to its traces."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass

from wholecurve.studies.serving.client.endpoint import Endpoint
from wholecurve.studies.serving.load.closed import ClosedShare
from wholecurve.studies.serving.load.lag import LagSamples, LoopWatch
from wholecurve.studies.serving.load.open_loop import OpenShare
from wholecurve.studies.serving.load.progress import LoadProgress, TurnSender
from wholecurve.studies.serving.load.window import TimeSource, Window
from wholecurve.trace import RequestTrace

ClientFactory = Callable[[Endpoint, Callable[[], float]], AbstractAsyncContextManager[TurnSender]]


@dataclass(frozen=True)
class Job:
    """A share of a load and how to send it. It travels to other processes and machines."""

    endpoint: Endpoint
    share: ClosedShare | OpenShare
    client_factory: ClientFactory | None  # None for the client of this project
    until_s: float | None
    grace_s: float | None


@dataclass
class JobResult:
    """What came of it; times in seconds of the window."""

    traces: dict[str, RequestTrace]  # by turn
    lag: LagSamples
    gave_up: str | None


async def run_job(
    job: Job,
    begin: Callable[[], Awaitable[float]],
    time_source: TimeSource,
    on_ended: Callable[[int], None] | None = None,
) -> JobResult:
    """Open the client, wait for `begin` to tell the start on the monotonic clock, and send the share."""
    window = Window(time_source)
    async with _factory(job)(job.endpoint, window) as client:
        progress = LoadProgress(client, window, job.until_s, on_ended)
        watch = LoopWatch(window)
        with window.awake(), _no_garbage_collection():
            window.begin(await begin())
            await window.sleep_until(0.0)
            watch.begin()
            try:
                await _until_over(job, progress)
            finally:
                lag = await watch.end(progress.late_s)
        return JobResult(progress.traces, lag, progress.gave_up)


async def _until_over(job: Job, progress: LoadProgress) -> None:
    starters = job.share.starters(progress)
    ends = None
    if job.until_s is not None and job.grace_s is not None:
        ends = asyncio.create_task(_cancel_at(progress, job.until_s + job.grace_s))
    try:
        done, _ = await asyncio.wait(starters, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        # After an error or an interrupt as well: nothing stays in flight.
        progress.cancel()
        if ends is not None:
            ends.cancel()
        await asyncio.gather(*starters, return_exceptions=True)


async def _cancel_at(progress: LoadProgress, at_s: float) -> None:
    await progress.window.sleep_until(at_s)
    progress.cancel()


def _factory(job: Job) -> ClientFactory:
    if job.client_factory is not None:
        return job.client_factory
    from wholecurve.studies.serving.client.client import Client

    return Client


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """No collector pauses within the window: what is there is set aside, and collection starts again after it."""
    was_enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
