"""The thread that owns the engine, and the bridge between it and the event loop that serves HTTP.

The engine is touched by its worker thread alone: requests and aborts reach it as commands through a queue, between two
steps. What a step brought for all requests goes back to the event loop in one call.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from wholecurve.engine.server.api_error import (
    ApiError,
    bad_request,
    engine_dead,
    engine_failed,
    shutting_down,
    too_busy,
)
from wholecurve.errors import UserError

if TYPE_CHECKING:
    from wholecurve.engine.engine import Engine, EngineStats, StepOutput
    from wholecurve.engine.sampling import SamplingParams

logger = logging.getLogger("wholecurve.server")
_STATS_PATIENCE_S = 2.0  # a scrape that comes during a longer step gets the numbers of the last one
_STOP_PATIENCE_S = 10.0


class Receiver(Protocol):
    """Who gets what becomes of one request. Called on the event loop, last with a finish or a failure."""

    def accepted(self) -> None:
        """The engine has taken the request."""

    def take(self, output: "StepOutput", now_s: float) -> None:
        """Tokens of one step, at this time of `time.monotonic`."""

    def fail(self, error: ApiError) -> None:
        """Nothing more will come."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One request as the engine takes it, and who gets its outputs."""

    request_id: str
    prompt_ids: list[int]
    params: "SamplingParams"
    receiver: Receiver
    priority: int = 0
    cache_salt: str = ""


class EngineLoop:
    """Runs an engine step after step while it has requests, and sleeps while it has none.

    At most `max_running + max_queued` requests are in flight. `start`, `submit`, `abort`, `stats`, `drain` and `stop`
    belong to the event loop's thread.
    """

    def __init__(self, engine: "Engine", max_running: int, max_queued: int):
        self.max_running, self.max_queued = max_running, max_queued
        self._engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._receivers: dict[str, Receiver] = {}
        self._outcomes: list[tuple[list[Submission], ApiError | None]] = []  # since the last step, worker's side
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_stats: EngineStats | None = None
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._stopping = False
        self.is_draining = False
        self.is_dead = False

    # ---- the event loop's side

    @property
    def num_in_flight(self) -> int:
        """Requests whose end has not been delivered."""
        return len(self._receivers)

    def refusal(self, count: int = 1) -> ApiError | None:
        """Why `count` more requests would not be taken now; None when they would."""
        if self.is_dead:
            return engine_dead()
        if self.is_draining:
            return shutting_down()
        most = self.max_running + self.max_queued
        if count > most:
            return bad_request(f"{count} choices in one request; this server takes at most {most}", "n", "too_many")
        if len(self._receivers) + count > most:
            return too_busy(max(0, len(self._receivers) - self.max_running), self.max_queued)
        return None

    def start(self) -> None:
        """Start the worker; outputs go to the event loop that runs now."""
        self._event_loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, submissions: list[Submission]) -> None:
        """Queue requests that run together or not at all: what the engine refuses of them fails them all.

        ApiError when the server is full, shuts down or has no engine any more.
        """
        if refusal := self.refusal(len(submissions)):
            raise refusal
        self._idle.clear()
        for submission in submissions:
            self._receivers[submission.request_id] = submission.receiver
        self._commands.put(lambda: self._add(submissions))

    def abort(self, request_id: str) -> None:
        """Forget a request: its receiver hears nothing more, and the engine drops it before its next step."""
        if self._receivers.pop(request_id, None) is not None:
            self._commands.put(lambda: self._drop(request_id))
            self._settle()

    async def stats(self) -> "EngineStats | None":
        """The engine's counters as they stand between two steps."""
        if self._thread.is_alive():
            answer = self._event_loop.create_future()
            self._commands.put(lambda: self._post(_resolve, answer, self._engine.stats()))
            with contextlib.suppress(TimeoutError):
                self._last_stats = await asyncio.wait_for(answer, _STATS_PATIENCE_S)
        return self._last_stats

    async def drain(self, grace_s: float) -> None:
        """Take no new requests, give those in flight `grace_s` seconds to finish, and abort what is left."""
        self.is_draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), grace_s)
        except TimeoutError:
            self.fail_all(shutting_down())

    def fail_all(self, error: ApiError) -> None:
        """Abort everything in flight and tell each receiver why."""
        while self._receivers:
            request_id, receiver = next(iter(self._receivers.items()))
            self.abort(request_id)
            receiver.fail(error)

    async def stop(self) -> None:
        """End the worker after the step that it runs; a step that hangs is left behind."""
        self.is_draining = True
        self._stopping = True
        self._commands.put(lambda: None)
        await asyncio.to_thread(self._thread.join, _STOP_PATIENCE_S)
        self.fail_all(shutting_down())

    def _settle(self) -> None:
        if not self._receivers:
            self._idle.set()

    def _admitted(self, outcomes: list[tuple[list[Submission], ApiError | None]]) -> None:
        for submissions, error in outcomes:
            for submission in submissions:
                if submission.request_id not in self._receivers:  # aborted meanwhile
                    continue
                if error is None:
                    submission.receiver.accepted()
                else:
                    del self._receivers[submission.request_id]
                    submission.receiver.fail(error)
        self._settle()

    def _deliver(self, outputs: "list[StepOutput]") -> None:
        now_s = time.monotonic()
        for output in outputs:
            request_id = output.request_id
            receiver = self._receivers.get(request_id)
            if receiver is None:  # aborted while the step ran
                continue
            if output.finish_reason is not None:
                del self._receivers[request_id]
            try:
                receiver.take(output, now_s)
            except Exception:
                # one request's trouble must not take the outputs of the others with it
                logger.exception("request %s: its output could not be written", request_id)
                self.abort(request_id)
                receiver.fail(engine_failed())
        self._settle()

    def _died(self) -> None:
        self.is_dead = True
        self.fail_all(engine_failed())

    # ---- the worker's side

    def _work(self) -> None:
        engine, commands = self._engine, self._commands
        try:
            while not self._stopping:
                if not engine.has_unfinished:
                    commands.get()()
                while not commands.empty():
                    commands.get()()
                if self._outcomes:
                    self._post(self._admitted, self._outcomes)
                    self._outcomes = []
                if engine.has_unfinished and not self._stopping:
                    outputs = engine.step()
                    if outputs:
                        self._post(self._deliver, outputs)
        except Exception:
            logger.exception("the engine failed")
            self._post(self._died)

    def _post(self, callback: Callable, *arguments: object) -> None:
        try:
            self._event_loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the event loop is closed: nobody is left to tell
            self._stopping = True

    def _add(self, submissions: list[Submission]) -> None:
        error, added = None, []
        for submission in submissions:
            request_id = submission.request_id
            try:
                self._engine.add(
                    request_id,
                    submission.prompt_ids,
                    submission.params,
                    priority=submission.priority,
                    cache_salt=submission.cache_salt,
                )
            except UserError as wrong:
                error = bad_request(str(wrong).removeprefix(f"request {request_id}: "))
                break
            except Exception:
                logger.exception("request %s: the engine could not take it", request_id)
                error = engine_failed()
                break
            added.append(request_id)
        if error is not None:
            for request_id in added:
                self._drop(request_id)
        self._outcomes.append((submissions, error))

    def _drop(self, request_id: str) -> None:
        with contextlib.suppress(UserError):  # it finished before the abort came, or was never taken
            self._engine.abort(request_id)


def _resolve(future: asyncio.Future, value: object) -> None:
    if not future.done():
        future.set_result(value)
