"""The server's life: listening, serving, draining, ending."""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterator

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from wholecurve.engine.server.api_error import shutting_down
from wholecurve.engine.server.app import build_app
from wholecurve.engine.server.event_stream import CONNECTION
from wholecurve.engine.server.service import Service
from wholecurve.errors import UserError

_KEEP_ALIVE_S = 75  # longer than clients keep idle connections, or they would send into one that closes
_FLUSH_S = 5  # for responses that are complete to reach clients that read slowly, at the end


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to an address, not listening yet; port 0 takes a free one. UserError where it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(f"host {host!r}: {error.strerror or error}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host} port {port}: {reason}") from None
    return bound


def address_of(bound: socket.socket) -> str:
    """http://host:port of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(bound: socket.socket) -> bool:
    """Whether only programs on this machine reach a socket."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


class _Protocol(HttpToolsProtocol):
    """Gives answers what ASGI has no words for; see `event_stream.Connection`."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: self}

    def write_part(self, body: bytes) -> bool:
        if self.flow.write_paused or self.transport.is_closing():
            return False
        # a response without a length is sent in chunks
        self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    def abort(self) -> None:
        self.transport.abort()


class _Uvicorn(uvicorn.Server):
    """Tells when it listens, and leaves signals to its owner, who drains before it stops."""

    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves until it is told to stop. The first `stop` drains, a second one ends everything at once."""

    def __init__(self, service: Service, bound: socket.socket, grace_s: float):
        self._service, self._bound, self._grace_s = service, bound, grace_s
        self._config = uvicorn.Config(
            build_app(service),
            http=_Protocol,
            loop="auto",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_FLUSH_S,
        )
        self._num_stops = 0
        self._stop_wanted: asyncio.Event | None = None
        self.event_loop: asyncio.AbstractEventLoop | None = None
        self.uvicorn: _Uvicorn | None = None

    def run(self, on_ready: Callable[[], None], signals: tuple[int, ...] = ()) -> None:
        """Serve on this thread. on_ready: called when requests are taken. signals: each one is a `stop`."""
        with asyncio.Runner(loop_factory=self._config.get_loop_factory()) as runner:
            runner.run(self._serve(on_ready, signals))

    def stop(self) -> None:
        """Stop serving; to be called on the server's event loop."""
        self._num_stops += 1
        self._stop_wanted.set()

    async def _serve(self, on_ready: Callable[[], None], signals: tuple[int, ...]) -> None:
        self.event_loop = asyncio.get_running_loop()
        self._stop_wanted = asyncio.Event()
        for number in signals:
            self.event_loop.add_signal_handler(number, self.stop)
        self.uvicorn = _Uvicorn(self._config)
        engine_loop = self._service.engine_loop
        engine_loop.start()
        serving = asyncio.create_task(self.uvicorn.serve([self._bound]))
        try:
            if await _happens_before_end(self.uvicorn.is_listening, serving):
                on_ready()
                if await _happens_before_end(self._stop_wanted, serving):
                    await self._drain()
        finally:
            self.uvicorn.should_exit = True
            await serving
            await engine_loop.stop()
            self._service.close()

    async def _drain(self) -> None:
        engine_loop = self._service.engine_loop
        draining = asyncio.create_task(engine_loop.drain(self._grace_s))
        while not draining.done():
            if self._num_stops > 1:
                engine_loop.fail_all(shutting_down())
            self._stop_wanted.clear()
            again = asyncio.create_task(self._stop_wanted.wait())
            await asyncio.wait((draining, again), return_when=asyncio.FIRST_COMPLETED)
            again.cancel()
        await draining


async def _happens_before_end(event: asyncio.Event, task: asyncio.Task) -> bool:
    """Wait for an event; False when the task ends first, which it does on an error alone."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait((waiting, task), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return event.is_set()
