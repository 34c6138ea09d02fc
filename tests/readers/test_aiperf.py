"""AIPerf and GenAI-Perf: which of their numbers is a TPOT, which side is the slow one, and where the load stands."""

import json
import shutil
from pathlib import Path

import fuzzing
import pytest
from hypothesis import given, settings

from wholecurve.errors import UserError
from wholecurve.readers.recognise import read_file

DATA = Path(__file__).parents[1] / "data" / "readers" / "aiperf"
SUMMARY = DATA / "run" / "profile_export_aiperf.json"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"

TPOT = {"tpot_p50_ms", "tpot_p90_ms", "decode_speed_tok_per_s", "decode_speed_p90_tok_per_s"}
TAILS = {f"{name}_p99_ms" for name in ("ttft", "tpot", "e2e", "itl")}
# Columns that a damaged field sets and nothing else in the file can confirm.
SETS = {
    "time_to_first_token": {"ttft_p50_ms", "ttft_p90_ms"},
    "inter_token_latency": TPOT,
    "request_latency": {"e2e_p50_ms", "e2e_p90_ms", "achieved_concurrency"},
    "inter_chunk_latency": {"itl_p50_ms", "itl_p90_ms"},
    "output_token_throughput": {"output_throughput_tok_per_s"},
    "total_token_throughput": {"logical_throughput_tok_per_s"},
    "request_throughput": {"achieved_concurrency"},
    "benchmark_duration": {"window_s"},
    "request_count": {"n_completed"} | TAILS,
    "error_request_count": {"n_failed"},
    "input_sequence_length": {"mean_input_tokens"},
    "output_sequence_length": {"mean_output_tokens"},
    "total_isl": {"input_tokens"},
    "total_osl": {"output_tokens"},
    "overall_usage_prompt_cache_read_pct": {"cache_hit_rate"},
    "input_config": {"load"},
}


def document(path=SUMMARY):
    return json.loads(path.read_text())


def written(tmp_path, value, name="profile_export_aiperf.json"):
    path = tmp_path / name
    path.write_text(json.dumps(value))
    return path


def only(path):
    (row,) = read_file(path).points.to_dict("records")
    return row


def sets(mutation):
    return set().union(*(SETS.get(part, ()) for part in mutation.field))


def test_a_run_gives_one_point_under_canonical_names():
    row, raw = only(SUMMARY), document()
    assert (row["load_kind"], row["load"], row["contender"]) == ("concurrency", 4, "Small-1B")
    assert (row["workload"], row["model"]) == ("128 ± 2 in / 34 out", "test-org/Small-1B")
    assert (row["devices"], row["device_kind"], row["source"]) == (1, "server", "measured (device unstated)")
    assert row["tpot_p50_ms"] == raw["inter_token_latency"]["p50"]
    assert row["decode_speed_tok_per_s"] == pytest.approx(1000 / raw["inter_token_latency"]["p50"])
    assert row["speed_from"] == "median TPOT"
    assert row["itl_p50_ms"] == raw["inter_chunk_latency"]["p50"] != row["tpot_p50_ms"]
    assert row["output_throughput_tok_per_s"] == raw["output_token_throughput"]["avg"]
    assert row["logical_throughput_tok_per_s"] == raw["total_token_throughput"]["avg"]
    assert (row["n_completed"], row["n_failed"], row["cache_hit_rate"]) == (40, 2, 0.125)
    assert (row["input_tokens"], row["output_tokens"]) == (5160, 1354)
    assert row["window_s"] == raw["benchmark_duration"]["avg"]


def test_the_p90_speed_is_of_the_slow_requests():
    row, per_user = only(SUMMARY), document()["output_token_throughput_per_user"]
    assert row["decode_speed_p90_tok_per_s"] == pytest.approx(per_user["p10"], rel=1e-3)
    assert row["decode_speed_p90_tok_per_s"] < row["decode_speed_tok_per_s"] < per_user["p90"]
    assert any("fastest tenth" in sentence for sentence in read_file(SUMMARY).notes.converted)


