"""The GPU script's steps on a CPU: what it writes, what it needs, that it stops in time and goes on after a kill."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import wholecurve

# only these (and what belongs to them) are on the GPU machines that the script is for
ABSENT = ("pydantic", "typer", "rich", "matplotlib", "seaborn", "gguf", "platformdirs", "transformers", "tqdm", "yaml")
FILES = (
    "checks.jsonl",
    "compiled_ahead.json",
    "device.json",
    "not_run.json",
    "provenance.json",
    "rows.csv",
    "rows.jsonl",
)


def rehearse(folder, *options, code=0):
    blocked = f"import sys; sys.modules |= dict.fromkeys({ABSENT!r})"
    run = "from wholecurve.profiling.gpu_day import main; main()"
    arguments = ["--out", str(folder), "--kernels", "rms_norm", *options]
    command = [sys.executable, "-c", f"{blocked}; sys.argv = ['gpu_day', *{arguments!r}]; {run}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == code, result.stderr
    return result


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    folder = tmp_path_factory.mktemp("days") / "day"
    return folder, rehearse(folder, "--rehearse").stdout


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
    assert json.loads((folder / "compiled_ahead.json").read_text())["failed"] == []


def test_rows_keep_their_samples(day):
    rows = lines(day[0] / "rows.jsonl")
    assert {row["form"] for row in rows} >= {"cpu", "eager"}
    for row in rows:
        assert row["kernel"] == "rms_norm" and row["median_us"] > 0 and len(row["samples_us"]) == row["n_samples"]
    assert (day[0] / "rows.csv").read_text().count("\n") == len(rows) + 1


def test_the_same_command_goes_on_where_it_was_killed(day):
    folder, _ = day
    before = (folder / "checks.jsonl").read_text(), (folder / "rows.jsonl").read_text()
    rehearse(folder, "--rehearse")
    assert ((folder / "checks.jsonl").read_text(), (folder / "rows.jsonl").read_text()) == before
    (folder / "rows.jsonl").unlink()  # killed after the checks
    rehearse(folder, "--rehearse")
    again = [(row["form"], row["case"]) for row in lines(folder / "rows.jsonl")]
    assert (folder / "checks.jsonl").read_text() == before[0]
    assert again == [(row["form"], row["case"]) for row in map(json.loads, before[1].splitlines())]


def test_what_the_budget_did_not_reach_is_named(tmp_path):
    rehearse(tmp_path / "late", "--rehearse", "--budget", "0")
    left = json.loads((tmp_path / "late" / "not_run.json").read_text())["budget_used_up_before"]
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
