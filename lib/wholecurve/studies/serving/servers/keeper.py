"""Stands between a study and one server, so that nothing of the server outlives the study.

Run by its path and with the standard library alone: `python -I keeper.py PARENT_PID GRACE_S COMMAND...`. It ends the
server and everything below it when its stdin is closed, when the process PARENT_PID is no longer its parent (that one
was killed), on SIGTERM or SIGINT, and when the server itself has ended. Processes that leave the server's group or
session, or that lose their parent, stay below the keeper: it is a child subreaper (prctl(2), Linux).

It exits as the server did: with its code, or with 128 plus the number of the signal that killed it.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_LOOK_S = 1.0  # how often it looks who its parent is
_NOT_STARTED = 127  # as a shell says it


def descendants(root: int, zombies: bool = False) -> list[int]:
    """Processes below `root`, parents before their children; empty where there is no /proc.

    Those that have ended, of which only the code is left for a parent to take, are left out unless asked for.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            state, parent = entry.read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()[:2]
            if zombies or state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.parent.name))
    found: list[int] = []
    level = [root]
    while level:
        level = [pid for parent in level for pid in children.get(parent, ())]
        found += level
    return found


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_with_keeper() -> None:
    """In the server, before its program runs: a keeper that is killed takes the server with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Keeper:
    """The server and what came of it."""

    def __init__(self, command: list[str], parent: int, grace_s: float):
        self._parent, self._grace_s = parent, grace_s
        self._told_to_end = False
        self.code: int | None = None  # of the server, negative for a signal
        self._wake, wake_in = os.pipe()
        for end in (self._wake, wake_in):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_in)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that it wakes the keeper
        _adopt_orphans()
        # Nobody else waits for it here: Popen must not, or its code would be lost.
        self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_end_with_keeper)

    def _end(self, *_) -> None:
        self._told_to_end = True

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._server.pid:
                    self.code = self._server.returncode = os.waitstatus_to_exitcode(ended[1])

    def _sleep(self, seconds: float, watched: list[int]) -> list[int]:
        """Sleep until a signal comes or one of `watched` can be read; returns those."""
        ready = select.select([self._wake, *watched], [], [], seconds)[0]
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        self._reap()
        return [one for one in ready if one != self._wake]

    def watch(self) -> None:
        """Return when the server has ended, or has to."""
        stdin = sys.stdin.fileno()
        while self.code is None and not self._told_to_end:
            if os.getppid() != self._parent or (self._sleep(_LOOK_S, [stdin]) and not os.read(stdin, 4096)):
                return

    def end(self) -> None:
        """Ask the server to end, then kill whatever is left below."""
        if self.code is None:
            # stopped processes take no signal but these
            signal_all([self._server.pid], signal.SIGTERM)
            signal_all([*descendants(os.getpid()), self._server.pid], signal.SIGCONT)
            until = time.monotonic() + self._grace_s
            while self.code is None and (left := until - time.monotonic()) > 0:
                self._sleep(left, [])
        if self.code is None:
            signal_all([self._server.pid], signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # what a system without /proc can do
            os.killpg(self._server.pid, signal.SIGKILL)
        # a zombie may be the first thread of a process whose others still end, so it counts
        while self.code is None or (left_over := descendants(os.getpid(), zombies=True)):
            if self.code is not None:
                signal_all(left_over, signal.SIGKILL)
            self._sleep(0.02, [])


def main() -> None:
    """Start the command and stay until nothing of it is left."""
    parent, grace_s, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    try:
        keeper = Keeper(command, parent, grace_s)
    except OSError as error:
        print(f"{command[0]}: it cannot be started ({error.strerror})", file=sys.stderr)
        sys.exit(_NOT_STARTED)
    keeper.watch()
    keeper.end()
    sys.exit(keeper.code if keeper.code >= 0 else 128 - keeper.code)


if __name__ == "__main__":
    main()
