"""The study's side of a worker process: start it, ask it, stop it while others measure, end it."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from wholecurve.errors import UserError


@dataclass(frozen=True)
class Launch:
    """How a worker is started: by which interpreter, and with which environment variables beside the study's own."""

    python: Path = Path(sys.executable)
    environment: dict[str, str] = field(default_factory=dict)


class WorkerProcess:
    """One worker. `label` names it in errors; its stderr is appended to `log`."""

    def __init__(self, label: str, log: Path, threads: int, launch: Launch | None = None):
        self.label, self.log = label, log
        launch = launch or Launch()
        log.parent.mkdir(parents=True, exist_ok=True)
        # Set before the libraries load: they read it once.
        common = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        with log.open("a", encoding="utf-8") as stderr:
            self._process = subprocess.Popen(
                [str(launch.python), "-m", "wholecurve.studies.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **common, **launch.environment},
                start_new_session=True,  # Ctrl-C reaches the study alone, which ends its workers
            )

    def ask(self, command: str, **arguments) -> dict:
        """Send one command and wait for its answer; UserError when the worker fails or dies."""
        try:
            self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            raise UserError(
                f"contender {self.label}: its process ended with code {code} during {command}; see {self.log}"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(f"contender {self.label}: {answer['error']} (log: {self.log})")
        return answer["ok"]

    def cpu_seconds(self) -> float | None:
        """Processor time that it and all its threads have used so far; None where the system does not tell."""
        try:
            text = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8")
        except OSError:
            return None
        user, system = text.rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def pause(self) -> None:
        """Stop all its threads where they are."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused worker go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """End the process and wait for it."""
        if self._process.poll() is None:
            self.resume()
            self._process.stdin.close()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, *_) -> None:
        self.close()
