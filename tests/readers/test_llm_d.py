"""llm-d benchmark reports: units by field, definitions by load generator, devices of all hosts."""

import json
from pathlib import Path

import fuzzing
import pytest
import yaml
from hypothesis import given, settings

from wholecurve.errors import UserError
from wholecurve.readers.recognise import read_file

DATA = Path(__file__).parents[1] / "data" / "readers" / "llm_d"
VLLM = DATA / "report_v0_1_vllm.yaml"
GUIDELLM = DATA / "report_v0_2_guidellm.yaml"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"

TPOT = {"tpot_p50_ms", "tpot_p90_ms", "decode_speed_tok_per_s", "decode_speed_p90_tok_per_s"}
ITL = {"itl_p50_ms", "itl_p90_ms"}
E2E = {"e2e_p50_ms", "e2e_p90_ms", "achieved_concurrency"}
TAILS = {f"{name}_p99_ms" for name in ("ttft", "tpot", "e2e", "itl")}
THROUGHPUT = {"output_throughput_tok_per_s", "logical_throughput_tok_per_s", "achieved_concurrency"}
# Columns that a damaged field sets and nothing else in the file can confirm.
SETS = {
    "time_to_first_token": {"ttft_p50_ms", "ttft_p90_ms"},
    "time_per_output_token": TPOT,
    "inter_token_latency": TPOT | ITL,
    "request_latency": E2E,
    "throughput": THROUGHPUT,
    "requests": {"n_completed", "n_failed", "mean_input_tokens", "mean_output_tokens"} | TAILS,
    "time": {"window_s"},
    "host": {"devices"},
    "stack": {"devices"},
    "load": {"load"} | E2E,
}


def document(path=VLLM):
    return yaml.safe_load(path.read_text())


def written(tmp_path, value):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(value))
    return path


def only(path):
    (row,) = read_file(path).points.to_dict("records")
    return row


def latency(report):
    return report["metrics"]["latency"]


def sets(mutation):
    return set().union(*(SETS.get(part, ()) for part in mutation.field))


def test_a_report_of_vllm_gives_its_tpot_and_its_gaps_apart():
    found = read_file(VLLM)
    row, raw = found.points.to_dict("records")[0], document()
    assert (found.format, row["load_kind"], row["load"]) == ("llm-d benchmark report", "concurrency", 4)
    assert row["tpot_p50_ms"] == latency(raw)["time_per_output_token"]["p50"]
    assert row["itl_p50_ms"] == latency(raw)["inter_token_latency"]["p50"] == 2 * row["tpot_p50_ms"]
    assert row["decode_speed_tok_per_s"] == pytest.approx(1000 / latency(raw)["time_per_output_token"]["p50"])
    assert row["decode_speed_p90_tok_per_s"] == pytest.approx(1000 / latency(raw)["time_per_output_token"]["p90"])
    assert row["output_throughput_tok_per_s"] == raw["metrics"]["throughput"]["output_tokens_per_sec"]
    assert (row["n_completed"], row["precision"], row["window_s"]) == (40, "bf16", raw["metrics"]["time"]["duration"])
    in_flight = raw["metrics"]["throughput"]["requests_per_sec"] * latency(raw)["request_latency"]["mean"] / 1000
    assert row["achieved_concurrency"] == pytest.approx(in_flight)


def test_all_hosts_are_counted_also_those_that_only_prefill():
    row = only(VLLM)
    assert (row["devices"], row["device_kind"], row["source"]) == (17, "gpu", "measured (gpu)")
    assert row["hardware"] == "17 × H100"
    assert row["contender"] == "vllm Small-1B (prefill + 2 × decode tp8)"
    row = only(GUIDELLM)
    assert (row["devices"], row["hardware"]) == (10, "8 × H200 + 2 × H100")
    assert row["configuration"] == "2 × decode tp4 + prefill tp2"


