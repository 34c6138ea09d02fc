"""The scripted server itself: an event loop, a timetable, and a record of every reply."""

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable

import orjson

from wholecurve.errors import UserError
from wholecurve.studies.serving.proof import http_reply
from wholecurve.studies.serving.proof.connection import Connection
from wholecurve.studies.serving.proof.script import Script, script_from
from wholecurve.studies.serving.proof.server_log import ReplyLog
from wholecurve.studies.serving.proof.setup import Setup
from wholecurve.studies.serving.proof.timetable import Timetable

_BACKLOG = 4096  # connections that may wait to be accepted: a thousand come at once


class Server:
    """Picks scripts, answers what is not a completion, and keeps the record."""

    def __init__(self, setup: Setup, timetable: Timetable):
        self.setup, self.timetable = setup, timetable
        self.replies: list[ReplyLog] = []
        self._in_order = iter(setup.in_order)
        self._opened = 0

    def script_for(self, body: dict) -> Script:
        """The script that a request asks for, else the next in order, else the default."""
        wanted = body.get("script")
        if isinstance(wanted, str):
            if wanted not in self.setup.named:
                raise UserError(f"script {wanted!r} is not there; there are {', '.join(self.setup.named) or 'none'}")
            return self.setup.named[wanted]
        if wanted is not None:
            return script_from(wanted, "the body's script")
        return next(self._in_order, self.setup.default)

    def opened(self, log: ReplyLog) -> None:
        """Number a reply's record and keep it."""
        log.number, self._opened = self._opened, self._opened + 1
        self.replies.append(log)

    def admits(self, authorization: str) -> bool:
        """Everyone, unless there is a key."""
        return self.setup.api_key is None or authorization == f"Bearer {self.setup.api_key}"

    def plain(self, method: str, path: str) -> bytes | None:
        """Models, health, counters, processor time, and the record: GET reads it, DELETE forgets it."""
        match method, path:
            case "GET", "/v1/models":
                about = {"id": self.setup.model, "object": "model", "max_model_len": self.setup.max_model_len}
                return http_reply.json_reply({"object": "list", "data": [about]})
            case "GET", "/health":
                return http_reply.json_reply({})
            case "GET", "/metrics":
                return http_reply.text_reply(self._metrics())
            case "GET", "/record":
                replies = [log.document() for log in self.replies]
                return http_reply.json_reply({"replies": replies})
            case "GET", "/cpu":
                return http_reply.json_reply({"cpu_s": time.process_time()})
            case "DELETE", "/record":
                self.replies.clear()
                return http_reply.json_reply({})
        return None

    def _metrics(self) -> str:
        counters = {
            "vllm:prompt_tokens_total": sum(log.prompt_tokens for log in self.replies),
            "vllm:generation_tokens_total": sum(log.output_tokens for log in self.replies),
        }
        return "".join(f"# TYPE {name} counter\n{name} {value}\n" for name, value in counters.items())


async def serve(setup: Setup, announce: Callable[[int], None], until: asyncio.Event) -> None:
    """Listen until ``until`` is set; ``announce`` gets the port. UserError where the port is taken."""
    # asyncio's own loop: its transports hand bytes to the kernel inside write(), so that the moment written down is
    # the moment they left. uvloop gathers them until the end of the loop's turn.
    loop = asyncio.get_running_loop()
    timetable = Timetable(loop)
    server = Server(setup, timetable)
    try:
        listening = await loop.create_server(lambda: Connection(server), setup.host, setup.port, backlog=_BACKLOG)
    except OSError as error:
        raise UserError(f"{setup.host}:{setup.port}: {os.strerror(error.errno)}; 0 takes a free port") from None
    # Whole collections would stop every stream for milliseconds; what there is now stays.
    gc.freeze()
    gc.set_threshold(100_000)
    try:
        announce(listening.sockets[0].getsockname()[1])
        await until.wait()
    finally:
        listening.close()
        timetable.close()


def serve_here(setup: Setup, announce: Callable[[int], None]) -> None:
    """Serve in this process until it is interrupted or asked to end. UserError where the port is taken."""

    async def run() -> None:
        until, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, until.set)
        await serve(setup, announce, until)

    asyncio.run(run())


def main() -> None:
    """A server of its own process: set-up on the first line of stdin, port on stdout; it ends when stdin does."""
    setup = Setup.model_validate_json(sys.stdin.buffer.readline())

    async def run() -> None:
        until = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), until.set)
        await serve(setup, lambda port: print(orjson.dumps({"port": port}).decode(), flush=True), until)

    try:
        asyncio.run(run())
    except UserError as error:
        print(orjson.dumps({"error": str(error)}).decode(), flush=True)


if __name__ == "__main__":
    main()
