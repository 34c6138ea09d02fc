"""The GPU script's steps on a CPU: what it writes, what it needs, that it stops in time and goes on after a kill."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import wholecurve

# only these (and what belongs to them) are on the GPU machines that the script is for
ABSENT = ("pydantic", "typer", "rich", "matplotlib", "seaborn", "gguf", "platformdirs", "transformers", "tqdm", "yaml")
ABSENT += ("scipy", "safetensors", "tokenizers", "xgrammar", "httpx", "fastapi", "starlette", "uvicorn", "orjson")
FILES = (
    "checks.jsonl",
    "compiled_ahead.json",
    "device.json",
    "not_run.json",
    "provenance.json",
    "rows.csv",
    "rows.jsonl",
)
ENGINE_FILES = ("compiled_ahead.json", "device.json", "engine_checks.jsonl", "not_run.json", "provenance.json")
ENGINE_FILES += ("rows.csv", "steps")
STUDIES = {
    "decode-8-long-contexts-0-drafts-eager": 2,
    "decode-8-long-contexts-3-drafts-eager": 2,
    "decode-own-context-0-drafts-eager": 2,
    "decode-own-context-3-drafts-eager": 2,
    "prefill": 2,
}


def rehearse(folder, *options, code=0):
    blocked = f"import sys; sys.modules |= dict.fromkeys({ABSENT!r})"
    run = "from wholecurve.profiling.gpu_day import main; main()"
    kernels = [] if "--kernels" in options else ["--kernels", "rms_norm"]
    arguments = ["--out", str(folder), *kernels, *options]
    command = [sys.executable, "-c", f"{blocked}; sys.argv = ['gpu_day', *{arguments!r}]; {run}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == code, result.stderr
    return result


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    folder = tmp_path_factory.mktemp("days") / "day"
    return folder, rehearse(folder, "--rehearse", "--no-engine").stdout


@pytest.fixture(scope="module")
def engine_day(tmp_path_factory):
    """The engine's part alone: no kernel is named."""
    folder = tmp_path_factory.mktemp("days") / "engine"
    return folder, rehearse(folder, "--rehearse", "--kernels").stdout


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_needs_torch_triton_numpy_and_pandas_alone_and_writes_one_folder(day):
    folder, printed = day
    assert sorted(path.name for path in folder.iterdir()) == list(FILES)
    assert "1 of 1 checks passed" in printed and "0 parts not run" in printed
    provenance = json.loads((folder / "provenance.json").read_text())
    assert (
        provenance["rehearsal"] and {"torch", "triton"} <= set(provenance["packages"]) and provenance["hardware"]["cpu"]
    )
    assert json.loads((folder / "not_run.json").read_text()) == {"budget_used_up_before": []}
    ahead = json.loads((folder / "compiled_ahead.json").read_text())
    assert ahead["failed"] == [] and ahead["jobs"] == 2


def test_rows_keep_their_samples(day):
    rows = lines(day[0] / "rows.jsonl")
    assert {row["form"] for row in rows} >= {"cpu", "eager"}
    for row in rows:
        assert row["kernel"] == "rms_norm" and row["median_us"] > 0 and len(row["samples_us"]) == row["n_samples"]
    assert (day[0] / "rows.csv").read_text().count("\n") == len(rows) + 1


def test_the_engine_is_checked_before_its_steps_are_timed(engine_day):
    folder, printed = engine_day
    ahead = json.loads((folder / "compiled_ahead.json").read_text())
    assert ahead["failed"] == [] and ahead["jobs"] == 3
    assert sorted(path.name for path in folder.iterdir()) == list(ENGINE_FILES)
    checks = lines(folder / "engine_checks.jsonl")
    assert [row["case"] for row in checks] == ["graphs", "speculation", "graphs, speculation"]
    assert [row["problem"] for row in checks] == [""] * 3
    assert checks[0]["replayed_steps"] > 0
    assert printed.index("engine: 3 variants checked, 0 wrong") < printed.index("decode-c0001-r1")


def test_steps_are_studies_that_can_be_compared(engine_day):
    steps = engine_day[0] / "steps"
    assert {path.name: len(list((path / "cells").iterdir())) for path in steps.iterdir()} == STUDIES
    rows = [json.loads(path.read_text()) for path in steps.glob("*/cells/*.json")]
    assert all(row["step_median_ms"] > 0 and row["bound_ms"] > 0 for row in rows)
    assert {row["drafts"] for row in rows} == {None, 0, 3}
    assert {row["tokens_per_step"] for row in rows if row["drafts"] == 3} == {2.734375}
    contexts = {row["cached_tokens"] for row in rows if row["kind"] == "decode"}
    assert len(contexts) == 1
    for folder in steps.glob("decode-own*"):
        assert "context scaled down from 131,072" in json.loads((folder / "scaling.json").read_text())["context"]
        assert (folder / "points.csv").exists()


def test_the_same_command_goes_on_where_it_was_killed(day):
    folder, _ = day
    before = (folder / "checks.jsonl").read_text(), (folder / "rows.jsonl").read_text()
    rehearse(folder, "--rehearse", "--no-engine")
    assert ((folder / "checks.jsonl").read_text(), (folder / "rows.jsonl").read_text()) == before
    (folder / "rows.jsonl").unlink()  # killed after the checks
    rehearse(folder, "--rehearse", "--no-engine")
    again = [(row["form"], row["case"]) for row in lines(folder / "rows.jsonl")]
    assert (folder / "checks.jsonl").read_text() == before[0]
    assert again == [(row["form"], row["case"]) for row in map(json.loads, before[1].splitlines())]


def test_a_killed_engine_part_measures_only_the_cells_that_are_missing(engine_day):
    folder, _ = engine_day
    cells = sorted((folder / "steps").glob("*/cells/*.json"))
    kept = {path: path.read_bytes() for path in (*cells[1:], folder / "engine_checks.jsonl")}
    cells[0].unlink()
    rehearse(folder, "--rehearse", "--kernels")
    assert cells[0].exists() and {path: path.read_bytes() for path in kept} == kept


def test_what_the_budget_did_not_reach_is_named(tmp_path):
    rehearse(tmp_path / "late", "--rehearse", "--budget", "0")
    left = json.loads((tmp_path / "late" / "not_run.json").read_text())["budget_used_up_before"]
    assert "checks of the engine" in left and "decode-c0001-r1 of decode-own-context-0-drafts-eager" in left
    assert "checks of rms_norm" in left and any(part.startswith("own choice of rms_norm") for part in left)
    assert not (tmp_path / "late" / "rows.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--kernels", "flash", "--rehearse"], "no kernel flash; there are rms_norm"), ([], "torch sees no CUDA device")],
)
def test_wrong_use_is_one_line(tmp_path, options, message):
    result = rehearse(tmp_path / "x", *options, code=2)
    assert message in result.stderr and "Traceback" not in result.stderr and not (tmp_path / "x").exists()


def test_it_is_in_the_makefile():
    makefile = (Path(wholecurve.__file__).parents[2] / "Makefile").read_text()
    assert "gpu-day:" in makefile and "wholecurve.profiling.gpu_day" in makefile
