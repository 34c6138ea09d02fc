"""The study's side of a keeper: the server's processes started, measured, stopped while others run, and ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from wholecurve.studies.serving.servers import keeper
from wholecurve.studies.serving.servers.keeper import descendants, signal_all

_LINE = 300  # characters of a log line in an error
_AFTER_GRACE_S = 15.0  # for the keeper to kill and to see everything go


class KeptProcess:
    """A command and all that it starts, below one keeper. Its output is appended to `log`.

    `environment` is laid over this process's own; a value of None takes a variable away.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str | None], log: Path, grace_s: float = 10.0):
        self._grace_s = grace_s
        log.parent.mkdir(parents=True, exist_ok=True)
        merged = {**os.environ, **environment}
        keep = [sys.executable, "-I", keeper.__file__, str(os.getpid()), str(grace_s)]
        with log.open("ab") as output:
            self._log_start = output.tell()
            self._keeper = subprocess.Popen(
                [*keep, *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={name: value for name, value in merged.items() if value is not None},
                start_new_session=True,  # Ctrl-C reaches the study alone, which ends its servers
            )
        self._log = log
        self.is_paused = False

    @property
    def pid(self) -> int:
        """Of the keeper, above all processes of the server."""
        return self._keeper.pid

    def pids(self) -> list[int]:
        """The server's processes, parents before children; empty where the system does not tell."""
        return descendants(self._keeper.pid)

    def poll(self) -> int | None:
        """None while it runs; then its exit code, or 128 plus the signal that ended it."""
        return self._keeper.poll()

    def how_it_ended(self) -> str:
        """In words, for an error."""
        code = self.poll()
        if code is not None and code > 128 and code - 128 in {number.value for number in signal.Signals}:
            name = signal.Signals(code - 128).name
            return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        return f"ended with code {code}"

    def log_text(self) -> str:
        """What it wrote so far."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode("utf-8", errors="replace")

    def log_tail(self, lines: int = 3) -> str:
        """The last lines that it wrote, in one."""
        kept = [line.strip() for line in self.log_text().splitlines() if line.strip()]
        return " | ".join(line[:_LINE] for line in kept[-lines:])

    def pause(self) -> None:
        """Stop all its threads where they are, in every process of it."""
        stopped: set[int] = set()
        # what a process started between the look and the signal is found by the next look
        while new := [pid for pid in self.pids() if pid not in stopped]:
            signal_all(new, signal.SIGSTOP)
            stopped.update(new)
        self.is_paused = True

    def resume(self) -> None:
        """Let a paused server go on."""
        signal_all(self.pids()[::-1], signal.SIGCONT)
        self.is_paused = False

    def cpu_seconds(self) -> float | None:
        """Processor time that it used so far, ended processes included; None where the system does not tell."""
        ticks = [_stat_ticks(pid) for pid in [self._keeper.pid, *self.pids()]]
        known = [each for each in ticks if each is not None]
        return sum(known) / os.sysconf("SC_CLK_TCK") if known else None

    def resident_bytes(self) -> int | None:
        """Memory that it holds: the pages of its own of every process, and the shared ones of that which has most.

        For one process this is what the kernel calls resident. None where the system does not tell.
        """
        rollups = [rollup for pid in self.pids() if (rollup := _rollup(pid)) is not None]
        if not rollups:
            return None
        return sum(private for private, _ in rollups) + max(shared for _, shared in rollups)

    def stop(self) -> None:
        """End it and everything below it; returns when nothing is left."""
        if self._keeper.stdin and not self._keeper.stdin.closed:
            self._keeper.stdin.close()
        try:
            self._keeper.wait(self._grace_s + _AFTER_GRACE_S)
        except subprocess.TimeoutExpired:
            while below := self.pids():
                signal_all(below, signal.SIGKILL)
                time.sleep(0.05)
            self._keeper.kill()
            self._keeper.wait()

    def __enter__(self) -> "KeptProcess":
        return self

    def __exit__(self, *_) -> None:
        self.stop()


def _stat_ticks(pid: int) -> int | None:
    """User and system time of a process and of those children that it has waited for, in clock ticks."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return sum(map(int, text.rsplit(")", 1)[1].split()[11:15]))


def _rollup(pid: int) -> tuple[int, int] | None:
    """Private and shared resident bytes of a process."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    except OSError:
        return None
    values = {name: 1024 * int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
    shared = values["Shared_Clean"] + values["Shared_Dirty"]
    return values["Rss"] - shared, shared
