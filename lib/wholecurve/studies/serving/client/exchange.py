"""One HTTP request and its answer: what came goes into a `Reply`, what went wrong is a `Fault`."""

import asyncio
import contextlib

import aiohttp
import orjson

from wholecurve.studies.serving.client.arrivals import StampedResponse
from wholecurve.studies.serving.client.chunks import error_text
from wholecurve.studies.serving.client.events import quoted
from wholecurve.studies.serving.client.outcomes import Fault
from wholecurve.studies.serving.client.reply import Reply

_LATE_END_S = 1.0  # for the end of a body that says nothing more, and for the body of an error
_MOST_ERROR_BYTES = 64 * 1024
_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}


async def exchange(
    session: aiohttp.ClientSession, url: str, body: bytes, reply: Reply, ends: set[asyncio.Task]
) -> Fault | None:
    """Post `body` and read the answer into `reply`; what went wrong where the server said so, else None.

    An answer is over with its [DONE]. The body's own end, which a server may be slow to write, is waited for by a task
    in `ends`, so that the next request need not wait for it.
    Connections that break, and the end of the caller's patience, raise as aiohttp and asyncio have it; `reply` then
    holds all that had come.
    """
    response = await session.post(url, data=body, headers=_HEADERS, allow_redirects=False)
    is_over = False
    try:
        if response.status >= 300:
            return await _refusal(response)
        if response.content_type == "application/json":
            return await _document_fault(response)
        while not reply.is_over and (piece := await response.arrivals.next()) is not None:
            reply.feed(*piece)
        if reply.done_s is not None:
            is_over = True
            ends.add(task := asyncio.create_task(_end_of(response)))
            task.add_done_callback(ends.discard)
        elif not reply.is_over:
            reply.close(_is_framed(response))
        return reply.fault
    finally:
        # What came before a cancellation or an error, and was not read yet, has come.
        for piece in response.arrivals.waiting():
            reply.feed(*piece)
        if not is_over:
            response.release()  # which closes the connection where the body has not ended


def message_of(content: bytes) -> str:
    """What the body of an error says."""
    try:
        return error_text(orjson.loads(content))
    except orjson.JSONDecodeError:
        return content.decode("utf-8", "replace").strip()


async def _refusal(response: StampedResponse) -> Fault:
    """What a status says that is no success. Its body helps, if it comes."""
    content = b""
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with asyncio.timeout(_LATE_END_S):
            content = await response.arrivals.rest(_MOST_ERROR_BYTES)
    return Fault("refused", f"HTTP {response.status}: {message_of(content) or response.reason or 'no reason given'}")


async def _document_fault(response: StampedResponse) -> Fault:
    """What a whole JSON document says, where a stream of events was asked for."""
    content = await response.arrivals.rest(_MOST_ERROR_BYTES)
    with contextlib.suppress(orjson.JSONDecodeError):
        document = orjson.loads(content)
        if isinstance(document, dict) and document.get("error"):
            return Fault("server error", error_text(document))
    return Fault("malformed", f"a JSON document, not a stream of events: {quoted(content)}")


def _is_framed(response: aiohttp.ClientResponse) -> bool:
    """Whether the end of the body is told by HTTP, and not by the end of the connection alone."""
    return "Content-Length" in response.headers or "Transfer-Encoding" in response.headers


async def _end_of(response: StampedResponse) -> None:
    """Wait a little for the end of a body that says nothing more: only then can its connection be used again."""
    try:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with asyncio.timeout(_LATE_END_S):
                while await response.arrivals.next() is not None:
                    pass
    finally:
        response.release()
