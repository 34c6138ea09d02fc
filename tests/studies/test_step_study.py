"""Step studies end to end on a tiny model: records, resuming, scaling, comparing, and the command line."""

import csv
import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from wholecurve.cli import steps as _commands  # noqa: F401  registers them
from wholecurve.cli.app import app
from wholecurve.curves.curve import Curve
from wholecurve.errors import UserError
from wholecurve.readers.plain import read_plain
from wholecurve.studies.steps import study as study_module
from wholecurve.studies.steps.acceptance import Acceptance
from wholecurve.studies.steps.comparison import compare_steps
from wholecurve.studies.steps.decode_study import DecodeOptions, decode_bytes, decode_study
from wholecurve.studies.steps.model import load_step_model
from wholecurve.studies.steps.prefill import PrefillStep
from wholecurve.studies.steps.prefill_study import PrefillOptions, prefill_study
from wholecurve.studies.steps.record import COLUMNS, StepRecord
from wholecurve.studies.steps.report import comparison_document
from wholecurve.studies.steps.study import Settings, StepStudy

NO_DRAFTS, DRAFTS = Acceptance(0, 0.75, "conditional"), Acceptance(3, 0.75, "marginal")
QUICK = Settings(samples=3, seconds=0.05, ceilings=False, memory_bytes=2**30)


@pytest.fixture(scope="module")
def model():
    return load_step_model(dummy="tiny", dtype="float32", device="cpu", form="torch", threads=1)


def decode(model, out=None, acceptance=NO_DRAFTS, concurrency=(1, 3, 6), settings=QUICK, say=lambda _: None, **options):
    return decode_study(model, DecodeOptions(acceptance, concurrency, **{"context": 64, **options}), settings, out, say)


def prefill(model, out=None, tokens=(16, 40), settings=QUICK, **options):
    return prefill_study(model, PrefillOptions(tokens, **{"chunk": 16, "cached": 32, **options}), settings, out)


def test_a_decode_record_has_a_row_per_cell_with_raw_samples(model, tmp_path):
    record = decode(model, tmp_path / "a", DRAFTS)
    rows = record.rows()
    assert [row["requests"] for row in rows] == [1, 3, 6]
    for row in rows:
        assert set(row) == {*COLUMNS, "samples_ms"}
        assert row["tokens_per_step"] == 3.25 and (row["drafts"], row["acceptance"], row["reading"]) == (
            3,
            0.75,
            "marginal",
        )
        assert row["decode_speed_tok_per_s"] == pytest.approx(3.25e3 / row["step_median_ms"])
        assert row["output_throughput_tok_per_s"] == pytest.approx(row["requests"] * row["decode_speed_tok_per_s"])
        assert len(row["samples_ms"]) == row["n_samples"] >= 3 and row["warm_up_steps"] == 2
        assert row["step_p10_ms"] <= row["step_median_ms"] <= row["step_p90_ms"]
        assert row["cached_tokens"] == 64 and row["cached_contexts"] == row["requests"]
        assert (row["source"], row["dtype"], row["form"], row["threads"]) == ("measured (cpu)", "float32", "torch", 1)
        assert row["method"] == "perf_counter" and row["new_tokens"] == 4 * row["requests"]
        assert 1 <= row["tokens_per_step_measured"] <= 4 and row["note"] is None
    document = json.loads(json.dumps(record.document(), allow_nan=False))
    assert document["step"]["kind"] == "decode" and document["provenance"]["hardware"] and document["scaling"] == {}
    with (tmp_path / "a" / "rows.csv").open() as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == list(COLUMNS) and [row["requests"] for row in table] == ["1", "3", "6"]


def test_points_are_a_curve_for_compare(model, tmp_path):
    record = decode(model, tmp_path / "a")
    frame = read_plain(tmp_path / "a" / "points.csv")
    assert frame["workload"].unique().tolist() == ["decode step, 64 cached tokens"]
    curve = Curve.from_points(frame, workload="decode step, 64 cached tokens")
    assert curve.points["load"].tolist() == [1, 3, 6]
    assert curve.points["speed"].tolist() == [row["decode_speed_tok_per_s"] for row in record.rows()]
    assert (curve.points["throughput"] / curve.points["speed"]).tolist() == pytest.approx([1, 3, 6])


def test_a_prefill_record_counts_new_tokens_only(model, tmp_path):
    rows = prefill(model, tmp_path / "a").rows()
    assert [(row["new_tokens"], row["requests"], row["chunk_tokens"]) for row in rows] == [(16, 1, 16), (40, 3, 16)]
    for row in rows:
        assert row["cached_tokens"] == 32
        assert row["input_throughput_tok_per_s"] == pytest.approx(1e3 * row["new_tokens"] / row["step_median_ms"])
        assert row["decode_speed_tok_per_s"] is None and row["output_throughput_tok_per_s"] is None
    assert not (tmp_path / "a" / "points.csv").exists()


