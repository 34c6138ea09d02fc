"""An answer on its way to a client: its choices, each one request of the engine, and the HTTP response they become."""

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from starlette.types import Receive, Scope, Send

from wholecurve.engine.server.api_error import ApiError, no_token
from wholecurve.engine.server.loop import EngineLoop, Submission
from wholecurve.engine.server.metrics import ServerMetrics

if TYPE_CHECKING:
    from wholecurve.engine.engine import StepOutput


class Format(Protocol):
    """How the API writes one kind of answer. Bytes are whole server-sent events."""

    def opening(self, choice: "Choice") -> bytes:
        """Events before the first token of a choice."""

    def chunk(self, choice: "Choice", output: "StepOutput") -> bytes:
        """Events for the tokens of one step, with the end of the choice where it is the last one."""

    def closing(self, choices: "list[Choice]") -> bytes:
        """Events after the end of the last choice."""

    def collect(self, choice: "Choice", output: "StepOutput") -> None:
        """Keep the tokens of one step for `body`."""

    def body(self, choices: "list[Choice]") -> bytes:
        """The JSON document of a whole answer."""


class Choice:
    """One choice of an answer: receives what the engine makes of one request, and counts it."""

    __slots__ = (
        "_answer", "finish_reason", "first_s", "index", "last_s", "num_cached", "num_tokens", "prompt_ids",
        "request_id", "stop_reason",
    )  # fmt: skip

    def __init__(self, answer: "Answer", index: int, request_id: str, prompt_ids: list[int]):
        self._answer, self.index, self.request_id, self.prompt_ids = answer, index, request_id, prompt_ids
        self.num_tokens = self.num_cached = 0
        self.first_s = self.last_s = 0.0  # time of the first and of the newest token
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None

    def accepted(self) -> None:
        self._answer.opened(self)

    def take(self, output: "StepOutput", now_s: float) -> None:
        if output.finish_reason == "abort":
            self._answer.fail(no_token())
            return
        if self.num_tokens == 0:
            self.first_s = now_s
            self.num_cached = output.num_cached
        self.num_tokens += len(output.token_ids)
        self.last_s = now_s
        if output.finish_reason is not None:
            self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        self._answer.advanced(self, output)

    def fail(self, error: ApiError) -> None:
        self._answer.fail(error)


class Answer(ABC):
    """The response of one HTTP request. It is an ASGI application: awaiting it sends the response.

    When it is left, for whatever reason, no request of it is left in the engine.
    """

    def __init__(self, engine_loop: EngineLoop, metrics: ServerMetrics, style: Format, arrival_s: float):
        self._engine_loop, self._metrics, self._style, self._arrival_s = engine_loop, metrics, style, arrival_s
        self.choices: list[Choice] = []
        self._num_unfinished = 0
        self._error: ApiError | None = None
        self._is_gone = False  # nobody reads any more
        self._news: asyncio.Future | None = None

    def submit(self, submissions: list[Submission]) -> None:
        """Send the requests of `choices` to the engine; ApiError when it takes none now."""
        self._engine_loop.submit(submissions)
        self._num_unfinished = len(submissions)

    @property
    def is_finished(self) -> bool:
        """Whether no choice runs any more: all have come to their ends, or an error or the client ended them."""
        return self._num_unfinished == 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch(receive))
        try:
            await self._respond(scope, receive, send)
        finally:
            watcher.cancel()
            self._abort()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.leave()

    def leave(self) -> None:
        """The client is gone: stop working for it."""
        self._is_gone = True
        self._abort()
        self._wake()

    def _abort(self, reason: str = "abort") -> None:
        for choice in self.choices if self._num_unfinished else ():
            if choice.finish_reason is None:
                self._engine_loop.abort(choice.request_id)
                choice.finish_reason = reason
                self._metrics.finished(choice, self._arrival_s)
        self._num_unfinished = 0

    def fail(self, error: ApiError) -> None:
        """End the answer with an error; choices that still run are aborted."""
        if self._error is None and not self.is_finished:
            self._abort("error")
            self._error = error
            self._wake()

    def advanced(self, choice: Choice, output: "StepOutput") -> None:
        """A choice has got tokens."""
        if choice.finish_reason is not None:
            self._num_unfinished -= 1
            self._metrics.finished(choice, self._arrival_s)
        self._write(choice, output)

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _wait(self) -> None:
        self._news = asyncio.get_running_loop().create_future()
        await self._news
        self._news = None

    @abstractmethod
    def opened(self, choice: Choice) -> None:
        """The engine has taken a choice."""

    @abstractmethod
    def _write(self, choice: Choice, output: "StepOutput") -> None:
        """Keep what a step brought, for the response."""

    @abstractmethod
    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, unless the client has gone."""


class CollectedAnswer(Answer):
    """One JSON document when everything is there."""

    def opened(self, choice: Choice) -> None:
        pass

    def _write(self, choice: Choice, output: "StepOutput") -> None:
        self._style.collect(choice, output)
        if self.is_finished:
            self._wake()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        while not self.is_finished:
            await self._wait()
        if self._is_gone:
            return
        if self._error is not None:
            await self._error.response()(scope, receive, send)
            return
        body = self._style.body(self.choices)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
