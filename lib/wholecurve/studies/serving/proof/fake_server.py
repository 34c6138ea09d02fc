"""The scripted server as tests and measurements use it: in a process of its own, which ends with its user."""

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from wholecurve.errors import UserError
from wholecurve.studies.serving.client.endpoint import Endpoint
from wholecurve.studies.serving.proof.script import Script
from wholecurve.studies.serving.proof.server_log import ReplyLog
from wholecurve.studies.serving.proof.setup import Setup

_SLOW_S = 60.0  # for a control request: a record of a million chunks takes seconds


class FakeServer:
    """A server of the OpenAI API on a free port of this machine, whose replies and their moments are scripted.

    ``with FakeServer(Script(ttft_s=0.05, gaps_s=(0.01,))) as server:`` and then ``server.endpoint()``. Requests choose
    as `setup.Setup` says. The process is gone when the block is left, or when its parent dies.
    """

    def __init__(
        self,
        default: Script | None = None,
        named: Mapping[str, Script] | None = None,
        in_order: Sequence[Script] = (),
        **settings: Any,
    ):
        self.setup = Setup(default=default or Script(), named=dict(named or {}), in_order=tuple(in_order), **settings)
        self._process: subprocess.Popen | None = None
        self.port = 0

    def __enter__(self) -> "FakeServer":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "wholecurve.studies.serving.proof.serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches its parent alone, which ends it
        )
        try:
            self._process.stdin.write(self.setup.model_dump_json().encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            if not line:
                raise UserError(f"the scripted server ended with code {self._process.wait()} before it listened")
            answer = json.loads(line)
            if "error" in answer:
                raise UserError(f"scripted server: {answer['error']}")
        except BaseException:
            self.close()
            raise
        self.port = answer["port"]
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def root_url(self) -> str:
        """Where health, metrics and the record are."""
        return f"http://{self.setup.host}:{self.port}"

    @property
    def base_url(self) -> str:
        """Where the API is."""
        return f"{self.root_url}/v1"

    @property
    def pid(self) -> int:
        return self._process.pid

    def endpoint(self, **changes: Any) -> Endpoint:
        """An endpoint of this server; ``changes`` are fields of `Endpoint`."""
        fields = {"base_url": self.base_url, "model": self.setup.model, "profile": "vllm", **changes}
        return Endpoint(**fields)

    def replies(self) -> list[ReplyLog]:
        """The record so far, in the order in which requests were read."""
        return [ReplyLog(**document) for document in self._ask("GET", "/record")["replies"]]

    def cpu_s(self) -> float:
        """Processor time that the server has used."""
        return self._ask("GET", "/cpu")["cpu_s"]

    def clear(self) -> None:
        """Forget the record; scripts in order go on where they are."""
        self._ask("DELETE", "/record")

    def kill(self) -> None:
        """End it at once, as a server dies: what is in flight is cut off."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it and wait for it."""
        if self._process is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()

    def _ask(self, method: str, path: str) -> dict:
        request = urllib.request.Request(self.root_url + path, method=method)
        with urllib.request.urlopen(request, timeout=_SLOW_S) as answer:
            return json.loads(answer.read())


@contextmanager
def refusing_endpoint(**changes: Any) -> Iterator[Endpoint]:
    """An endpoint that refuses every connection: its port is bound, so nobody else takes it, and nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        fields = {"base_url": f"http://127.0.0.1:{bound.getsockname()[1]}/v1", "model": "nobody", **changes}
        yield Endpoint(**fields)
