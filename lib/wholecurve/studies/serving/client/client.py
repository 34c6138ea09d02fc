"""The client: a turn goes out, and comes back as a trace, whatever the server did."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from wholecurve.errors import UserError
from wholecurve.studies.serving.client.arrivals import open_session
from wholecurve.studies.serving.client.chunks import Usage
from wholecurve.studies.serving.client.counting import CHUNKS, count
from wholecurve.studies.serving.client.endpoint import Endpoint
from wholecurve.studies.serving.client.exchange import exchange, message_of
from wholecurve.studies.serving.client.outcomes import Fault, fault_of, one_line
from wholecurve.studies.serving.client.profiles import profile_of
from wholecurve.studies.serving.client.reply import Reply
from wholecurve.studies.serving.client.request_body import check_extra_body, request_body
from wholecurve.studies.serving.client.tokenizer import TextCounter
from wholecurve.studies.serving.load.turns import Turn
from wholecurve.trace import RequestTrace

_PATHS = {"completions": "/completions", "chat": "/chat/completions"}
_MOST_PAGE_BYTES = 64 * 2**20
_PAGE_S = 30.0  # for a list of models or a page of metrics


class Client:
    """Sends turns to one endpoint, any number at once.

    `async with Client(endpoint, clock) as client:` opens it. clock: seconds since the start of the window, from a
    monotonic clock; all times of its traces are read from it. UserError for an endpoint that cannot be right.
    """

    def __init__(self, endpoint: Endpoint, clock: Callable[[], float]):
        self._root = _root_of(endpoint.base_url)
        check_extra_body(f"endpoint {endpoint.base_url}", endpoint.extra_body)
        self._endpoint, self._clock = endpoint, clock
        self._profile = profile_of(endpoint.profile)
        self._url = endpoint.base_url.rstrip("/") + _PATHS[endpoint.api]
        self._text_tokens = TextCounter(endpoint.tokenizer) if endpoint.tokenizer else None
        self._session: aiohttp.ClientSession | None = None
        self._ends: set[asyncio.Task] = set()  # of answers that are over, until their connections are free again

    async def __aenter__(self) -> "Client":
        headers = {"Accept-Encoding": "identity", "User-Agent": "wholecurve"}
        if self._endpoint.api_key:
            headers["Authorization"] = f"Bearer {self._endpoint.api_key}"
        self._session = open_session(
            self._clock, headers, self._endpoint.connect_timeout_s, self._profile.keeps_connections
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        for task in self._ends:
            task.cancel()
        await asyncio.gather(*self._ends, return_exceptions=True)
        await self._session.close()

    async def send(self, turn: Turn, scheduled_s: float, session: str | None = None) -> RequestTrace:
        """Send one turn and read its answer to the end. `scheduled_s` is when it should have been sent, by the clock.

        What the server does never raises: it is the trace's `outcome`, and `error` says in a line what happened.
        When the calling task is cancelled, the trace comes back as "cancelled" with what had arrived. UserError for
        a turn that this endpoint cannot be asked.
        """
        check_extra_body(f"turn {turn.turn_id}", turn.extra_body)
        body = request_body(self._endpoint, self._profile, turn)
        reply = Reply(keep_text=self._text_tokens is not None)
        sent_s = self._clock()
        try:
            async with asyncio.timeout(self._endpoint.timeout_s):
                fault = await exchange(self._session, self._url, body, reply, self._ends)
            ended_s = self._clock()
        except BaseException as error:
            fault, ended_s = fault_of(error), self._clock()
            if isinstance(error, asyncio.CancelledError):
                asyncio.current_task().uncancel()
        if reply.done_s is not None:  # the whole answer had come, whatever happened after it
            fault, ended_s = None, reply.done_s
        arguments = (turn, scheduled_s, sent_s, session, reply, fault, ended_s)
        if not self._needs_tokenizer(reply):
            return self._trace(*arguments)
        # Tokenising takes milliseconds, which other streams must not wait for.
        return await _to_the_end(asyncio.to_thread(self._trace, *arguments))

    def _needs_tokenizer(self, reply: Reply) -> bool:
        """Whether the server left something to count that this client can count itself."""
        if self._text_tokens is None:
            return False
        told = reply.usage is not None and reply.usage.prompt_tokens is not None
        return not told or (count(reply.chunks, reply.usage).token_source or "").startswith(CHUNKS)

    def _trace(
        self,
        turn: Turn,
        scheduled_s: float,
        sent_s: float,
        session: str | None,
        reply: Reply,
        fault: Fault | None,
        ended_s: float,
    ) -> RequestTrace:
        tokenize = (lambda: self._text_tokens(reply.text)) if self._text_tokens else None
        counted = count(reply.chunks, reply.usage, tokenize)
        if fault is None and not sum(counted.arrival_tokens):
            fault = Fault("empty", "the answer ended without one token of content")
        usage = reply.usage
        return RequestTrace(
            request=turn.turn_id,
            prompt_tokens=self._prompt_tokens(turn, usage),
            cached_tokens=usage.cached_tokens if usage else None,
            scheduled_s=scheduled_s,
            sent_s=sent_s,
            arrivals_s=reply.arrivals_s,
            arrival_tokens=counted.arrival_tokens,
            finished_s=ended_s,
            error=one_line(fault.error, self._endpoint.api_key) if fault else None,
            outcome=fault.outcome if fault else "completed",
            finish_reason=reply.finish_reason,
            wanted_tokens=turn.output_tokens,
            reasoning_tokens=counted.reasoning_tokens,
            token_source=counted.token_source,
            session=session,
        )

    def _prompt_tokens(self, turn: Turn, usage: Usage | None) -> int | None:
        """By the server's count, else the prompt's own; None for a text or messages that nobody counted."""
        if usage is not None and usage.prompt_tokens is not None:
            return usage.prompt_tokens
        if self._text_tokens is not None and isinstance(turn.prompt, str):
            return self._text_tokens(turn.prompt)
        return turn.prompt_tokens

    async def models(self) -> list[dict[str, Any]]:
        """The entries of the server's list of models; UserError where it gives none."""
        listed = (await self.get_json("models")).get("data")
        if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
            raise UserError(f"{self._address('models')}: not a list of models (no `data` with objects)")
        return listed

    async def get_json(self, path: str) -> dict[str, Any]:
        """The JSON object at a path, as `get_text` reads it."""
        text = await self.get_text(path)
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise UserError(f"{self._address(path)}: not valid JSON ({error})") from None
        if not isinstance(document, dict):
            raise UserError(f"{self._address(path)}: holds no JSON object")
        return document

    async def get_text(self, path: str) -> str:
        """The page at a path, from the server's root if it begins with a slash, else from the base URL.

        UserError where it cannot be had.
        """
        address = self._address(path)
        try:
            async with asyncio.timeout(_PAGE_S):
                response = await self._session.get(address)
                try:
                    content = await response.arrivals.rest(_MOST_PAGE_BYTES)
                finally:
                    response.release()
        except (aiohttp.ClientError, OSError) as error:
            what = one_line(fault_of(error).error, self._endpoint.api_key)
            raise UserError(f"{address}: cannot be read ({what})") from None
        if response.status != 200:
            what = one_line(message_of(content) or response.reason or "", self._endpoint.api_key)
            raise UserError(f"{address}: HTTP {response.status} ({what})")
        return content.decode("utf-8", "replace")

    def _address(self, path: str) -> str:
        return self._root + path if path.startswith("/") else f"{self._endpoint.base_url.rstrip('/')}/{path}"


def _root_of(base_url: str) -> str:
    """Scheme, host and port of a URL; UserError where it is none, or holds what no record may show."""
    try:
        parts = urlsplit(base_url)
        is_url = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise UserError(f"base_url {base_url!r}: not a URL such as http://127.0.0.1:8000/v1")
    if parts.username is not None:
        raise UserError(f"base_url of {parts.hostname}: holds a user or a key, which records would show; use api_key")
    return f"{parts.scheme}://{parts.netloc}"


async def _to_the_end(work: Coroutine[Any, Any, RequestTrace]) -> RequestTrace:
    """Wait for `work` even when the task that waits is cancelled: the request has its outcome already."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
    return task.result()
