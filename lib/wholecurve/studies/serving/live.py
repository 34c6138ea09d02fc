"""One contender while its server is up: where it is reached, what it was started with, and whether it still runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from wholecurve.studies.serving.client.endpoint import Endpoint
from wholecurve.studies.serving.plan_parts import ServingContender


class LiveServer:
    """A contender and its server, which is a `ManagedServer` or one that runs already; use it as a context.

    ``restarts`` counts how often it was started anew since the study went on, ``started`` is when it last was.
    ``asked`` are fields of its endpoint.
    """

    def __init__(self, contender: ServingContender, server: Any, api: str, **asked: Any):
        self.contender, self.server = contender, server
        self.worker = server  # as `idle.stop_what_spins` calls what it watches and stops
        self.stops_when_idle = False
        self.idle: dict | None = None
        self.restarts = 0
        self.started: str | None = None
        self._api, self._asked = api, asked

    def __enter__(self) -> "LiveServer":
        self.server.__enter__()
        self.started = _now()
        return self

    def __exit__(self, *error) -> None:
        if self.stops_when_idle:
            self.server.resume()
        self.server.__exit__(*error)

    def endpoint(self) -> Endpoint:
        """Where its clients send requests now; another port after a restart."""
        return self.server.endpoint(self._api, **self._asked)

    def is_alive(self) -> bool:
        """Whether its process runs; a server that the study did not start counts as alive."""
        return self.server.is_alive()

    def restart(self) -> None:
        """Start it anew after it died. UserError when it does not come up."""
        self.server.restart()
        self.restarts += 1
        self.started = _now()
        if self.stops_when_idle:
            self.server.pause()

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Running for as long as the block takes, where it is stopped while others are measured."""
        if self.stops_when_idle:
            self.server.resume()
        try:
            yield
        finally:
            if self.stops_when_idle and self.server.is_alive():
                self.server.pause()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