def test_guidellms_tpot_is_what_the_report_calls_inter_token_latency():
    found = read_file(GUIDELLM)
    row = found.points.to_dict("records")[0]
    fields = document(GUIDELLM)["results"]["request_performance"]["aggregate"]["latency"]
    # In seconds in the file, beside a TTFT in milliseconds.
    assert row["tpot_p50_ms"] == pytest.approx(1000 * fields["inter_token_latency"]["p50"])
    assert row["tpot_p50_ms"] < fields["time_per_output_token"]["p50"]
    assert row["ttft_p50_ms"] == fields["time_to_first_token"]["p50"]
    assert "itl_p50_ms" not in row
    assert any(s.startswith("time_per_output_token: counted from the request's start") for s in _left_out(found))


def test_guidellms_request_latency_is_not_believed_when_it_is_called_milliseconds(tmp_path):
    found = read_file(GUIDELLM)
    assert not {"e2e_p50_ms", "achieved_concurrency"} & set(found.points)
    assert any(s.startswith("request_latency: in seconds by GuideLLM, called ms") for s in _left_out(found))
    raw = document(GUIDELLM)
    aggregate = raw["results"]["request_performance"]["aggregate"]
    aggregate["latency"]["request_latency"]["units"] = "s"
    row = only(written(tmp_path, raw))
    assert row["e2e_p50_ms"] == pytest.approx(1000 * aggregate["latency"]["request_latency"]["p50"])
    assert row["achieved_concurrency"] == pytest.approx(3.87, abs=0.01)


def test_requests_are_told_apart_into_completed_failed_and_cut_off():
    found = read_file(GUIDELLM)
    row = found.points.to_dict("records")[0]
    assert (row["n_completed"], row["n_failed"]) == (40, 2)
    assert any(s.startswith("3 requests were cut off") for s in _left_out(found))


def test_the_workload_of_the_newer_schema_is_what_was_asked_for(tmp_path):
    assert only(GUIDELLM)["workload"] == "128 in / 34 ± 2 out"
    raw = document(GUIDELLM)
    raw["scenario"]["load"]["standardized"]["input_seq_len"]["distribution"] = "other"
    assert only(written(tmp_path, raw))["workload"] == "decode"


@pytest.mark.parametrize(("units", "factor"), [("ms/token", 1), ("s/token", 1e-3), ("ms", 1), ("s", 1e-3)])
def test_units_are_those_of_the_field(tmp_path, units, factor):
    raw = document()
    tpot = latency(raw)["time_per_output_token"]
    latency(raw)["time_per_output_token"] = {k: v * factor for k, v in tpot.items() if k != "units"} | {"units": units}
    assert only(written(tmp_path, raw))["tpot_p90_ms"] == pytest.approx(tpot["p90"])


@pytest.mark.parametrize("units", ["min", None, ""])
def test_unknown_units_are_refused(tmp_path, units):
    raw = document()
    latency(raw)["time_to_first_token"]["units"] = units
    with pytest.raises(UserError, match="time_to_first_token: units is"):
        read_file(written(tmp_path, raw))
    raw = document(GUIDELLM)
    raw["results"]["request_performance"]["aggregate"]["throughput"]["output_token_rate"]["units"] = "tokens/min"
    with pytest.raises(UserError, match="output_token_rate: units is 'tokens/min'; tokens/s is needed"):
        read_file(written(tmp_path, raw))


def test_an_unknown_load_generator_gives_no_decode_speed(tmp_path):
    raw = document()
    raw["scenario"]["load"]["name"] = "homemade"
    found = read_file(written(tmp_path, raw))
    assert not {"decode_speed_tok_per_s", "tpot_p50_ms", "itl_p50_ms"} & set(found.points)
    assert found.points["ttft_p50_ms"].item() == only(VLLM)["ttft_p50_ms"]
    assert any("how homemade defines time_per_output_token" in s for s in _left_out(found))


def test_a_mean_is_used_only_where_there_is_nothing_else_and_said(tmp_path):
    raw = document()
    latency(raw)["time_per_output_token"] = {"units": "s/token", "mean": 0.02}
    found = read_file(written(tmp_path, raw))
    row = found.points.to_dict("records")[0]
    assert (row["decode_speed_tok_per_s"], row["speed_from"]) == (pytest.approx(50), "mean TPOT")
    assert "tpot_p50_ms" not in row
    latency(raw)["time_per_output_token"]["p90"] = 0.03
    found = read_file(written(tmp_path, raw))
    assert "decode_speed_tok_per_s" not in found.points
    assert any(
        s.startswith("decode speed: time_per_output_token is an object, without a p50") for s in _left_out(found)
    )


