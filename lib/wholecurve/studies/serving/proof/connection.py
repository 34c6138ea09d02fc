"""One connection of the scripted server: requests in, scripted bytes out, each at its moment and written down."""

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import httptools
import orjson

from wholecurve.errors import UserError
from wholecurve.studies.serving.proof import http_reply
from wholecurve.studies.serving.proof.reply import Asked, Reply, Write
from wholecurve.studies.serving.proof.script import BEFORE_THE_HEAD, Script
from wholecurve.studies.serving.proof.server_log import ReplyLog
from wholecurve.studies.serving.proof.timetable import Timetable

_EVENTS = "text/event-stream; charset=utf-8"
_TOO_LONG_BY = 100  # bytes that a reply promises and never sends


class Desk(Protocol):
    """What a connection needs of its server."""

    timetable: Timetable

    def script_for(self, body: dict) -> Script:
        """The script of the next reply; UserError where the body names one that is not there."""

    def opened(self, log: ReplyLog) -> None:
        """Keep a reply's record; gives it its number."""

    def plain(self, method: str, path: str) -> bytes | None:
        """A whole reply to anything but completions; None where there is nothing at that path."""

    def admits(self, authorization: str) -> bool:
        """Whether this Authorization header may ask."""


@dataclass
class _Request:
    first_byte_s: float
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)


class Connection(asyncio.Protocol):
    """Serves one client's requests, one after another."""

    def __init__(self, desk: Desk):
        self._desk = desk
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._request = _Request(0.0)
        self._received_s = 0.0
        self._log: ReplyLog | None = None
        self._writes: Iterator[Write] = iter(())
        self._next: Write | None = None
        self._chunked = True
        self._fault: str | None = None
        self._paused = self._waiting = False

    # asyncio's side

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._received_s = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._transport.write(http_reply.json_reply({"error": {"message": str(error)}}, 400))
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._end("client closed")
        self._writes, self._next = iter(()), None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._waiting:
            self._waiting = False
            self._step()

    # httptools' side

    def on_message_begin(self) -> None:
        self._request = _Request(self._received_s)

    def on_url(self, url: bytes) -> None:
        self._request.path += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._request.body += body

    def on_message_complete(self) -> None:
        request, method = self._request, self._parser.get_method().decode()
        chat = request.path.endswith("/chat/completions")
        if method != "POST" or not (chat or request.path.endswith("/completions")):
            whole = self._desk.plain(method, request.path)
            missing = {"error": {"message": f"nothing at {method} {request.path}"}}
            self._transport.write(whole if whole is not None else http_reply.json_reply(missing, 404))
            return
        if not self._desk.admits(request.headers.get("authorization", "")):
            self._transport.write(http_reply.json_reply({"error": {"message": "a bearer token is needed"}}, 401))
            return
        try:
            body = orjson.loads(bytes(request.body))
            script = self._desk.script_for(body)
        except (orjson.JSONDecodeError, UserError) as error:
            self._transport.write(http_reply.json_reply({"error": {"message": str(error)}}, 400))
            return
        self._play(script, Asked.of(body, chat), body)

    # the reply

    def _play(self, script: Script, asked: Asked, body: dict) -> None:
        request = self._request
        kept = {name: value for name, value in body.items() if name not in ("prompt", "messages")}
        bearer = request.headers.get("authorization", "").startswith("Bearer ")
        self._log = ReplyLog(
            0, request.path, kept, asked.prompt_tokens, request.first_byte_s, time.monotonic(),
            status=script.status, bearer=bearer,
        )  # fmt: skip
        self._desk.opened(self._log)
        reply, self._chunked = Reply(script, asked), False
        if script.fault in BEFORE_THE_HEAD:
            data = b"This is no reply.\r\n\r\n" if script.fault == "not http" else b""
            ending = "stall" if script.fault == "never answers" else "close"
            self._writes = iter([Write(script.headers_s, data, ending=ending)])
        elif script.status >= 400:
            data = http_reply.json_reply(reply.error(script.status), script.status)
            self._writes = iter([Write(script.headers_s, data, ending="keep")])
        elif not asked.stream:
            at_s = script.ttft_s + sum(script.gap_s(i) for i in range(1, len(reply.sizes)))
            self._writes = iter([Write(at_s, http_reply.json_reply(reply.whole()), tuple(reply.sizes), "keep")])
        else:
            self._writes = self._stream(script, reply)
        self._fault = script.fault
        self._advance()

    def _stream(self, script: Script, reply: Reply) -> Iterator[Write]:
        writes, length = reply.writes(), None
        if script.content_length != "chunked":
            whole = list(writes)
            total = sum(len(write.data) for write in whole)
            length = {"exact": total, "too long": total + _TOO_LONG_BY, "too short": total // 2}[script.content_length]
            if script.content_length != "exact":
                whole[-1] = replace(whole[-1], ending="close")
            writes = iter(whole)
        self._chunked = length is None
        yield Write(script.headers_s, http_reply.head(script.status, _EVENTS, length))
        for write in writes:
            data = write.data
            if self._chunked:
                data = (http_reply.chunk(data) if data else b"") + (
                    http_reply.END_OF_CHUNKS if write.ending == "keep" else b""
                )
            yield replace(write, data=data)

    def _advance(self) -> None:
        self._next = next(self._writes, None)
        if self._next is not None:
            self._desk.timetable.at(self._log.read_s + self._next.at_s, self._step)

    def _step(self) -> None:
        write, log = self._next, self._log
        if write is None:
            return
        if self._paused:  # the client reads too slowly: the rest waits until it has caught up
            self._waiting = True
            return
        if write.data:
            log.due_s.append(log.read_s + write.at_s)
            log.written_s.append(time.monotonic())
            self._transport.write(write.data)
            log.handed_s.append(time.monotonic())
            log.blocked_writes += self._transport.get_write_buffer_size() > 0
            for tokens in write.tokens:
                log.chunk_write.append(len(log.written_s) - 1)
                log.chunk_tokens.append(tokens)
        if write.ending is None:
            self._advance()
            return
        self._next = None
        self._end(self._fault or "done")
        if write.ending == "reset":
            # Lingering for no time: closing discards what is unsent and tells the other side with a reset.
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            self._transport.abort()
        elif write.ending == "close":
            self._transport.close()

    def _end(self, how: str) -> None:
        if self._log is not None and self._log.ended is None:
            self._log.ended, self._log.ended_s = how, time.monotonic()