def test_a_step_without_its_cached_tokens_has_no_number(model, tmp_path, monkeypatch):
    def one_less(step, batch=PrefillStep.batch):
        made = batch(step)
        made.context_lens = made.context_lens - 1
        return made

    monkeypatch.setattr(PrefillStep, "batch", one_less)
    rows = prefill(model, tmp_path / "a").rows()
    for row in rows:
        assert row["note"].startswith("no number: sequence 0: ") and row["cached_tokens"] is None
        assert row["step_median_ms"] is None and row["input_throughput_tok_per_s"] is None


def test_the_same_command_goes_on_where_it_was_killed(model, tmp_path):
    out = tmp_path / "a"
    decode(model, out, concurrency=(1, 3))
    before = {path.name: path.read_bytes() for path in (out / "cells").iterdir()}
    said = []
    decode(model, out, concurrency=(1, 3, 6), say=said.append)
    after = {path.name: path.read_bytes() for path in (out / "cells").iterdir()}
    assert {name: after[name] for name in before} == before and sorted(set(after) - set(before)) == [
        "decode-c0006-r1.json"
    ]
    assert next(line for line in said if line.startswith("decode-")).startswith("decode-c0006-r1: ")
    assert len(read_plain(out / "points.csv")) == 3


def test_a_cell_without_a_number_is_tried_again(model, tmp_path, monkeypatch):
    def fails(*_):
        raise torch.OutOfMemoryError("out of memory\nand a long story")

    with monkeypatch.context() as patched:
        patched.setattr(study_module, "measure_step", fails)
        record = decode(model, tmp_path / "a", concurrency=(2,))
        assert record.rows()[0]["note"] == "no number: out of memory" and not record.has("decode-c0002-r1")
        assert not (tmp_path / "a" / "points.csv").exists()
        with pytest.raises(UserError, match="no cell has a number yet"):
            compare_steps(record, record)
    assert decode(model, tmp_path / "a", concurrency=(2,)).rows()[0]["step_median_ms"] > 0


def test_repeats_lie_side_by_side(model, tmp_path):
    for repeat in (1, 2):
        decode(model, tmp_path / "a", settings=Settings(samples=3, seconds=0.05, ceilings=False, repeat=repeat))
    frame = read_plain(tmp_path / "a" / "points.csv")
    assert sorted(zip(frame["load"], frame["repeat"])) == [(c, r) for c in (1, 3, 6) for r in (1, 2)]


def test_another_plan_does_not_mix_into_a_record(model, tmp_path):
    decode(model, tmp_path / "a")
    with pytest.raises(UserError, match="another cached_tokens; choose another --out"):
        decode(model, tmp_path / "a", context=32)
    with pytest.raises(UserError, match="another acceptance, drafts, reading, tokens_of_a_step, tokens_per_step"):
        decode(model, tmp_path / "a", DRAFTS)
    with pytest.raises(UserError, match=r"another .*kind"):
        prefill(model, tmp_path / "a")


def test_another_machine_does_not_mix_into_a_record(model, tmp_path):
    decode(model, tmp_path / "a", concurrency=(1,))
    path = tmp_path / "a" / "provenance.json"
    document = json.loads(path.read_text())
    document["hardware"]["fingerprint"] = "another"
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"was begun on another machine \(another\)"):
        decode(model, tmp_path / "a")


def test_the_default_context_is_scaled_to_the_model_and_says_so(model, tmp_path):
    said = []
    record = decode(model, tmp_path / "a", DRAFTS, (2,), context=None, say=said.append)
    assert record.rows()[0]["cached_tokens"] == 256  # 512 positions do not hold 512 cached and 4 new ones
    note = "context scaled down from 131,072 to 256: the model has 512 positions"
    assert note in said and record.read("scaling") == {"context": note}


def test_a_resumed_study_keeps_its_context_whatever_is_free_now(model, tmp_path):
    decode(model, tmp_path / "a", concurrency=(1,), context=32)
    rows = decode(model, tmp_path / "a", concurrency=(1, 2), context=None).rows()
    assert [row["cached_tokens"] for row in rows] == [32, 32]


def test_the_context_is_scaled_to_memory_and_what_was_asked_for_must_fit(model):
    study = StepStudy(model, QUICK)
    options = DecodeOptions(NO_DRAFTS, (8,))
    little = Settings(samples=3, seconds=0.05, ceilings=False, memory_bytes=decode_bytes(study, options, 64))
    record = decode(model, settings=little, concurrency=(8,), context=None)
    assert record.rows()[0]["cached_tokens"] == 64
    assert "8 requests may take 0.0 GiB of memory here" in record.read("scaling")["context"]
    with pytest.raises(UserError, match=r"context 128 does not fit: 8 requests may take .* 64 would fit"):
        decode(model, settings=little, concurrency=(8,), context=128)
    shared = decode(model, settings=little, concurrency=(8,), context=None, contexts=1)
    assert shared.rows()[0]["cached_contexts"] == 1
    assert decode_bytes(study, DecodeOptions(NO_DRAFTS, (8,), contexts=1), 64) < little.memory_bytes
    assert "1 context shared through the block tables" in shared.rows()[0]["cache_fill"]