def test_in_flight_is_what_was_achieved_and_not_the_load(tmp_path):
    row, raw = only(SUMMARY), document()
    achieved = raw["request_throughput"]["avg"] * raw["request_latency"]["avg"] / 1000
    assert row["achieved_concurrency"] == pytest.approx(achieved)
    del raw["input_config"]
    with pytest.raises(UserError, match=r"input_config is missing; the load stands nowhere else"):
        read_file(written(tmp_path, raw))


@pytest.mark.parametrize(("unit", "factor"), [("ns", 1e6), ("us", 1e3), ("ms", 1), ("sec", 1e-3)])
def test_latencies_are_read_in_their_own_unit(tmp_path, unit, factor):
    raw = document()
    for name in ("inter_token_latency", "time_to_first_token", "request_latency", "inter_chunk_latency"):
        scaled = {key: value * factor for key, value in raw[name].items() if key != "unit"}
        raw[name] = {**scaled, "unit": unit}
    row, expected = only(written(tmp_path, raw)), only(SUMMARY)
    for column in ("tpot_p50_ms", "ttft_p90_ms", "e2e_p50_ms", "itl_p90_ms", "achieved_concurrency"):
        assert row[column] == pytest.approx(expected[column])


@pytest.mark.parametrize(
    ("metric", "unit"), [("inter_token_latency", "minutes"), ("output_token_throughput", "tokens/min")]
)
def test_an_unknown_unit_is_refused(tmp_path, metric, unit):
    raw = document()
    raw[metric]["unit"] = unit
    with pytest.raises(UserError, match=rf"{metric}: unit is '{unit}'; one of"):
        read_file(written(tmp_path, raw))


@pytest.mark.parametrize(
    ("value", "state"),
    [(0, "0"), (None, "null"), (-1, "negative"), (float("nan"), "NaN"), (float("inf"), "infinite"), ("x", "the text")],
)
def test_a_throughput_that_is_no_number_above_0_is_named(tmp_path, value, state):
    raw = document()
    raw["output_token_throughput"]["avg"] = value
    with pytest.raises(UserError, match=f"output_token_throughput: avg is {state}"):
        read_file(written(tmp_path, raw))


def test_percentiles_that_fall_are_refused(tmp_path):
    raw = document()
    raw["inter_token_latency"]["p90"] = 1.0
    with pytest.raises(UserError, match=r"p90 of TPOT \(1 ms\) is below its p50 \(14\.625 ms\)"):
        read_file(written(tmp_path, raw))


def test_a_run_without_streaming_has_no_decode_speed_but_its_throughput(tmp_path):
    raw = document()
    for name in ("inter_token_latency", "time_to_first_token", "inter_chunk_latency"):
        del raw[name]
    found = read_file(written(tmp_path, raw))
    assert "decode_speed_tok_per_s" not in found.points
    assert found.points["output_throughput_tok_per_s"].item() == raw["output_token_throughput"]["avg"]
    assert any(sentence.startswith("decode speed: inter_token_latency is missing") for sentence in _left_out(found))


def test_few_requests_carry_no_p90(tmp_path):
    raw = document()
    raw["request_count"]["avg"] = 29.0
    found = read_file(written(tmp_path, raw))
    assert not {"tpot_p90_ms", "decode_speed_p90_tok_per_s", "ttft_p90_ms"} & set(found.points)
    assert any("decode_speed_p90_tok_per_s: fewer than 30" in sentence for sentence in _left_out(found))


def test_without_a_counter_of_errors_the_list_of_errors_is_counted(tmp_path):
    raw = document()
    del raw["error_request_count"]
    raw["error_summary"][0]["count"] = 6
    assert only(written(tmp_path, raw))["n_failed"] == 7
    raw["error_summary"] = []
    assert only(written(tmp_path, raw))["n_failed"] == 0
    del raw["error_summary"]
    assert "n_failed" not in only(written(tmp_path, raw))


def test_a_run_that_broke_off_is_refused_and_a_cancelled_one_says_so(tmp_path):
    raw = {**document(), "is_complete": False}
    with pytest.raises(UserError, match="is_complete is false"):
        read_file(written(tmp_path, raw))
    raw = {**document(), "was_cancelled": True}
    assert any("was_cancelled is true" in sentence for sentence in _left_out(read_file(written(tmp_path, raw))))


