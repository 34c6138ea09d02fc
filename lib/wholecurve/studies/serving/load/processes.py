"""Several processes that send one load together, on one machine."""

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.job import Job, JobResult
from wholecurve.studies.serving.load.worker import NOW

LEAD_S = 0.1  # from when all are ready to second 0: longer than the message takes


class LoadProcess:
    """One of them. `name` stands in errors; `skew_s` makes its clock wrong, as another machine's would be."""

    def __init__(self, name: str, skew_s: float = 0.0):
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open for as long as the process
        self.connection, theirs = Pipe()
        command = [sys.executable, "-m", "wholecurve.studies.serving.load.worker", str(theirs.fileno()), str(skew_s)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                start_new_session=True,  # Ctrl-C reaches this process alone, which ends them
            )
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def put(self, message: bytes) -> None:
        """Send it a message; UserError when it is dead."""
        try:
            self.connection.send_bytes(message)
        except OSError:
            raise self._dead() from None

    def take(self) -> tuple[str, object]:
        """Wait for its next message, kind and value; UserError for an error that it reports, and when it is dead."""
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):
            raise self._dead() from None
        if kind == "error":
            raise UserError(f"{self._name}: {value}")
        return kind, value

    def close(self) -> None:
        """End it and wait for it."""
        self._process.kill()
        self._process.wait()
        self.connection.close()
        self._errors.close()

    def _dead(self) -> UserError:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        last_words = f": {lines[-1]}" if lines else ""
        return UserError(f"{self._name} ended with code {code} before its load was over{last_words}")


class ProcessGroup:
    """Processes that begin together: `prepare`, then `begin`, then `results`. Used as a context: it ends them all."""

    def __init__(self, name: str = "load", skew_s: float = 0.0):
        self.name = name
        self._skew_s = skew_s
        self._processes: list[LoadProcess] = []

    def __enter__(self) -> "ProcessGroup":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids, in the order of the jobs."""
        return [process.pid for process in self._processes]

    def prepare(self, jobs: Sequence[Job]) -> None:
        """Start a process per job and wait until each has opened its client.

        UserError when a job cannot be sent to another process, and for whatever a process reports.
        """
        try:
            messages = [pickle.dumps(job) for job in jobs]
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f"{self.name}: the load cannot go to other processes ({error}); sessions, endpoint and client factory "
                "must be plain values or names that a module holds"
            ) from None
        for number in range(1, len(jobs) + 1):
            self._processes.append(LoadProcess(f"{self.name}: process {number} of {len(jobs)}", self._skew_s))
        for process, message in zip(self._processes, messages, strict=True):
            process.put(message)
        for process in self._processes:
            process.take()  # "ready"

    def now(self) -> float:
        """The monotonic clock of the processes."""
        self._processes[0].put(NOW)
        return self._processes[0].take()[1]

    def begin(self, start: float) -> None:
        """Let the window of all begin at `start`, a moment of their clock that is still to come."""
        for process in self._processes:
            process.put(pickle.dumps(start))

    def results(self, on_progress: Callable[[int], None] | None = None) -> list[JobResult]:
        """Wait until all are done. `on_progress` is called with the number of requests that have ended.

        UserError when one dies or fails.
        """
        found: dict[int, JobResult] = {}
        ended = [0] * len(self._processes)
        while len(found) < len(self._processes):
            running = {p.connection: i for i, p in enumerate(self._processes) if i not in found}
            for connection in wait(list(running)):
                index = running[connection]
                kind, value = self._processes[index].take()
                if kind == "result":
                    found[index] = value
                ended[index] = len(value.traces) if kind == "result" else value
            if on_progress is not None:
                on_progress(sum(ended))
        return [found[index] for index in range(len(self._processes))]

    def close(self) -> None:
        """End all processes."""
        while self._processes:
            self._processes.pop().close()


def run_processes(jobs: Sequence[Job], on_progress: Callable[[int], None] | None) -> tuple[float, list[JobResult]]:
    """Send the shares of a load from a process each; returns second 0 on the monotonic clock, and what came of them."""
    with ProcessGroup() as group:
        group.prepare(jobs)
        start = time.monotonic() + LEAD_S
        group.begin(start)
        return start, group.results(on_progress)
