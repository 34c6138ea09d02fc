"""A server that writes bytes as a test says: no HTTP library in between that would set them right."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import orjson

from wholecurve.studies.serving.client.client import Client
from wholecurve.studies.serving.client.endpoint import Endpoint

Answer = Callable[["Peer"], Awaitable[None]]

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Peer:
    """One request, and the connection to answer it on."""

    def __init__(self, head: bytes, body: bytes, writer: asyncio.StreamWriter):
        self.head, self.body, self.writer = head, body, writer
        self.document = orjson.loads(body) if body else {}

    async def write(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def chunk(self, content: bytes) -> None:
        """One HTTP chunk."""
        await self.write(b"%x\r\n%s\r\n" % (len(content), content))

    async def stream(self, *events: dict | bytes, end: bool = True) -> None:
        """Headers, each event in an HTTP chunk of its own, and the end of the body."""
        await self.write(STREAM_HEAD)
        for event in events:
            await self.chunk(event if isinstance(event, bytes) else sse(event))
        if end:
            await self.write(b"0\r\n\r\n")

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def sse(document: dict) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def text(content: str, **fields) -> dict:
    """A chunk of completions."""
    return {"choices": [{"index": 0, "text": content, "finish_reason": None}], **fields}


def finish(reason: str = "length", **fields) -> dict:
    return {"choices": [{"index": 0, "text": "", "finish_reason": reason}], **fields}


def delta(finish_reason: str | None = None, **fields) -> dict:
    """A chunk of a chat."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


def usage(prompt: int, completion: int, **fields) -> dict:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **fields}


DONE = b"data: [DONE]\n\n"


class RawServer:
    """`answers` reply to the requests in their order; the last one to all that follow."""

    def __init__(self, *answers: Answer):
        self._answers = list(answers)
        self.peers: list[Peer] = []
        self.connections = 0
        self._tasks: set[asyncio.Task] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.splitlines()
                        if line.lower().startswith(b"content-length")
                    ),
                    0,
                )
                peer = Peer(head, await reader.readexactly(length), writer)
                number = len(self.peers)
                self.peers.append(peer)
                await self._answers[min(number, len(self._answers) - 1)](peer)
        writer.close()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def asking(*answers: Answer, **endpoint) -> AsyncIterator[tuple[Client, RawServer]]:
    """A client and the server that it asks; `endpoint`: fields of the Endpoint that differ."""
    server = RawServer(*answers)
    await server.start()
    started = time.monotonic()
    fields = {"base_url": f"http://127.0.0.1:{server.port}/v1", "model": "m", "timeout_s": 60.0, **endpoint}
    try:
        async with Client(Endpoint(**fields), lambda: time.monotonic() - started) as client:
            yield client, server
    finally:
        await server.stop()