@pytest.mark.parametrize(
    ("phase", "kind", "load", "configuration"),
    [
        ({"type": "poisson", "rate": 3.5}, "request_rate", 3.5, None),
        ({"type": "constant", "rate": 2.0, "concurrency": 16}, "request_rate", 2.0, "at most 16 requests in flight"),
        ({"type": "concurrency", "concurrency": 8}, "concurrency", 8, None),
        (
            {"type": "concurrency", "concurrency": 8, "concurrency_ramp": {"duration": 30}},
            *("concurrency", 8, "concurrency_ramp inside the measured phase"),
        ),
    ],
)
def test_the_load_is_that_of_the_measured_phase(tmp_path, phase, kind, load, configuration):
    raw = document()
    raw["input_config"]["phases"][1] = {"name": "main_load", "kind": "profiling", **phase}
    row = only(written(tmp_path, raw))
    assert (row["load_kind"], row["load"], row.get("configuration")) == (kind, load, configuration)


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ({"type": "concurrency"}, r"concurrency is missing; a whole number from 1 up is needed"),
        ({"type": "concurrency", "concurrency": 0}, r"concurrency is 0; a whole number"),
        ({"type": "fixed_schedule"}, r"type fixed_schedule replays a trace"),
        ({"type": "concurrency", "concurrency": 4, "adaptive_scale": True}, r"adaptive_scale changes the load"),
        ({"type": "constant", "rate_series": {"points": []}}, r"rate_series changes the load"),
    ],
)
def test_a_phase_without_one_load_is_refused(tmp_path, phase, message):
    raw = document()
    raw["input_config"]["phases"][1] = {"name": "profiling", "kind": "profiling", **phase}
    with pytest.raises(UserError, match=message):
        read_file(written(tmp_path, raw))


def test_several_measured_phases_are_one_point_each(tmp_path):
    raw = document()
    more = {"name": "high", "kind": "profiling", "type": "concurrency", "concurrency": 16}
    raw["input_config"]["phases"].append(more)
    with pytest.raises(UserError, match="2 measured phases with different loads"):
        read_file(written(tmp_path, raw))
    kinds = {"warmup": "warmup", "profiling": "profiling", "high": "profiling"}
    manifest = {"phases": [{"phase_name": name, "phase_kind": kind} for name, kind in kinds.items()]}
    written(tmp_path, manifest, "phase_manifest.json")
    for name in kinds:
        (tmp_path / "phases" / name).mkdir(parents=True)
    assert only(written(tmp_path / "phases" / "high", raw))["load"] == 16
    assert only(written(tmp_path / "phases" / "profiling", raw))["load"] == 4
    with pytest.raises(UserError, match="a warm-up is no point"):
        read_file(written(tmp_path / "phases" / "warmup", raw))


def test_the_file_of_the_only_measured_phase_is_not_counted_twice(tmp_path):
    folder = tmp_path / "phases" / "profiling"
    folder.mkdir(parents=True)
    path = written(folder, document())
    with pytest.raises(UserError, match=r"phase_manifest\.json is not in the folder above"):
        read_file(path)
    written(tmp_path, {"phases": [{"phase_name": "profiling", "phase_kind": "profiling"}]}, "phase_manifest.json")
    with pytest.raises(UserError, match=r"one measured phase, and its own file in .* has it too"):
        read_file(path)


def test_older_versions_have_the_load_elsewhere(tmp_path):
    old = only(DATA / "loadgen.json")
    assert (old["load"], old["workload"], old["n_failed"]) == (4, "128 in / 34 out", 0)
    raw = document(DATA / "loadgen.json")
    raw["input_config"]["loadgen"] = {"request_rate": 2.5, "concurrency": 9}
    assert only(written(tmp_path, raw))["load_kind"] == "request_rate"
    raw["input_config"]["loadgen"] = {"request_count": 42}
    with pytest.raises(UserError, match="no concurrency and no request rate in it"):
        read_file(written(tmp_path, raw))