def test_sizes_are_scaled_to_time_where_ceilings_are_known(model, monkeypatch):
    slow = {"source": "measured (cpu)", "read_bytes_per_s": 2.5e6, "gemm_flops_per_s": 1e8}
    monkeypatch.setattr(study_module, "measured_ceilings", lambda model: slow)
    patient = Settings(samples=3, seconds=1.0, memory_bytes=2**34)
    record = decode_study(model, DecodeOptions(NO_DRAFTS, (8,)), patient)
    (row,) = record.rows()
    assert row["cached_tokens"] == 128 and "must leave time for 5 in 1 s" in record.read("scaling")["context"]
    assert 0 < row["bound_ms"] <= 200 and row["bound_by"] == "memory, measured ceiling"
    record = prefill_study(model, PrefillOptions(), patient)
    tokens = [row["new_tokens"] for row in record.rows()]
    assert len(tokens) == 5 and tokens == [tokens[0] * 2**power for power in range(5)] and tokens[-1] < 65536
    assert "new tokens per step scaled down from 65,536" in record.read("scaling")["tokens"]
    assert record.read("ceilings")["gemm_flops_per_s"] == 1e8


def test_chunk_and_cached_tokens_fit_the_positions_of_the_model(model):
    rows = prefill(model, tokens=(16,), chunk=None, cached=None).rows()
    assert rows[0]["cached_tokens"] == 256 and rows[0]["chunk_tokens"] == 16
    with pytest.raises(UserError, match="chunk 256 \\+ cached 300 tokens do not fit: the model has 512 positions"):
        prefill(model, chunk=256, cached=300)


def test_comparison_reads_direct_multipliers_of_one_workload(model, tmp_path):
    a, b = decode(model, tmp_path / "a", DRAFTS), decode(model, tmp_path / "b")
    document = comparison_document(a, b)
    assert [row["load_a"] for row in document["direct"]] == [1, 3, 6]
    speeds = [[row["decode_speed_tok_per_s"] for row in record.rows()] for record in (a, b)]
    for row, of_a, of_b in zip(document["direct"], *speeds, strict=True):
        assert row["speed_ratio"] == pytest.approx(of_a / of_b) and row["ratio"] == pytest.approx(of_a / of_b)
    assert "equal by construction" in document["note"]
    with pytest.raises(UserError, match=r"cached_tokens 64, .* has 32"):
        compare_steps(a, decode(model, tmp_path / "c", context=32))
    with pytest.raises(UserError, match="kind decode"):
        compare_steps(a, prefill(model, tmp_path / "d"))
    with pytest.raises(UserError, match="no load in common"):
        compare_steps(a, decode(model, tmp_path / "e", concurrency=(2,)))


def test_comparison_says_what_else_differs(model, tmp_path):
    a, b = decode(model, tmp_path / "a"), decode(model, tmp_path / "b", contexts=1)
    assert compare_steps(a, b).warnings[0] == "other contexts: A None, B 1"
    assert (
        prefill(model, tmp_path / "p")
        and compare_steps(StepRecord.open(tmp_path / "p"), prefill(model)).direct.shape[0] == 2
    )