def test_a_speed_that_no_server_reaches_shows_a_wrong_unit(tmp_path):
    raw = document()
    for name, fields in latency(raw).items():
        latency(raw)[name] = {k: v / 1000 if k != "units" else v for k, v in fields.items()}
    found = read_file(written(tmp_path, raw))
    assert not {"decode_speed_tok_per_s", "ttft_p50_ms", "e2e_p50_ms", "achieved_concurrency"} & set(found.points)
    assert found.points["output_throughput_tok_per_s"].item() == only(VLLM)["output_throughput_tok_per_s"]
    assert any("one user gets 67227 tok/s, which no server reaches" in s for s in _left_out(found))


def test_kinds_of_errors_are_not_taken_for_errors(tmp_path):
    raw = document()
    raw["scenario"]["load"]["name"] = "aiperf"
    raw["metrics"]["requests"]["failures"] = 2
    found = read_file(written(tmp_path, raw))
    row = found.points.to_dict("records")[0]
    assert row["n_completed"] == 40
    assert "n_failed" not in row
    assert row["tpot_p50_ms"] == latency(raw)["inter_token_latency"]["p50"]
    assert any(s.startswith("failures: llm-d's converter counts kinds") for s in _left_out(found))


@pytest.mark.parametrize(
    ("args", "kind", "load"),
    [
        ({"request_rate": "inf", "max_concurrency": 8}, "concurrency", 8),
        ({"request_rate": 2.5, "max_concurrency": None}, "request_rate", 2.5),
        ({"qps_values": 1.34, "num_users": 15}, "request_rate", 1.34),
        ({"profile": "concurrent", "rate": [1, 16]}, "concurrency", 16),
        ({"profile": "poisson", "rate": [1.5, 3.5]}, "request_rate", 3.5),
        ({"profile": "synchronous", "rate": None}, "concurrency", 1),
        ({"strategy": {"type_": "concurrent", "streams": 6}}, "concurrency", 6),
        ({"load": {"stages": [{"rate": 2}, {"rate": 5.0}]}}, "request_rate", 5.0),
        ({"load": {"stages": [{"rate": 2}, {"rate": 5.0, "concurrency_level": 7}]}}, "request_rate", 5.0),
    ],
)
def test_the_load_is_read_from_the_arguments_of_each_generator(tmp_path, args, kind, load):
    raw = document()
    raw["scenario"]["load"] |= {"args": args, "metadata": {"stage": 1}}
    row = only(written(tmp_path, raw))
    assert (row["load_kind"], row["load"]) == (kind, load)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({"args": {"num_prompts": 40}}, "names no concurrency and no request rate"),
        ({"args": None}, "load.args is null; an object is needed"),
        ({"args": {"profile": "sweep", "rate": [5]}}, "profile is 'sweep', whose rate is not in the file"),
        ({"args": {"profile": "concurrent", "rate": [5]}, "metadata": {"stage": 1}}, "none for stage 1"),
        ({"args": {"load": {"stages": []}}}, "load.stages is a list of 0"),
        ({"args": {"max_concurrency": 4}, "metadata": {"load_parallel": "3"}}, "several load generators ran at once"),
    ],
)
def test_a_load_that_the_file_does_not_hold_is_refused(tmp_path, load, message):
    raw = document()
    raw["scenario"]["load"] = {"name": "vllm-benchmark", **load}
    with pytest.raises(UserError, match=message):
        read_file(written(tmp_path, raw))