def test_genai_perf_has_the_same_metrics_and_other_arguments(tmp_path):
    found = read_file(DATA / "profile_export_genai_perf.json")
    row = found.points.to_dict("records")[0]
    assert (found.format, row["load"], row["contender"], row["workload"]) == ("GenAI-Perf", 4, "small-1b", "128 in")
    assert "n_failed" not in row
    raw = document(DATA / "profile_export_genai_perf.json")
    raw["input_config"] |= {"concurrency": None, "prompt_source": "file"}
    raw["input_config"]["perf_analyzer"] = {"stimulus": {"concurrency": 32}}
    row = only(written(tmp_path, raw))
    assert (row["load"], row["workload"]) == (32, "decode")


@pytest.mark.parametrize(
    ("dataset", "workload"),
    [
        ({"type": "public", "dataset": "sharegpt"}, "sharegpt"),
        ({"type": "synthetic", "prompts": {"isl": 100, "osl": {"value": 20}}}, "100 in / 20 out"),
        ({"type": "synthetic", "prompts": {"isl": 100}, "turns": {"mean": 3}}, "100 in, turns"),
        ({"type": "synthetic", "prompts": {"isl": {"points": []}}}, "decode"),
    ],
)
def test_the_workload_is_what_was_asked_for(tmp_path, dataset, workload):
    raw = document()
    raw["input_config"]["datasets"] = [{"name": "main", **dataset}]
    assert only(written(tmp_path, raw))["workload"] == workload


def test_an_aggregate_is_one_point_that_says_of_how_many_runs(tmp_path):
    path = DATA / "aggregate" / "profile_export_aiperf_aggregate.json"
    found = read_file(path)
    row, raw = found.points.to_dict("records")[0], document(path)
    assert (row["load"], row["contender"], row["n_completed"]) == (4, "Small-1B", 40)
    mean = raw["metrics"]["inter_token_latency_p50"]["mean"]
    assert row["decode_speed_tok_per_s"] == pytest.approx(1000 / mean)
    assert any("mean over 3 runs" in sentence for sentence in found.notes.converted)
    raw["metadata"] |= {"single_run": True, "variation_values": {}}
    with pytest.raises(UserError, match="no concurrency and no request rate"):
        read_file(written(tmp_path, raw))
    raw["metadata"]["variation_values"] = {"phases.profiling.rate": 7.5}
    found = read_file(written(tmp_path, raw))
    assert (found.points["load_kind"].item(), found.points["load"].item()) == ("request_rate", 7.5)
    assert any("single_run is true" in sentence for sentence in _left_out(found))


def test_an_aggregate_whose_runs_are_there_sends_to_the_runs(tmp_path):
    run = tmp_path / "profile_runs" / "run_0001"
    run.mkdir(parents=True)
    shutil.copy(SUMMARY, run)
    (tmp_path / "aggregate").mkdir()
    aggregate = shutil.copy(DATA / "aggregate" / "profile_export_aiperf_aggregate.json", tmp_path / "aggregate")
    with pytest.raises(UserError, match="the 1 files of runs lie in"):
        read_file(aggregate)


@pytest.mark.parametrize("path", [SUMMARY, DATA / "loadgen.json"], ids=lambda path: path.name)
def test_no_beginning_of_a_file_gives_another_number(tmp_path, path):
    expected = read_file(path).points
    damaged = tmp_path / path.name
    for beginning in fuzzing.truncations(path, step=211):
        damaged.write_bytes(beginning)
        fuzzing.assert_sound(read_file, damaged, expected)


@settings(max_examples=150)
@given(mutation=fuzzing.mutations(document()))
def test_a_damaged_summary_is_refused_or_right(tmp_path_factory, mutation):
    path = mutation.write(tmp_path_factory.mktemp("aiperf") / "profile_export_aiperf.json")
    fuzzing.assert_sound(read_file, path, read_file(SUMMARY).points, sets(mutation))


def test_what_others_published_has_no_load():
    sample = SAMPLES / "aiperf" / "profile_export_aiperf_issue340_partial.json"
    if not sample.exists():
        pytest.skip("the published samples are not beside this repository")
    with pytest.raises(UserError, match="input_config is missing"):
        read_file(sample)
    with pytest.raises(UserError, match="at most 1 requests were in flight"):
        read_file(SAMPLES / "aiperf" / "profile_export_record_ok_and_cancelled.jsonl")


def _left_out(found):
    return list(found.notes.not_converted)
