"""Worker processes: errors come back as one line, a dead worker is noticed, an orphan ends itself."""

import os
import signal
import subprocess
import sys
import time

import pytest

from wholecurve.errors import UserError
from wholecurve.studies.process import WorkerProcess


def is_alive(pid):
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def settings(folder):
    return {
        "hf_folder": str(folder), "gguf": None, "dtype": "float32", "threads": 1, "max_batch_tokens": 64,
        "max_sequences": 4, "cache_tokens": 512,
    }  # fmt: skip


def test_error_of_a_worker_is_one_line_and_it_goes_on(tmp_path, tiny_folder):
    with WorkerProcess("ours", tmp_path / "ours.log", 1) as worker:
        with pytest.raises(UserError, match=r"contender ours: .*config\.json: missing"):
            worker.ask("start", engine="wholecurve", settings=settings(tmp_path))
        described = worker.ask("start", engine="wholecurve", settings=settings(tiny_folder))
        assert described["dtype"] == "float32" and described["threads"] == 1
        request = {"request_id": "a", "prompt_ids": [1, 2, 3], "output_tokens": 5}
        assert len(worker.ask("generate", requests=[request])["tokens"]["a"]) == 5
        with pytest.raises(UserError, match="outside the vocabulary"):
            worker.ask("generate", requests=[{**request, "prompt_ids": [99999]}])


def test_dead_worker_is_named_with_its_log(tmp_path):
    with WorkerProcess("ours", tmp_path / "ours.log", 1) as worker:
        os.kill(worker._process.pid, signal.SIGKILL)
        with pytest.raises(
            UserError, match=r"contender ours: its process ended with code -9 during start; see .*ours\.log"
        ):
            worker.ask("start", engine="wholecurve", settings={})


def test_worker_ends_with_its_parent_in_the_middle_of_work(tmp_path, tiny_folder):
    """The parent is killed while the worker measures a point that would take minutes."""
    script = (
        "import sys; from pathlib import Path\n"
        "from wholecurve.studies.process import WorkerProcess\n"
        f"w = WorkerProcess('w', Path({str(tmp_path / 'w.log')!r}), 1)\n"
        f"w.ask('start', engine='wholecurve', settings={settings(tiny_folder)!r})\n"
        "print(w._process.pid, flush=True)\n"
        "r = [{'request_id': str(i), 'prompt_ids': [1] * 8, 'output_tokens': 100} for i in range(2000)]\n"
        "w.ask('decode', requests=r, concurrency=1, warm_up=[])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    time.sleep(0.5)
    assert is_alive(pid)
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not is_alive(pid)), "the worker outlived its parent"
