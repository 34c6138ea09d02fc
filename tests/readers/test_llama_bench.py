"""llama-bench: which rows are which workload, what a step is, repeats, devices, tables and logs."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from fuzzing import assert_sound, document_of_lines, mutations, truncations
from hypothesis import given, settings

from wholecurve.curves import Curve
from wholecurve.errors import UserError
from wholecurve.readers.content import read_content
from wholecurve.readers.found import Notes
from wholecurve.readers.llama_cpp import bench as llama_bench

DATA = Path(__file__).parents[1] / "data" / "readers" / "llama_cpp"
SHARED = Path(__file__).parents[2].parent / "shared" / "samples" / "llama.cpp"

TG = {
    "build_commit": "abc",
    "cpu_info": "Some CPU",
    "gpu_info": "Some GPU",
    "backends": "CUDA",
    "model_filename": "models/of/someone/m-Q8_0.gguf",
    "model_type": "llama 8B Q8_0",
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_gpu_layers": 99,
    "split_mode": "layer",
    "devices": "auto",
    "n_prompt": 0,
    "n_gen": 100,
    "n_depth": 0,
    "avg_ts": 50.0,
    "samples_ns": [2_000_000_000, 2_000_000_000],
    "samples_ts": [50.0, 50.0],
}
PP = {**TG, "n_prompt": 1000, "n_gen": 0, "avg_ts": 500.0, "samples_ts": [490.0, 510.0]}
PP["samples_ns"] = [1000e9 / 490, 1000e9 / 510]


def read(path):
    content = read_content(path)
    assert llama_bench.recognises(content)
    return llama_bench.read(content, Notes(dropped=list(content.skipped)))


def rows(tmp_path, *rows, name="bench.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if v != "absent"}) + "\n" for row in rows))
    return read(path)


def point(tmp_path, row=TG, **changed):
    return rows(tmp_path, {**row, **changed}).points.iloc[0]


def refusal(tmp_path, row=TG, **changed):
    with pytest.raises(UserError) as caught:
        rows(tmp_path, {**row, **changed})
    return str(caught.value)


def sentences(found):
    document = found.to_document()
    return "\n".join(document["converted"] + document["not_converted"] + document["dropped"])


# --- kinds of rows ----------------------------------------------------------------------------------------------


def test_a_tg_row_is_decode_of_one_sequence_with_its_samples_as_repeats(tmp_path):
    found = rows(tmp_path, {**TG, "samples_ts": [49.0, 51.0], "samples_ns": [100e9 / 49, 100e9 / 51]})
    assert found.points["workload"].unique().tolist() == ["decode"]
    assert found.points["repeat"].tolist() == [1, 2]
    first = found.points.iloc[0]
    assert (first["load_kind"], first["load"], first["window"]) == ("concurrency", 1, "decode phase")
    assert first["decode_speed_tok_per_s"] == first["output_throughput_tok_per_s"] == 49
    assert first["speed_from"] == "step time"
    assert first["window_s"] == pytest.approx(100 / 49)
    assert "not fresh runs" in sentences(found) and "shown twice" in sentences(found)
    assert Curve.from_points(found.points).repeats == [1, 2]


def test_a_pp_row_is_prefill_and_its_load_is_the_step(tmp_path):
    found = rows(tmp_path, PP)
    first = found.points.iloc[0]
    assert (first["workload"], first["load_kind"], first["load"]) == ("prefill", "step_tokens", 512)
    assert first["input_throughput_tok_per_s"] == 490
    assert "decode_speed_tok_per_s" not in found.points and "output_throughput_tok_per_s" not in found.points
    assert Curve.from_points(found.points, workload="prefill").points["throughput"].tolist() == [490, 510]


@pytest.mark.parametrize(
    ("sizes", "step"),
    [
        ({"n_ubatch": 512, "n_batch": 2048}, 512),
        ({"n_ubatch": 2048, "n_batch": 256}, 256),
        ({"n_ubatch": 4096, "n_batch": 4096}, 1000),
    ],
)
def test_a_step_is_the_least_of_prompt_batch_and_ubatch(tmp_path, sizes, step):
    assert point(tmp_path, PP, **sizes)["load"] == step


def test_depth_is_part_of_the_workload(tmp_path):
    found = rows(tmp_path, {**TG, "n_depth": 8192}, {**PP, "n_depth": 512}, {**TG, "n_depth": "absent"})
    assert found.points["workload"].unique().tolist() == ["decode at depth 8192", "prefill at depth 512", "decode"]


def test_a_row_of_prompt_and_generation_is_refused_because_its_speed_mixes_them(tmp_path):
    text = refusal(tmp_path, n_prompt=512)
    assert "n_prompt is 512 and n_gen 100" in text and "mixes prompt and generated tokens" in text
    assert "n_prompt and n_gen are 0" in refusal(tmp_path, n_gen=0)


# --- samples and states -----------------------------------------------------------------------------------------


def test_without_samples_the_mean_is_one_point_and_that_is_said(tmp_path):
    found = rows(tmp_path, {**TG, "samples_ts": "absent", "samples_ns": "absent"})
    assert found.points["output_throughput_tok_per_s"].tolist() == [50]
    assert "the mean of its tests" in sentences(found)


def test_a_mean_that_its_samples_contradict_drops_the_row(tmp_path):
    assert point(tmp_path, avg_ts=50 * 1.015)["repeat"] == 1
    assert "avg_ts is 51.25, but the mean of samples_ts is 50" in refusal(tmp_path, avg_ts=51.25)


@pytest.mark.parametrize(
    "changed", [{"samples_ns": [2e9, 1e9]}, {"samples_ns": [2e9]}, {"n_gen": 200}], ids=["time", "count", "tokens"]
)
def test_samples_whose_times_contradict_their_speeds_drop_the_row(tmp_path, changed):
    assert "samples_ns and samples_ts contradict each other" in refusal(tmp_path, **changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"avg_ts": math.inf}, "avg_ts is infinite"),
        ({"avg_ts": 0}, "avg_ts is 0"),
        ({"avg_ts": None}, "avg_ts is null"),
        ({"samples_ts": [50.0, 0]}, "samples_ts: entry 2 is 0"),
        ({"samples_ts": [50.0, math.nan]}, "samples_ts: entry 2 is NaN"),
        ({"samples_ts": []}, "samples_ts is a list of 0"),
        ({"samples_ns": 7}, "samples_ns is 7"),
        ({"n_gen": -1}, "n_gen is negative"),
        ({"n_depth": 1.5}, "n_depth is 1.5"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_bad_state_drops_its_row_alone_by_name(tmp_path, changed, said):
    found = rows(tmp_path, {**TG, **changed}, PP)
    assert found.points["workload"].unique().tolist() == ["prefill"]
    assert said in found.notes.dropped[0] and "line 1" in found.notes.dropped[0]


def test_a_prefill_row_without_its_step_size_is_refused(tmp_path):
    assert "n_ubatch is missing" in refusal(tmp_path, PP, n_ubatch="absent")


# --- devices ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "kind", "count"),
    [
        ({}, "gpu", 1),
        ({"gpu_info": "A, A, B"}, "gpu", 3),
        ({"gpu_info": "A, A, B", "devices": "CUDA0/CUDA2"}, "gpu", 2),
        ({"gpu_info": "A, A, B", "split_mode": "none"}, "gpu", 1),
        ({"backends": "CPU", "gpu_info": ""}, "cpu", 1),
        ({"devices": "none"}, "cpu", 1),
        ({"backends": "BLAS", "gpu_info": ""}, "cpu", 1),
        ({"backends": "CUDA,BLAS"}, "gpu", 1),
        ({"backends": "CUDA", "gpu_info": ""}, "cpu", 1),
        ({"backends": "CUDA,Vulkan", "gpu_info": "A, A"}, "server", 1),
        ({"backends": "absent"}, "server", 1),
        ({"n_gpu_layers": 0}, "cpu", 1),
        ({"n_gpu_layers": -1}, "gpu", 1),
    ],
    ids=str,
)
def test_devices_are_those_that_the_row_says_computed(tmp_path, changed, kind, count):
    row = point(tmp_path, **changed)
    assert (row["device_kind"], row["devices"]) == (kind, count)
    assert row["source"] == {"server": "measured (device unstated)"}.get(kind, f"measured ({kind})")
    assert row.get("hardware") == {"gpu": changed.get("gpu_info", "Some GPU"), "cpu": "Some CPU"}.get(kind) or True


def test_without_layers_on_the_gpu_a_prompt_is_neither_cpu_nor_gpu_alone(tmp_path):
    found = rows(tmp_path, {**PP, "n_gpu_layers": 0}, {**TG, "n_gpu_layers": 0})
    assert found.points["device_kind"].unique().tolist() == ["server", "cpu"]
    assert "neither CPU nor GPU alone" in sentences(found) and "the CPU computed" in sentences(found)
    assert point(tmp_path, PP, n_gpu_layers=0, no_op_offload=1)["device_kind"] == "cpu"


# --- names ------------------------------------------------------------------------------------------------------


def names(found):
    return found.points["contender"].drop_duplicates().tolist()


def test_a_contender_is_model_type_and_backend_and_model_files_lose_their_folders(tmp_path):
    row = point(tmp_path)
    assert (row["contender"], row["model"], row["precision"]) == ("llama.cpp llama 8B Q8_0 CUDA", "m-Q8_0.gguf", "Q8_0")
    assert "someone" not in " ".join(map(str, row))
    assert point(tmp_path, model_type="absent")["contender"] == "llama.cpp m-Q8_0.gguf CUDA"
    assert point(tmp_path, model_filename=r"C:\models\x.gguf")["model"] == "x.gguf"


@pytest.mark.parametrize("row", [TG, PP], ids=["tg", "pp"])
@pytest.mark.parametrize(
    "changed",
    [{"flash_attn": 1}, {"n_gpu_layers": 10}, {"model_filename": "/x/other.gguf"}, {"build_commit": "def"}, {"new": 2}],
    ids=lambda changed: next(iter(changed)),
)
def test_settings_that_vary_are_in_the_name(tmp_path, row, changed):
    found = rows(tmp_path, {**row, "flash_attn": 0, "new": 1}, {**row, "flash_attn": 0, "new": 1, **changed})
    assert len(names(found)) == 2
    assert not any("/" in name or ":" in name for name in names(found))


def test_other_lengths_of_generation_are_no_repeats(tmp_path):
    longer = {**TG, "n_gen": 200, "samples_ns": [4e9, 4e9]}
    base = "llama.cpp llama 8B Q8_0 CUDA n_gen"
    assert names(rows(tmp_path, TG, longer)) == [f"{base} 100", f"{base} 200"]


def prompt(tokens, ubatch, batch=4096):
    return {**PP, "n_prompt": tokens, "n_ubatch": ubatch, "n_batch": batch, "samples_ns": "absent"}


@pytest.mark.parametrize(
    ("tests", "curves"),
    [
        ([(2048, 256), (2048, 512), (2048, 1024)], {"": [256, 512, 1024]}),
        ([(128, 512), (512, 512), (1024, 512)], {"": [128, 512], " n_prompt 1024": [512]}),
        ([(512, 512), (512, 1024), (512, 256)], {"": [256, 512], " n_ubatch 1024": [512]}),
        (
            [(16, 8), (48, 8), (16, 16), (48, 16), (16, 32), (48, 32)],
            {" n_prompt 16": [8, 16], " n_prompt 16 n_ubatch 32": [16], " n_prompt 48": [8, 16, 32]},
        ),
        ([(1024, 512, 256), (1024, 512, 512), (1024, 512, 1024)], {"": [256, 512], " n_batch 1024": [512]}),
    ],
    ids=["ubatch", "prompt", "ubatch above prompt", "both", "batch"],
)
def test_prefill_curves_run_over_the_step_and_other_tests_with_its_size_are_no_repeats(tmp_path, tests, curves):
    found = rows(tmp_path, *(prompt(*test) for test in tests))
    assert set(found.points["repeat"]) == {1, 2}
    loads = found.points.groupby("contender")["load"].agg(lambda loads: sorted(set(loads)))
    assert {k.removeprefix("llama.cpp llama 8B Q8_0 CUDA").strip(): v for k, v in loads.items()} == {
        k.strip(): v for k, v in curves.items()
    }


def test_the_same_test_again_is_a_repeat(tmp_path):
    assert rows(tmp_path, TG, TG).points["repeat"].tolist() == [1, 2, 3, 4]


# --- other forms of the same result -----------------------------------------------------------------------------


def test_json_csv_and_log_lines_before_the_result_are_read(tmp_path):
    array = tmp_path / "bench.json"
    array.write_text("llama-bench: loading\nggml_cuda_init: found 1 device\n" + json.dumps([TG, PP], indent=2))
    found = read(array)
    assert len(found.points) == 4 and "2 log lines before the result" in found.notes.dropped[0]
    table = read(DATA / "bench_cpu.csv").points
    assert table["workload"].tolist() == ["prefill", "decode", "prefill at depth 32", "decode at depth 32"]
    assert table["device_kind"].unique().tolist() == ["cpu"]
    assert table["contender"].unique().tolist() == ["llama.cpp llama 256M F16 CPU"]


def test_a_real_file_has_one_contender_and_its_samples():
    points = read(DATA / "bench_cpu.jsonl").points
    assert points["contender"].unique().tolist() == ["llama.cpp llama 256M F16 CPU"]
    assert points.groupby("workload")["repeat"].agg(list).map(tuple).unique().tolist() == [(1, 2)]
    assert points[points["workload"] == "prefill"]["load"].unique().tolist() == [16]


TABLE = """ggml_cuda_init: found 2 CUDA devices (Total VRAM: 1 MiB):
| model         |     size | params | backend | ngl |{columns}            test |          t/s |
| ------------- | -------: | -----: | ------- | --: |{rule} --------------: | -----------: |
{rows}
build: 0253fb21f (9187)
"""


def table(tmp_path, *rows, columns="", cells="", end="\n"):
    lines = [f"| llama 8B Q8_0 | 8.00 GiB | 8.00 B | CUDA    |  99 |{cells} {test} | {speed} |" for test, speed in rows]
    path = tmp_path / "run.log"
    text = TABLE.format(columns=columns, rule=" --: |" if columns else "", rows=end.join(lines) + end)
    path.write_text(text)
    return path


def test_a_printed_table_is_read_as_means_with_what_it_leaves_unsaid(tmp_path):
    path = table(tmp_path, ("pp1024", "909.04 ± 7.54"), ("tg 128", "24.64 ± 0.00"), ("tg128 @ d4096", "20.10 ± 0.1"))
    found = read(path)
    assert found.points["workload"].tolist() == ["prefill", "decode", "decode at depth 4096"]
    assert found.points["load"].tolist() == [512, 1, 1]
    assert found.points["devices"].tolist() == [2, 2, 2]
    assert found.points["input_throughput_tok_per_s"].tolist()[0] == 909.04
    assert found.points["decode_speed_tok_per_s"].tolist()[1:] == [24.64, 20.10]
    said = sentences(found)
    assert "n_ubatch is not in the table, so it is the default, 512" in said and "their spread is not kept" in said
    path = table(tmp_path, ("pp1024", "909 ± 7"), columns=" n_ubatch |", cells=" 128 |")
    assert read(path).points["load"].tolist() == [128]


@pytest.mark.parametrize(
    ("test", "speed", "said"),
    [
        ("pp512+tg128", "100.00 ± 1.00", "n_prompt is 512 and n_gen 128"),
        ("pp512", "inf ± nan", "avg_ts is infinite"),
        ("pp512", "0.00 ± 0.00", "avg_ts is 0"),
        ("pp512", "OOM", "avg_ts is missing"),
        ("warm-up", "1.00 ± 0.00", "n_prompt is missing"),
    ],
)
def test_a_line_of_a_table_without_a_point_is_dropped_by_name(tmp_path, test, speed, said):
    found = read(table(tmp_path, (test, speed), ("tg128", "24.64 ± 0.00")))
    assert len(found.points) == 1
    assert said in found.notes.dropped[0] and "line 4" in found.notes.dropped[0]


def test_a_table_that_breaks_off_loses_its_last_line_by_name(tmp_path):
    path = table(tmp_path, ("pp512", "909.04 ± 7.54"), ("tg128", "24.64 ± 0.00"))
    path.write_text(path.read_text().partition("24.64")[0] + "24.6")
    found = read(path)
    assert found.points["workload"].tolist() == ["prefill"]
    assert "the line is cut off" in found.notes.dropped[0]
    assert "no closing build line" in sentences(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "ggml_cuda_init: found 1 CUDA devices\nllama_bench: error: failed to load model 'x'\n",
            "failed to load model",
        ),
        (TABLE.format(columns="", rule="", rows=""), "no row of a table"),
        ("CREATE TABLE IF NOT EXISTS llama_bench (\n);\nINSERT INTO llama_bench (x) VALUES ('1');\n", "-o jsonl"),
    ],
    ids=["no table", "no rows", "SQL"],
)
def test_a_log_without_results_says_what_is_missing(tmp_path, text, said):
    path = tmp_path / "run.log"
    path.write_text(text)
    with pytest.raises(UserError, match=r"run\.log: ") as caught:
        read(path)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_other_texts_and_tables_are_not_taken(tmp_path):
    path = tmp_path / "other"
    for text in (
        "toolbox,ubatch,avg_ts,stddev_ts\nx,256,119.06,1.1\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n",
        "[]",
        "{}",
    ):
        path.write_text(text)
        assert not llama_bench.recognises(read_content(path))


# --- damage -----------------------------------------------------------------------------------------------------

ALONE = {"load", "devices", "window_s", "output_tokens", "input_tokens"}
FILES = ["bench_cpu.jsonl", "bench_cpu.csv", "bench_cpu_table.md", "bench_cpu_ubatch.jsonl"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_breaks_off_never_gives_another_number(tmp_path, name):
    whole, cut = read(DATA / name).points, tmp_path / name
    for data in truncations(DATA / name, step=60):
        cut.write_bytes(data)

        def read_cut(path):
            content = read_content(path)
            if not llama_bench.recognises(content):
                raise UserError(f"{path}: not recognised")
            return llama_bench.read(content, Notes())

        assert_sound(read_cut, cut, whole)


@pytest.mark.parametrize("name", ["bench_cpu.jsonl", "bench_cpu_ubatch.jsonl"])
def test_a_changed_field_never_changes_a_speed(tmp_path_factory, name):
    document, folder = document_of_lines(DATA / name), tmp_path_factory.mktemp("mutated")
    means = [{k: v for k, v in row.items() if not k.startswith("samples_")} for row in document["lines"]]
    (folder / "means.jsonl").write_text("".join(json.dumps(row) + "\n" for row in means))
    whole = pd.concat([read(DATA / name).points, read(folder / "means.jsonl").points])

    @settings(max_examples=80)
    @given(mutations(document))
    def check(mutation):
        assert_sound(read, mutation.write(folder / name), whole, may_differ=ALONE)

    check()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the samples that this test reads are not beside this repository")
def test_published_curves_keep_every_sample():
    generation = read(SHARED / "kyuz0_gemma-4-26B_curve-generation.jsonl").points
    assert generation["workload"].nunique() == 9 and len(generation) == 27
    assert generation["contender"].unique().tolist() == ["llama.cpp gemma4 26B.A4B Q8_0 ROCm"]
    prefill = read(SHARED / "kyuz0_deepseek-v4-flash-0731_prefill-ubatch.jsonl").points
    curve = Curve.from_points(prefill, workload="prefill")
    assert curve.by_load()["load"].tolist() == [256, 512, 1024, 2048]
    assert curve.by_load()["repeats"].tolist() == [3] * 4
    log = read(SHARED / "kyuz0_gemma-4-26B_rocm_ok.log").points
    assert log["contender"].unique().tolist() == ["llama.cpp gemma4 26B.A4B BF16 ROCm"]
    assert log["device_kind"].unique().tolist() == ["gpu"]
