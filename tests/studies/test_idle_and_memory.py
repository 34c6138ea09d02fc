"""Workers that wait leave the processor alone, or are stopped; and memory is the kernel's count."""

import mmap
import os
import signal
import subprocess
import sys
import time

import pytest

from wholecurve.studies.idle import stop_what_spins
from wholecurve.studies.memory import peak_resident_bytes, reset_peak, resident_bytes
from wholecurve.studies.process import WorkerProcess
from wholecurve.studies.session import Session

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def state(pid):
    """One letter: R runs, S sleeps, T is stopped, Z has ended."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def wait_for(pid, letters, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if state(pid) in letters:
            return True
        time.sleep(0.02)
    return False


class FakeWorker:
    """Claims to use `share` of a core."""

    def __init__(self, share):
        self.share, self.started, self.calls = share, time.perf_counter(), []

    def cpu_seconds(self):
        return None if self.share is None else self.share * (time.perf_counter() - self.started)

    def pause(self):
        self.calls.append("pause")

    def resume(self):
        self.calls.append("resume")

    def ask(self, command, **arguments):
        self.calls.append(command)
        return {"tokens": {}}


def fake_session(share):
    return Session(None, None, FakeWorker(share), {}, None)


def test_only_what_spins_is_stopped_and_it_is_awake_while_it_is_asked():
    sessions = {"quiet": fake_session(0.002), "spinning": fake_session(0.9), "unknown": fake_session(None)}
    found = stop_what_spins(sessions, seconds=0.05)
    assert [found[name]["stopped"] for name in sessions] == [False, True, False]
    assert found["spinning"]["cpu_share"] == pytest.approx(0.9, rel=0.05) and found["unknown"]["cpu_share"] is None
    for session in sessions.values():
        session.generate([])
    assert sessions["spinning"].worker.calls == ["pause", "resume", "generate", "pause"]
    assert sessions["quiet"].worker.calls == sessions["unknown"].worker.calls == ["generate"]


def test_a_stopped_worker_is_stopped_and_goes_on(tmp_path):
    with WorkerProcess("w", tmp_path / "w.log", 1) as worker:
        pid = worker._process.pid
        assert worker.cpu_seconds() >= 0
        worker.pause()
        assert wait_for(pid, "T")
        worker.resume()
        assert wait_for(pid, "SR")
        worker.pause()
    assert worker._process.returncode == 0, "a stopped worker must end by itself, not be killed after a wait"


def test_a_stopped_worker_ends_with_a_killed_study(tmp_path):
    """Its stdin ends too, but a stopped process does not see that."""
    script = (
        "import time; from pathlib import Path\n"
        "from wholecurve.studies.process import WorkerProcess\n"
        f"w = WorkerProcess('w', Path({str(tmp_path / 'w.log')!r}), 1)\n"
        "request = {'request_id': 'a', 'prompt_ids': [1], 'output_tokens': 1}\n"
        "try: w.ask('generate', requests=[request])\n"  # it answers with an error: there is no contender
        "except Exception: pass\n"
        "w.pause(); print(w._process.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert wait_for(pid, "T")
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    try:
        ended = wait_for(pid, "Z")
    except FileNotFoundError:
        ended = True
    assert ended, "a stopped worker outlived its study"


def test_peak_memory_begins_anew_and_sees_what_was_given_back():
    if not reset_peak():
        pytest.skip("the kernel does not let a process reset its peak")
    before = resident_bytes()
    block = mmap.mmap(-1, 64 * 2**20)  # straight from the kernel: the heap may have as much left over
    block.write(b"x" * len(block))
    during = resident_bytes()
    assert during - before > 48 * 2**20
    block.close()
    assert peak_resident_bytes() > during - 2**20  # the kernel counts in batches
    reset_peak()
    assert peak_resident_bytes() < during - 32 * 2**20
