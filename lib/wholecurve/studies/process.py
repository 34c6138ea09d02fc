"""The study's side of a worker process: start it, ask it, end it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from wholecurve.errors import UserError


class WorkerProcess:
    """One worker. `label` names it in errors; its stderr is appended to `log`."""

    def __init__(self, label: str, log: Path, threads: int):
        self.label, self.log = label, log
        log.parent.mkdir(parents=True, exist_ok=True)
        # Set before the libraries load: they read it once.
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        with log.open("a", encoding="utf-8") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "wholecurve.studies.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
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

    def close(self) -> None:
        """End the process and wait for it."""
        if self._process.poll() is None:
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