def test_records_are_compared_without_torch(model, tmp_path):
    for name, acceptance in (("a", DRAFTS), ("b", NO_DRAFTS)):
        decode(model, tmp_path / name, acceptance)
    code = "import sys; sys.modules |= dict.fromkeys(('torch', 'triton')); import wholecurve.cli.steps as steps; "
    code += "from pathlib import Path; steps.step_compare(*map(Path, sys.argv[1:]), as_json=True)"
    command = [sys.executable, "-c", code, str(tmp_path / "a"), str(tmp_path / "b")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["kind"] == "decode"


def test_an_existing_folder_that_is_no_record_is_named(tmp_path):
    with pytest.raises(UserError, match="not a step study"):
        StepRecord.open(tmp_path)


def run(*arguments, code=0):
    """Result of the command; a UserError is what `main` prints as one line."""
    result = CliRunner().invoke(app, ["step", *map(str, arguments)])
    if code:
        assert isinstance(result.exception, UserError), result.output
        return str(result.exception)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


TINY = ("--dummy", "tiny", "--dtype", "float32", "--threads", 1, "--samples", 3, "--seconds", 0.05, "--no-ceilings")


def test_the_command_prints_a_table_that_says_what_it_is(tmp_path):
    drafts = ("--drafts", 3, "--reading", "marginal")
    printed = run("decode", *TINY, "-c", 1, "-c", 2, "--context", 32, *drafts, "--out", tmp_path / "a")
    text = " ".join(printed.split())
    assert "decode steps of tiny (random weights)" in text and "measured (cpu) on" in text
    assert "3 drafts at 0.75 marginal (3.25 tokens per step)" in text and "equal by construction" in text
    assert "random keys and values written to the cache, own to each request" in text
    assert "filling the cache without prefill" in text  # progress
    run("decode", *TINY, "-c", 1, "-c", 2, "--context", 32, "--out", tmp_path / "b")
    compared = run("compare", tmp_path / "a", tmp_path / "b")
    assert "direct" in compared and "equal by construction" in " ".join(compared.split())
    assert json.loads(run("compare", tmp_path / "a", tmp_path / "b", "--json"))["kind"] == "decode"
    table = " ".join(run("prefill", *TINY, "-n", 16, "--chunk", 16, "--cached", 32).split())
    assert "new tok/s" in table and "counts the new tokens of a step" in table


def test_json_is_one_document():
    result = CliRunner().invoke(app, ["step", "prefill", *map(str, TINY), "-n", "16", "--cached", "0", "--json"])
    document = json.loads(result.stdout)
    assert set(document) == {"step", "provenance", "ceilings", "scaling", "rows"}
    (row,) = document["rows"]
    assert row["cached_tokens"] == 0 and len(row["samples_ms"]) == row["n_samples"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("decode",), "name one model, or one size with --dummy"),
        (("decode", "m", "--dummy", "tiny"), "name one model, or one size with --dummy"),
        (("decode", "--dummy", "llama-9b"), "no dummy model 'llama-9b'; there are smollm2-135m"),
        (("decode", "--dummy", "tiny", "--dtype", "int8"), "dtype 'int8'; supported: bfloat16"),
        (("decode", "--dummy", "tiny", "--form", "fast"), "form 'fast'; supported: auto, native, torch"),
        (("decode", "--dummy", "tiny", "--device", "tpu"), "device 'tpu'; supported: cpu, cuda"),
        (("decode", "--dummy", "tiny", "--device", "cpu", "--graphs"), "--graphs needs a CUDA device"),
        (("decode", "--dummy", "tiny", "--threads", "0"), "threads is 0; it must be at least 1"),
        (("decode", *TINY, "--acceptance", "1.5"), "acceptance is 1.5; it must lie between 0 and 1"),
        (("decode", *TINY, "--reading", "joint"), "reading is 'joint'"),
        (("decode", *TINY, "-c", "0"), "concurrency is [0]; every cell needs at least 1 request"),
        (
            ("decode", *TINY, "-c", "1", "--context", "512"),
            "context 512 does not fit: the model has 512 positions; 256",
        ),
        (("decode", *TINY, "--samples", "0"), "samples is 0; it must be at least 1"),
        (("decode", *TINY, "--seconds", "nan"), "seconds is nan; it must be a number above 0"),
        (("decode", *TINY, "--memory-gib", "0"), "memory_gib is 0.0; it must be a number above 0"),
        (("decode", *TINY, "--contexts", "0"), "contexts is 0; it must be at least 1"),
        (("decode", *TINY, "--block-size", "0"), "block_size is 0; it must be at least 1"),
        (("prefill", *TINY, "-n", "0"), "tokens is [0]; every cell needs at least 1 new token"),
        (("prefill", *TINY, "-n", "16", "--memory-gib", "0.00001"), "tokens 16 does not fit: a step may take"),
        (("compare", "/nowhere/a", "/nowhere/b"), "/nowhere/a: not a step study"),
    ],
)
def test_wrong_use_is_one_clear_line(arguments, message):
    said = run(*arguments, code=2)
    assert message in said and "\n" not in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said():
    assert "torch sees no CUDA device here" in run("decode", "--dummy", "tiny", "--device", "cuda", code=2)


def test_native_and_torch_forms_run_the_same_cells(model):
    from wholecurve.models.native import unsupported

    reason = unsupported(model.config, torch.float32)
    if reason:
        pytest.skip(reason)
    native = load_step_model(dummy="tiny", dtype="float32", device="cpu", form="auto", threads=1)
    rows = decode(native, acceptance=DRAFTS).rows()
    plain = decode(model, acceptance=DRAFTS).rows()
    assert {row["form"] for row in rows} == {"native"} and all(row["step_median_ms"] for row in rows)
    steps = [min(len(row["samples_ms"]), len(other["samples_ms"])) for row, other in zip(rows, plain)]
    assert min(steps) >= 3 and prefill(native).rows()[0]["cached_tokens"] == 32
