"""A serving study that is killed with -9, again and again: nothing is lost, measured twice, or left running."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from wholecurve.runs import RunFolder

MARK = f"WHOLECURVE_SERVING_TEST={os.getpid()}"
# A study with the scripted server among those it knows, and no two seconds of watching what idles.
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import fake_openai
fake_openai.register()
from wholecurve.studies import idle
from wholecurve.studies.serving import study
study.stop_what_spins = lambda lives: idle.stop_what_spins(lives, seconds=0.05)
from wholecurve.studies.kinds import read_study_plan, study_of
study_of(read_study_plan(Path(sys.argv[2])), Path(sys.argv[3])).run()
"""


def start(plan, out):
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(plan), str(out)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip


def finished(out):
    """Finished points and tuning candidates: a number that grows as the study goes on."""
    points = {path.name: path.read_bytes() for path in (out / "points").glob("*.json")}
    tuning = out / "tuning.json"
    tried = json.loads(tuning.read_text())["contenders"]["ours"]["candidates"] if tuning.exists() else []
    return points, tried


def marked_processes():
    """Processes of the test's studies, the studies themselves left out."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{entry}/cmdline").read_bytes()
            if b"fake_openai.py" in command and MARK.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                found.append(int(entry))
        except OSError:
            continue
    return found


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "model").mkdir()
    config = {"vocab_size": 256, "max_position_embeddings": 64}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    document = {
        "name": "killed", "kind": "serving", "model": str(tmp_path / "model"), "dtype": "float32", "threads": 1,
        "repeats": 2, "slo": {"e2e_ms": 60000},
        "contenders": [{"name": "ours", "server": "fake", "settings": {"token_ms": 3}},
                       {"name": "ours again", "server": "fake", "control_of": "ours"}],
        "workload": {"kind": "lengths", "prompt_tokens": [4, 8], "output_tokens": [3, 6]},
        "load": {"closed": {"concurrency": [1, 3]}},
        "requests": {"per_slot": 2, "at_least": 6},
        "tuning": {"levels": [3], "contenders": {"ours": {"grid": {"token_ms": [2, 4]}, "finalists": 1}}},
        "maximum_load": {"by": "concurrency", "low": 2, "high": 4},
    }  # fmt: skip
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.mark.timeout(280)
def test_killed_at_any_moment_the_study_ends_complete(plan, tmp_path, monkeypatch):
    monkeypatch.setenv(*MARK.split("="))
    out, rng = tmp_path / "run", random.Random(11)
    points, tried, process = {}, [], None
    try:
        for kill_at in (2, 5, 9, 12):  # in the tuning, the first repeat, its search, the second repeat
            process = start(plan, out)
            while sum(map(len, finished(out))) < kill_at and process.poll() is None:
                time.sleep(0.005)
            time.sleep(rng.random() * 0.1)
            process.send_signal(signal.SIGKILL)
            said = process.communicate()[1]
            assert process.returncode == -signal.SIGKILL, said
            now, now_tried = finished(out)
            assert points.items() <= now.items(), "a finished point was lost or measured again"
            assert now_tried[: len(tried)] == tried, "a finished candidate was lost or measured again"
            points, tried = now, now_tried
            until = time.monotonic() + 30
            while marked_processes() and time.monotonic() < until:
                time.sleep(0.05)
            assert not marked_processes(), "servers of the killed study are still running"
        process = start(plan, out)
        said = process.communicate(timeout=200)[1]
        assert process.returncode == 0, said
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.communicate()
    after, _ = finished(out)
    assert points.items() <= after.items()
    frame = RunFolder(out).points()
    race = frame[frame["workload"] == "serving"]
    assert len(race) == 2 * 2 * 2 and len(frame) == len(race) + 2 * 2 * 2, "two probes for each search"
    assert len(set(frame["order"])) == len(frame), "a place in the study was given twice"
    assert {len(found) for found in RunFolder(out).read("maximum_load")["contenders"].values()} == {2}
    assert not list(out.rglob("*.partial")), "half-written files were left"
    assert not marked_processes()