@pytest.mark.parametrize(
    ("standard", "kind", "load"),
    [
        ({"concurrency": float("inf"), "rate_qps": 10.0}, "request_rate", 10.0),
        ({"concurrency": 12, "rate_qps": float("inf")}, "concurrency", 12),
    ],
)
def test_what_is_infinite_is_not_the_load(tmp_path, standard, kind, load):
    raw = document(GUIDELLM)
    raw["scenario"]["load"]["standardized"] |= standard
    path = tmp_path / "report.yaml"
    path.write_text(yaml.safe_dump(raw))
    row = only(path)
    assert (row["load_kind"], row["load"]) == (kind, load)


def test_one_of_several_generators_is_not_the_server(tmp_path):
    raw = document(GUIDELLM)
    raw["scenario"]["load"]["standardized"]["parallelism"] = 4
    with pytest.raises(UserError, match=r"load\.standardized\.parallelism is 4: several load generators"):
        read_file(written(tmp_path, raw))


@pytest.mark.parametrize("parallelism", [{"tp": -1, "dp": -1}, {"tp": 8, "dp": 0}])
def test_devices_that_the_environment_did_not_set_are_not_counted(tmp_path, parallelism):
    raw = document()
    raw["scenario"]["host"]["accelerator"][1]["parallelism"] = parallelism
    found = read_file(written(tmp_path, raw))
    assert (found.points["devices"].item(), found.points["device_kind"].item()) == (1, "server")
    assert any(s.startswith("devices: a host's count is missing") for s in _left_out(found))


def test_workers_of_a_host_are_devices_too(tmp_path):
    raw = document(GUIDELLM)
    raw["scenario"]["stack"][0]["standardized"]["accelerator"]["parallelism"]["workers"] = 3
    assert only(written(tmp_path, raw))["devices"] == 2 * 4 * 3 + 2


def test_a_host_that_is_missing_from_one_list_is_found_out(tmp_path):
    raw = document()
    del raw["scenario"]["host"]["accelerator"][0]
    with pytest.raises(UserError, match=r"host\.type has 3 entries, host\.accelerator 2"):
        read_file(written(tmp_path, raw))


def test_another_version_of_the_schema_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"version is 0\.9; 0\.1 or 0\.2 is needed"):
        read_file(written(tmp_path, {**document(), "version": "0.9"}))
    assert only(written(tmp_path, {**document(GUIDELLM), "version": "0.2.1"}))["devices"] == 10


@pytest.mark.parametrize("path", [VLLM, GUIDELLM], ids=lambda path: path.name)
def test_no_beginning_of_a_file_gives_another_number(tmp_path, path):
    expected = read_file(path).points
    damaged = tmp_path / path.name
    for beginning in fuzzing.truncations(path, step=53):
        damaged.write_bytes(beginning)
        fuzzing.assert_sound(read_file, damaged, expected)
    lines = path.read_text().splitlines(keepends=True)
    for n in range(1, len(lines)):
        damaged.write_text("".join(lines[:n]))
        fuzzing.assert_sound(read_file, damaged, expected)


@pytest.mark.parametrize("path", [VLLM, GUIDELLM], ids=lambda path: path.name)
def test_a_damaged_report_is_refused_or_right(tmp_path_factory, path):
    expected = read_file(path).points

    @settings(max_examples=120)
    @given(mutation=fuzzing.mutations(document(path)))
    def check(mutation):
        damaged = mutation.write(tmp_path_factory.mktemp("llm_d") / "report.json")
        fuzzing.assert_sound(read_file, damaged, expected, sets(mutation))

    check()


def test_the_published_example_has_devices_and_no_believable_unit():
    if not SAMPLES.exists():
        pytest.skip("the published samples are not beside this repository")
    found = read_file(SAMPLES / "llm-d" / "br_v0_1_example.yaml")
    row = found.points.to_dict("records")[0]
    assert (row["devices"], row["load_kind"], row["load"]) == (17, "request_rate", 1.34)
    assert "decode_speed_tok_per_s" not in row
    assert any("16343 tok/s, which no server reaches" in s for s in _left_out(found))
    row = only(SAMPLES / "inference-perf" / "llm-d_inference_perf_lifecycle.yaml")
    assert row["decode_speed_tok_per_s"] == pytest.approx(125.53, abs=0.01)
    assert "tpot_p90_ms" not in row


def _left_out(found):
    return list(found.notes.not_converted)
