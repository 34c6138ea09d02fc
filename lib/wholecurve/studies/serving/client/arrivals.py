"""When bytes came: stamped as the socket gives them, before anything waits for the event loop or is parsed.

With a thousand streams whose tokens come at once, a task that reads its stream runs tens of milliseconds after its
bytes arrived. So the connection keeps each piece of a body together with the moment at which it was received.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

# Servers close a connection that has been idle for 5 s (uvicorn, httplib); one that is used again at that moment is
# reset. Longer pauses, such as those of a tool that works, open a new connection.
_KEEP_ALIVE_S = 3.0

# aiohttp stops reading a socket while more than twice this waits to be read; its 64 KiB of old held long prompts up.
READ_BUFFER_BYTES = 4 * 2**20


class Arrivals:
    """The body of one response as pieces with their times, in the order in which they came."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._body: aiohttp.StreamReader | None = None
        self._waiter: asyncio.Future[None] | None = None

    def begin(self, body: aiohttp.StreamReader) -> None:
        """The headers are complete; `body` is what follows them."""
        self._body = body

    def take(self, received_s: float) -> None:
        """Move what the body holds into a piece that came at `received_s`, and wake the reader."""
        # A public read would refuse what came before an error, and what came is kept.
        while self._body is not None and self._body.total_bytes and (data := self._body._read_nowait(-1)):
            self._pieces.append((received_s, data))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def break_off(self, error: Exception) -> None:
        """The body cannot be read on; what has come of it stays."""
        if self._body is not None and not self._body.is_eof():
            self._body.set_exception(error)

    def waiting(self) -> list[tuple[float, bytes]]:
        """Pieces that have come and were not read yet; they are taken out."""
        pieces = list(self._pieces)
        self._pieces.clear()
        return pieces

    async def next(self) -> tuple[float, bytes] | None:
        """The next piece, or None at the end of the body; raises aiohttp's error where it broke off."""
        while not self._pieces:
            if error := self._body.exception():
                raise error
            if self._body.is_eof():
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._pieces.popleft()

    async def rest(self, most_bytes: int) -> bytes:
        """The body from here, cut after `most_bytes`; for what is no stream."""
        parts, size = [], 0
        while size < most_bytes and (piece := await self.next()) is not None:
            parts.append(piece[1])
            size += len(piece[1])
        return b"".join(parts)[:most_bytes]


class StampingHandler(ResponseHandler):
    """A connection that notes when it received what."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]):
        super().__init__(loop)
        self._clock = clock
        self.arrivals = Arrivals()

    def set_response_params(self, **params: Any) -> None:
        """A request is about to be sent on this connection."""
        self.arrivals = Arrivals()
        super().set_response_params(**params)

    def feed_data(self, data: tuple, size: int = 0) -> None:
        """Headers are complete: (message, body)."""
        message, body = data
        if message.code >= 300:
            # Servers close after an error, some without saying so: another request sent here would be lost.
            self.force_close()
        self.arrivals.begin(body)
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        if not data:  # aiohttp looks for what it had held back; `take`, which made it look, takes that too
            super().data_received(data)
            return
        received_s = self._clock()
        super().data_received(data)
        self.arrivals.take(received_s)

    def connection_lost(self, error: BaseException | None) -> None:
        lost_s = self._clock()
        super().connection_lost(error)
        self.arrivals.take(lost_s)

    def set_exception(self, error: BaseException, *cause: BaseException) -> None:
        # Bytes after the headers that are no HTTP: aiohttp tells the connection, and its body would wait for ever.
        super().set_exception(error, *cause)
        if isinstance(error, HttpProcessingError):
            self.arrivals.break_off(error)


class StampedResponse(aiohttp.ClientResponse):
    """A response that is read through `arrivals`."""

    arrivals: Arrivals

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        self.arrivals = connection.protocol.arrivals
        return await super().start(connection)


def open_session(
    clock: Callable[[], float], headers: dict[str, str], connect_timeout_s: float, keeps_connections: bool
) -> aiohttp.ClientSession:
    """A session without limits on connections, whose responses are `StampedResponse`. Needs a running loop.

    clock: seconds since the window started. Only making a connection has a time limit; that of a whole request is
    the caller's. keeps_connections: whether a connection serves one request after another.
    """
    reuse = {"keepalive_timeout": _KEEP_ALIVE_S} if keeps_connections else {"force_close": True}
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, ttl_dns_cache=None, **reuse)
    connector._factory = functools.partial(StampingHandler, asyncio.get_running_loop(), clock)
    return aiohttp.ClientSession(
        connector=connector,
        response_class=StampedResponse,
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=READ_BUFFER_BYTES,
        max_line_size=64 * 1024,
        max_field_size=64 * 1024,
    )
