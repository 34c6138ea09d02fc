"""One contender as a server: started, seen to be what was asked for, watched, and ended."""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wholecurve.errors import UserError
from wholecurve.studies.serving.client.endpoint import Endpoint
from wholecurve.studies.serving.servers import ports
from wholecurve.studies.serving.servers.counters import Counters, read_counters
from wholecurve.studies.serving.servers.pages import Pages
from wholecurve.studies.serving.servers.process import KeptProcess
from wholecurve.studies.serving.servers.ready import first_token, probe_prefix_cache, wait_ready
from wholecurve.studies.serving.servers.recipe import Launch, Needs, ServerRecipe, vocab_size
from wholecurve.studies.serving.servers.settings import Setting, portable, require_at_least, require_equal

if TYPE_CHECKING:
    from wholecurve.models.resolve import ModelFiles

_PORT_FREE_WITHIN_S = 5.0


class ManagedServer:
    """Use it as a context: inside it the server runs and is verified, after it nothing of it is left.

    ``described``: server, version, command, environment, and each setting in effect; ``sources`` says where each was
    read. ``ready_s``: from the start of its process until it was verified. Errors are UserErrors that name `label`.
    """

    def __init__(
        self,
        recipe: ServerRecipe,
        files: "ModelFiles | None",
        options: Any,
        log: Path,
        needs: Needs,
        *,
        label: str | None = None,
        api_key: str | None = None,
        ready_within_s: float | None = None,
        grace_s: float = 10.0,
    ):
        self.recipe, self.files, self.options, self.log, self.needs = recipe, files, options, log, needs
        self.label = label or recipe.name
        self._api_key = api_key
        self._ready_within_s = recipe.ready_within_s if ready_within_s is None else ready_within_s
        self._grace_s = grace_s
        self._process: KeptProcess | None = None
        self._launch: Launch | None = None
        self._pages: Pages | None = None
        self.described: dict[str, Any] = {}
        self.ready_s: float | None = None

    def __enter__(self) -> "ManagedServer":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        self._stop(complain=kind is None)

    def start(self) -> None:
        """Start it and return when it is ready and verified; UserError, with nothing left running, when it is not."""
        try:
            self.recipe.require_available()
            self._start()
        except UserError as error:
            self._stop(complain=False)
            raise UserError(f"contender {self.label}: {error}") from None
        except BaseException:
            self._stop(complain=False)
            raise

    def stop(self) -> None:
        """End it and all that it started; UserError when its port stays taken. Does nothing when it does not run."""
        self._stop(complain=True)

    def restart(self) -> None:
        """End what is left of it and start it anew, on another port."""
        self.stop()
        self.start()

    def _start(self) -> None:
        if not self.recipe.starts:
            self._attach()
            return
        started = time.monotonic()
        name = self.recipe.model_name(self.files, self.options)
        self._launch = Launch(self.needs, self.options, self.files, name, ports.take_port())
        command = self.recipe.command(self._launch)
        environment = {**self.recipe.environment(self._launch), **self.options.environment}
        root = f"http://{self._launch.host}:{self._launch.port}"
        self._process = KeptProcess(command, environment, self.log, self._grace_s)
        self._pages = Pages(root, api_key=self._api_key, timeout_s=self._ready_within_s)
        wait_ready(self._pages, self.recipe.health_path, self._death, self._ready_within_s)
        first_token(self._pages, name, self._death)
        settings = self.recipe.read_settings(self._pages, self._launch, self._process.log_text())
        self._verify(settings)
        self.ready_s = time.monotonic() - started
        self.described = {
            **_described(self.recipe.name, settings),
            "command": portable(shlex.join(command)),
            "environment": {variable: portable(value) for variable, value in environment.items() if value is not None},
        }

    def _attach(self) -> None:
        """Look at a server that runs already."""
        root, api = self.recipe.address(self.options)
        self._pages = Pages(root, api, self._api_key)
        name = self.recipe.model_name(self.files, self.options, self._pages)
        self._launch = Launch(self.needs, self.options, self.files, name, port=0)
        settings = self.recipe.read_settings(self._pages, self._launch, "")
        require_at_least(settings, {"max_model_tokens": self.needs.sequence_tokens})
        self.described = {**_described(self.recipe.name, settings), "url": f"{root}{api}"}

    def _verify(self, settings: dict[str, Setting]) -> None:
        needs, launch = self.needs, self._launch
        require_equal(
            settings,
            {
                "model": launch.model_name,
                "dtype": needs.dtype,
                "threads": launch.threads,
                "prefix_cache": needs.prefix_cache,
                **self.recipe.expected(launch),
            },
        )
        require_at_least(
            settings,
            {
                "max_model_tokens": needs.sequence_tokens,
                "max_sequences": launch.max_sequences,
                "cache_tokens": needs.cache_tokens,
            },
        )
        if self.recipe.takes_token_ids:
            seen = probe_prefix_cache(
                self._pages, launch.model_name, needs.sequence_tokens, vocab_size(self.files), needs.prefix_cache
            )
            if seen is not None:
                settings["prefix_cache"] = Setting(*seen)

    def _death(self) -> str | None:
        """How its process ended, with what it said last; None while it runs."""
        if self._process is None or self._process.poll() is None:
            return None
        return f"{self._process.how_it_ended()}: {self._process.log_tail()} (log: {self.log})"

    def _stop(self, complain: bool) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop()
        if self._launch is None:
            return
        port, self._launch, self._pages = self._launch.port, None, None
        if not self.recipe.starts:
            return
        ports.give_back(port)
        until = time.monotonic() + _PORT_FREE_WITHIN_S
        while not ports.is_free(port):
            if time.monotonic() > until:
                if complain:
                    raise UserError(f"contender {self.label}: port {port} is still taken after its server ended")
                return
            time.sleep(0.05)

    def is_alive(self) -> bool:
        """Whether its process runs; a server that runs already counts as alive while it is looked at."""
        if not self.recipe.starts:
            return self._launch is not None
        return self._process is not None and self._process.poll() is None

    def require_alive(self) -> None:
        """UserError that says how it ended, and what it said last, when it does not run."""
        if reason := self._death():
            raise UserError(f"contender {self.label}: its server {reason}")
        if self._launch is None:
            raise UserError(f"contender {self.label}: its server was not started")

    def endpoint(self, api: str = "completions", **others: Any) -> Endpoint:
        """Where a client sends requests; `others` are fields of Endpoint."""
        if api not in self.recipe.apis:
            raise UserError(f"contender {self.label}: server {self.recipe.name} has no API {api!r}")
        self.require_alive()
        pages, launch = self._pages, self._launch
        profile = self.options.profile if not self.recipe.starts else self.recipe.profile
        fields = {"profile": profile, "api_key": self._api_key}
        if launch.files is not None:
            fields["tokenizer"] = str(launch.files.hf_folder())
        return Endpoint(f"{pages.root}{pages.api}", launch.model_name, api, **{**fields, **others})

    def counters(self) -> Counters | None:
        """Its counters now; None when it has none."""
        self.require_alive()
        try:
            return read_counters(self._pages)
        except UserError as error:
            raise UserError(f"contender {self.label}: {error}") from None

    def pids(self) -> list[int]:
        """Its processes, parents before children; empty when it does not run."""
        return self._process.pids() if self._process else []

    def resident_bytes(self) -> int | None:
        """Memory that its processes hold; None where the system does not tell."""
        return self._process.resident_bytes() if self._process else None

    def cpu_seconds(self) -> float | None:
        """Processor time that its processes used so far; None where the system does not tell."""
        return self._process.cpu_seconds() if self._process else None

    def pause(self) -> None:
        """Stop all its processes where they are, so that others can be measured."""
        if self._process:
            self._process.pause()

    def resume(self) -> None:
        """Let it go on after `pause`."""
        if self._process:
            self._process.resume()


def _described(server: str, settings: dict[str, Setting]) -> dict[str, Any]:
    values = {name: found.value for name, found in settings.items()}
    values = {name: portable(value) if isinstance(value, str) else value for name, value in values.items()}
    return {"server": server, **values, "sources": {name: found.source for name, found in settings.items()}}
