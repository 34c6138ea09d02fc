"""Commands of a set-up: their output in a log, their progress on the terminal, their failure in one line."""

import re
import shutil
import subprocess
import sys
from collections import deque
from pathlib import Path

from tqdm.auto import tqdm

from wholecurve.errors import UserError

_COUNTED = re.compile(r"^\[\s*(\d+)/(\d+)\]")  # ninja: [12/226] Building …
_PERCENT = re.compile(r"^\[\s*(\d+)%\]")  # make: [ 12%] Building …
_NO_INDEX = ("no matching distribution", "could not find a version", "max retries", "connection", "name resolution")


def require_program(names: tuple[str, ...], why: str, remedy: str) -> str:
    """Path of the first of `names` that is on PATH; UserError says what it is for and how to get it."""
    for name in names:
        if found := shutil.which(name):
            return found
    raise UserError(f"{why} needs {' or '.join(names)}, which is not on PATH: {remedy}")


def run_logged(command: list[str], label: str, log: Path, cwd: Path | None = None) -> None:
    """Run `command`, append what it prints to `log`, and show `label` with the progress that it prints.

    Raises UserError with the line of the output that tells most, and the log, when it fails.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    tail: deque[str] = deque(maxlen=400)
    announce(f"{label} …")
    # disable=None: without a terminal there is no bar, which would fill a log with copies of itself.
    with log.open("a", encoding="utf-8") as file, tqdm(disable=None, leave=False, dynamic_ncols=True) as bar:
        file.write(f"\n$ {' '.join(map(str, command))}\n")
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                tail.append(line.strip())
                _advance(bar, line)
        except BaseException:
            process.kill()
            raise
        finally:
            code = process.wait()
    if code:
        raise UserError(f"{label}: {_reason(list(tail), code)} (log: {log})")


def _advance(bar: tqdm, line: str) -> None:
    if found := _COUNTED.match(line):
        bar.total = int(found[2])
        bar.update(int(found[1]) - bar.n)
    elif found := _PERCENT.match(line):
        bar.total = 100
        bar.update(int(found[1]) - bar.n)


def _reason(lines: list[str], code: int) -> str:
    """The line of a failed command's output that says most."""
    known = [line for line in lines if line]
    errors = [line for line in known if "error" in line.lower()] or known
    reason = errors[-1] if errors else f"ended with code {code}"
    if any(word in line.lower() for line in errors for word in _NO_INDEX):
        reason += "; is the package index reachable?"
    return reason


def announce(text: str) -> None:
    """One line of news on the terminal; stdout stays free for what a command answers."""
    print(text, file=sys.stderr, flush=True)
