"""A whole study on a tiny model: complete, resumable after kill -9, never mixed with another plan.

Slow part: every session starts two worker processes and a reference (about 3 s each for importing torch).
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from wholecurve.errors import UserError
from wholecurve.runs import RunFolder
from wholecurve.studies.plan import read_plan
from wholecurve.studies.protocol import PointSpec, schedule
from wholecurve.studies.session import REDUCE
from wholecurve.studies.study import Study

CLI = [sys.executable, "-c", "from wholecurve.cli import main; main()"]


def start(plan, out):
    return subprocess.Popen([*CLI, "study", str(plan), "--out", str(out)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)  # fmt: skip


def finished_points(out):
    return {path.name: path.read_bytes() for path in (out / "points").glob("*.json")}


def worker_pids():
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    command = file.read()
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if b"wholecurve.studies.worker" in command and MARK.encode() in file.read():
                        found.append(int(entry))
            except OSError:
                continue
    return found


MARK = f"WHOLECURVE_TEST_MARK={os.getpid()}"


@pytest.mark.timeout(280)
def test_killed_three_times_the_study_ends_complete_and_nothing_is_measured_twice(plan_document, write_plan, tmp_path,
                                                                                  monkeypatch):  # fmt: skip
    monkeypatch.setenv(*MARK.split("="))
    plan_path, out = write_plan(plan_document), tmp_path / "run"
    expected = schedule(read_plan(plan_path))
    rng, before = random.Random(5), {}
    for kill_at in sorted(rng.sample(range(1, len(expected) - 1), 3)):
        process = start(plan_path, out)
        while len(finished_points(out)) < kill_at and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.random() * 0.2)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        now = finished_points(out)
        assert before.items() <= now.items(), "a finished point was lost or measured again"
        before = now
        deadline = time.monotonic() + 20
        while worker_pids() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not worker_pids(), "workers of the killed study are still running"
    process = start(plan_path, out)
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    after = finished_points(out)
    assert before.items() <= after.items()
    assert set(after) == {f"{p.point_id}.json" for p in expected}
    run = RunFolder.open(out)
    points = run.points()
    assert sorted(points["order"]) == [p.order for p in expected]
    assert not list(out.rglob("*.partial")), "half-written files were left"
    check_derived(run, points)
    check_report(stdout)
    check_figures(out)


def check_derived(run, points):
    """Every stored number comes out of the stored trace again."""
    for row in points.to_dict("records"):
        fields = ("order", "contender", "workload", "load", "repeat")
        spec = PointSpec(**{name: row[name] for name in fields}).point_id
        for name, value in REDUCE[row["workload"]](run.trace(spec), row["load"]).items():
            if value is not None:
                assert row[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), name


def check_report(text):
    tables = ("Decode: median", "Prefill: median", "ours over ours again")
    for words in ("Machine", "Ceilings", "Predicts", "Agrees", *tables, "noise", "Figures:"):
        assert words in text, f"the report does not say {words!r}"


def check_figures(out):
    names = {path.name for path in (out / "figures").iterdir()}
    for name in ("throughput_vs_speed", "throughput_vs_concurrency", "prefill_throughput", "multipliers_ours-again"):
        assert {f"{name}.light.svg", f"{name}.dark.svg", f"{name}.png", f"{name}.json"} <= names
        sidecar = json.loads((out / "figures" / f"{name}.json").read_text())
        assert sidecar["alt"] and sidecar["caption"] and len(sidecar["data_sha256"]) == 64


@pytest.mark.timeout(200)
def test_transformers_static_batches_beside_ours(plan_document, write_plan, tmp_path):
    """One short study with the second contender: agreement is checked, rows are complete, batching is static."""
    plan_document["contenders"] = [
        {"name": "ours", "engine": "wholecurve"},
        {"name": "transformers", "engine": "transformers"},
    ]
    plan_document |= {"repeats": 1, "decode": {**plan_document["decode"], "concurrency": [1, 3]},
                      "prefill": {"step_tokens": [16], "requests": 2}}  # fmt: skip
    plan = read_plan(write_plan(plan_document))
    run = Study(plan, tmp_path / "run").run()
    points = run.points()
    assert len(points) == 6
    agreement = run.read("agreement")
    assert {name: found["best_share"] for name, found in agreement.items()} == {"ours": 1, "transformers": 1}
    trace = run.trace("decode-transformers-00003-r1")
    first_batch, second_batch = trace[:3], trace[3:6]
    ends = [request.finished_s for request in first_batch]
    assert len({request.arrivals_s[0] for request in first_batch}) == 1, "a static batch starts together"
    assert min(request.arrivals_s[0] for request in second_batch) > max(ends), "the next batch waits for the last row"
    assert sorted(request.scheduled_s for request in second_batch) == sorted(ends), "slots free one by one"
    described = points.set_index("contender")["settings"]["transformers"].iloc[0]
    assert described["batching"] == "static" and described["dtype"] == "float32"


@pytest.mark.timeout(280)
def test_a_race_is_tuned_measured_and_reported(plan_document, write_plan, tmp_path):
    """Batches with tuning on the tiny model, our engine twice: the winner runs, its control with it."""
    del plan_document["decode"], plan_document["prefill"]
    plan_document |= {
        "repeats": 1,
        "batch": {"concurrency": [1, 3], "prompt_tokens": 8, "output_tokens": 6, "min_requests": 2},
        "tuning": {"concurrency": [3], "candidates": {"ours": [{"form": "torch", "block_size": 8}, {"block_size": 5}]}},
    }
    plan_path, out = write_plan(plan_document), tmp_path / "run"
    process = start(plan_path, out)
    stdout, stderr = process.communicate(timeout=250)
    assert process.returncode == 0, stderr
    run = RunFolder.open(out)
    points = run.points()
    check_derived(run, points)
    assert sorted(points["load"]) == [1, 1, 3, 3] and set(points["workload"]) == {"batch"}
    assert points.set_index("load")["n_completed"].to_dict() == {1: 2, 3: 3}
    assert (points["output_throughput_tok_per_s"] > points["output_throughput_full_tok_per_s"]).all()
    tuning = run.read("tuning")["contenders"]["ours"]
    winner = tuning["candidates"][tuning["winner"]]
    assert len(tuning["candidates"]) == 3 and winner["score_tok_per_s"] == max(
        candidate["score_tok_per_s"] or 0 for candidate in tuning["candidates"]
    )
    wanted = winner["settings"].get("block_size", 16)
    assert {settings["block_size"] for settings in points["settings"]} == {wanted}
    memory = points[["loaded_rss_bytes", "peak_rss_bytes", "rss_bytes"]]
    assert (memory > 50 * 2**20).all().all() and (memory["peak_rss_bytes"] >= memory["rss_bytes"] - 2**20).all()
    assert {settings["idle"]["stopped"] for settings in points["settings"]} <= {True, False}
    for words in ("Race: all requests start together", "Tuning", "Resident memory", "ours over ours again (batch"):
        assert words in stdout
    names = {path.name for path in (out / "figures").iterdir()}
    assert {"batch_throughput_vs_speed.png", "batch_throughput_vs_concurrency.png"} <= names
    process = start(plan_path, out)
    process.communicate(timeout=100)
    assert process.returncode == 0 and run.read("tuning")["contenders"]["ours"] == tuning


def test_another_plan_does_not_mix_into_a_run(plan_document, write_plan, tmp_path):
    out = tmp_path / "run"
    first = read_plan(write_plan(plan_document))
    RunFolder.create(out, first.document(), {"hardware": {"fingerprint": "x"}})
    plan_document["seed"] = 99
    with pytest.raises(UserError, match="another plan or harness version"):
        Study(read_plan(write_plan(plan_document)), out).run()


def test_another_machine_does_not_resume_a_run(plan_document, write_plan, tmp_path):
    plan = read_plan(write_plan(plan_document))
    RunFolder.create(tmp_path / "run", plan.document(), {"hardware": {"fingerprint": "another CPU"}})
    with pytest.raises(UserError, match=r"begun on another machine \(another CPU\)"):
        Study(plan, tmp_path / "run").run()


def test_two_studies_do_not_write_to_one_run(plan_document, write_plan, tmp_path):
    plan = read_plan(write_plan(plan_document))
    with RunFolder(tmp_path / "run").locked(), pytest.raises(UserError, match="another study is writing"):
        Study(plan, tmp_path / "run").run()


def test_missing_package_is_named_before_anything_starts(plan_document, write_plan, tmp_path, monkeypatch):
    monkeypatch.setattr("wholecurve.studies.session.find_spec", lambda name: None)
    with pytest.raises(UserError, match="contender ours: package torch is not installed"):
        Study(read_plan(write_plan(plan_document)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
