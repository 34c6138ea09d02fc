"""GuideLLM reports of both layouts: seconds and milliseconds, the TPOT that is one, the mean and not the median."""

import json
from pathlib import Path
from statistics import median

import fuzzing
import pytest
import yaml
from hypothesis import given, settings

from wholecurve.errors import UserError
from wholecurve.readers.recognise import read_file

DATA = Path(__file__).parents[1] / "data" / "readers" / "guidellm"
REPORT = DATA / "report_v2.json"
OLD = DATA / "report_v1.yaml"
REAL = Path(__file__).parents[2] / "data" / "foreign" / "llama-server-smollm2"
SAMPLE = Path(__file__).parents[2].parent / "shared" / "samples" / "guidellm" / "llm-d_guidellm_report_v2.json"

TPOT = {"tpot_p50_ms", "tpot_p90_ms", "decode_speed_tok_per_s", "decode_speed_p90_tok_per_s"}
LATENCIES = {"ttft_p50_ms", "ttft_p90_ms", "e2e_p50_ms", "e2e_p90_ms", *TPOT}
TAILS = {"ttft_p99_ms", "tpot_p99_ms", "e2e_p99_ms"}
THROUGHPUT = {"output_throughput_tok_per_s", "logical_throughput_tok_per_s"}
# Columns that a damaged field sets and nothing else in the file can confirm.
SETS = {
    "time_to_first_token_ms": {"ttft_p50_ms", "ttft_p90_ms"},
    "inter_token_latency_ms": TPOT,
    "request_latency": {"e2e_p50_ms", "e2e_p90_ms"},
    "output_tokens_per_second": THROUGHPUT,
    "tokens_per_second": THROUGHPUT,
    "request_concurrency": {"achieved_concurrency"},
    "output_tokens_per_iteration": {"tokens_per_chunk"},
    "prompt_token_count": {"mean_input_tokens"},
    "output_token_count": {"mean_output_tokens"},
    # Other requests in the window: the report's percentiles instead of those of its requests, or the other way.
    "request_totals": {"n_completed", "n_failed", *THROUGHPUT, *LATENCIES, *TAILS},
    "requests": LATENCIES,
    "warmup_duration": LATENCIES,
    "cooldown_duration": LATENCIES,
    "duration": {"window_s"},
    "strategy": {"load"},
    "profile": {"load"},
}


def document():
    return json.loads(REPORT.read_text())


def without_throughput():
    """The report without its third benchmark, which gives no point."""
    raw = document()
    del raw["benchmarks"][2]
    return raw


def written(tmp_path, value):
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps(value))
    return path


def rows(path):
    return read_file(path).points.to_dict("records")


def sets(mutation):
    return set().union(*(SETS.get(part, ()) for part in mutation.field))


def test_each_benchmark_is_a_point():
    found = read_file(REPORT)
    first, second = found.points.to_dict("records")
    assert found.format == "GuideLLM"
    assert [(row["load_kind"], row["load"]) for row in (first, second)] == [("concurrency", 1), ("concurrency", 4)]
    assert (first["contender"], first["workload"]) == ("Small-1B", "128 in / 34 ± 2 out")
    assert (first["device_kind"], first["devices"]) == ("server", 1)
    raw = document()["benchmarks"][0]
    assert first["window_s"] == raw["duration"]
    assert first["achieved_concurrency"] == pytest.approx(raw["metrics"]["request_concurrency"]["total"]["mean"])
    assert (first["mean_output_tokens"], first["tokens_per_chunk"]) == (34.0, 1.0)


def test_request_latency_is_in_seconds_and_the_others_are_not():
    row, metrics = rows(REPORT)[1], document()["benchmarks"][1]["metrics"]
    assert row["e2e_p90_ms"] == pytest.approx(1000 * metrics["request_latency"]["successful"]["percentiles"]["p90"])
    assert row["ttft_p50_ms"] == metrics["time_to_first_token_ms"]["successful"]["percentiles"]["p50"]
    assert row["ttft_p50_ms"] < row["e2e_p50_ms"] < 10_000


def test_the_tpot_is_the_one_without_the_first_token():
    found = read_file(REPORT)
    row, metrics = found.points.to_dict("records")[1], document()["benchmarks"][1]["metrics"]
    tpot = metrics["inter_token_latency_ms"]["successful"]["percentiles"]
    with_ttft = metrics["time_per_output_token_ms"]["successful"]["percentiles"]
    assert row["tpot_p50_ms"] == tpot["p50"] < with_ttft["p50"]
    assert row["decode_speed_tok_per_s"] == pytest.approx(1000 / tpot["p50"])
    assert row["decode_speed_p90_tok_per_s"] == pytest.approx(1000 / tpot["p90"])
    assert any(s.startswith("time_per_output_token_ms: counted from the request's start") for s in _left_out(found))


def test_throughput_is_the_mean_over_time_and_not_the_median_of_bursts():
    row, metrics = rows(REPORT)[0], document()["benchmarks"][0]["metrics"]
    rate = metrics["output_tokens_per_second"]["successful"]
    assert row["output_throughput_tok_per_s"] == rate["mean"] > 2 * rate["median"]
    tokens = metrics["output_token_count"]["successful"]["total_sum"]
    assert row["output_throughput_tok_per_s"] == pytest.approx(tokens / row["window_s"], rel=1e-6)
    assert row["logical_throughput_tok_per_s"] == metrics["tokens_per_second"]["successful"]["mean"]


def test_requests_that_were_cut_off_count_in_the_throughput_and_are_named():
    found = read_file(REPORT)
    row, metrics = found.points.to_dict("records")[1], document()["benchmarks"][1]["metrics"]
    rate = metrics["output_tokens_per_second"]
    assert row["output_throughput_tok_per_s"] == rate["total"]["mean"] > rate["successful"]["mean"]
    assert (row["n_completed"], row["n_failed"]) == (40, 2)
    assert any(s.startswith("3 requests were cut off at the end of the run") for s in _left_out(found))
    assert any("output_tokens_per_second.total, not its median" in s for s in found.notes.converted)


def test_percentiles_count_each_request_once_where_the_report_has_them_all(tmp_path):
    raw = document()
    requests = raw["benchmarks"][0]["requests"]["successful"]
    row = rows(REPORT)[0]
    assert row["tpot_p50_ms"] == pytest.approx(median(one["inter_token_latency_ms"] for one in requests))
    assert row["e2e_p50_ms"] == pytest.approx(median(1000 * one["request_latency"] for one in requests))
    # One long request among short ones: half of all tokens are its own, but it is one of forty.
    requests[0] |= {"output_tokens": 10_000, "inter_token_latency_ms": 900.0}
    weighted = raw["benchmarks"][0]["metrics"]["inter_token_latency_ms"]["successful"]
    weighted["percentiles"] = dict.fromkeys(weighted["percentiles"], 900.0)
    found = read_file(written(tmp_path, raw))
    assert found.points["tpot_p50_ms"][0] < 20
    raw["benchmarks"][0]["requests"]["successful"] = requests[:30]
    found = read_file(written(tmp_path, raw))
    assert found.points["tpot_p50_ms"][0] == 900.0
    assert any("count a request once for each of its tokens" in s for s in found.notes.converted)


def test_a_request_of_one_token_has_no_tpot(tmp_path):
    raw = document()
    raw["benchmarks"][0]["requests"]["successful"][0] |= {"output_tokens": 1, "inter_token_latency_ms": None}
    requests = raw["benchmarks"][0]["requests"]["successful"][1:]
    row = rows(written(tmp_path, raw))[0]
    assert row["tpot_p50_ms"] == pytest.approx(median(one["inter_token_latency_ms"] for one in requests))


def test_a_window_that_leaves_requests_out_uses_the_reports_own_numbers(tmp_path):
    raw = document()
    raw["benchmarks"][0]["warmup_duration"] = 1.5
    found = read_file(written(tmp_path, raw))
    percentiles = raw["benchmarks"][0]["metrics"]["inter_token_latency_ms"]["successful"]["percentiles"]
    assert found.points["tpot_p50_ms"][0] == percentiles["p50"]
    assert any("leaves out GuideLLM's warmup_duration" in s for s in found.notes.converted)


@pytest.mark.parametrize(
    ("strategy", "kind", "load"),
    [
        ({"type_": "synchronous"}, "concurrency", 1),
        ({"type_": "concurrent", "max_concurrency": 6}, "concurrency", 6),
        ({"type_": "concurrent", "streams": 6}, "concurrency", 6),
        ({"type_": "constant", "rate": 2.5, "max_concurrency": 10240}, "request_rate", 2.5),
        ({"type_": "poisson", "rate": 2.5}, "request_rate", 2.5),
    ],
)
def test_the_load_is_what_the_strategy_sets(tmp_path, strategy, kind, load):
    raw = document()
    raw["benchmarks"] = raw["benchmarks"][:1]
    raw["benchmarks"][0]["config"]["strategy"] = strategy
    (row,) = rows(written(tmp_path, raw))
    assert (row["load_kind"], row["load"]) == (kind, load)
    assert "configuration" not in row


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ({"type_": "throughput", "max_concurrency": 512}, "type_ is 'throughput', which has no load level of its own"),
        ({"type_": "trace", "time_scale": 1.0}, "type_ is 'trace', which has no load level"),
        ({"type_": "concurrent"}, "streams is missing; a whole number from 1 up"),
        ({"type_": "concurrent", "streams": 4, "max_concurrency": 8}, "streams is 4, but max_concurrency 8"),
        ({"type_": "constant", "rate": 0}, "rate is 0; a finite number above 0"),
        ({}, "type_ is missing"),
    ],
)
def test_a_strategy_without_one_load_is_refused(tmp_path, strategy, message):
    raw = document()
    raw["benchmarks"] = raw["benchmarks"][:1]
    raw["benchmarks"][0]["config"]["strategy"] = strategy
    with pytest.raises(UserError, match=message):
        read_file(written(tmp_path, raw))


def test_a_cap_that_the_user_set_is_the_load_of_throughput_and_said_of_a_rate(tmp_path):
    raw = document()
    raw["benchmarks"][2]["config"]["profile"]["max_concurrency"] = 32
    row = rows(written(tmp_path, raw))[2]
    assert (row["load"], row["configuration"]) == (32, "throughput strategy")
    raw["benchmarks"][2]["config"]["strategy"] = {"type_": "constant", "rate": 9.0}
    row = rows(written(tmp_path, raw))[2]
    assert (row["load_kind"], row["configuration"]) == ("request_rate", "at most 32 requests in flight")


def test_a_benchmark_without_a_load_is_dropped_and_the_others_stay():
    found = read_file(REPORT)
    assert len(found.points) == 2
    assert len(found.notes.dropped) == 1
    assert "benchmark 3, config.strategy: type_ is 'throughput'" in found.notes.dropped[0]


def test_a_median_in_place_of_the_mean_is_found_out(tmp_path):
    raw = document()
    rate = raw["benchmarks"][0]["metrics"]["output_tokens_per_second"]["successful"]
    rate["mean"] = rate["median"]
    found = read_file(written(tmp_path, raw))
    assert found.points["load"].tolist() == [4]
    assert any("1360 tokens in 25.09 s are 54.22 tok/s; one of them is wrong" in s for s in found.notes.dropped)


def test_nothing_completed_is_no_point_at_all(tmp_path):
    raw = document()
    raw["benchmarks"] = raw["benchmarks"][:1]
    raw["benchmarks"][0]["metrics"]["request_totals"] |= {"successful": 0, "errored": 40}
    raw["benchmarks"][0]["metrics"]["output_tokens_per_second"]["successful"]["mean"] = 0.0
    with pytest.raises(UserError, match=r"output_tokens_per_second.successful: mean is 0"):
        read_file(written(tmp_path, raw))


def test_replies_without_streaming_have_no_decode_speed(tmp_path):
    raw = document()
    for one in raw["benchmarks"][0]["requests"]["successful"]:
        one |= {"time_to_first_token_ms": None, "inter_token_latency_ms": None}
    metrics = raw["benchmarks"][1]["metrics"]
    for name in ("time_to_first_token_ms", "inter_token_latency_ms"):
        metrics[name]["successful"]["percentiles"] = dict.fromkeys(metrics[name]["successful"]["percentiles"], 0.0)
    found = read_file(written(tmp_path, raw))
    assert len(found.points) == 2
    assert not {"decode_speed_tok_per_s", "ttft_p50_ms"} & set(found.points)
    assert any(s.startswith("TPOT: 0 or missing in the report; a run without streaming") for s in _left_out(found))


def test_the_older_layout_says_the_same_in_other_places():
    sync, constant = rows(OLD)
    assert [(row["load_kind"], row["load"]) for row in (sync, constant)] == [("concurrency", 1), ("request_rate", 3.5)]
    metrics = yaml.safe_load(OLD.read_text())["benchmarks"][0]["metrics"]
    assert sync["e2e_p50_ms"] == pytest.approx(1000 * metrics["request_latency"]["successful"]["percentiles"]["p50"])
    assert sync["tpot_p50_ms"] == metrics["inter_token_latency_ms"]["successful"]["percentiles"]["p50"]
    assert (sync["workload"], sync["contender"], sync["n_failed"]) == ("128 in / 34 out", "Small-1B", 0)


@pytest.mark.parametrize(
    ("data", "workload"),
    [
        ({"kind": "synthetic_text", "prompt_tokens": 9, "turns": 2}, "9 in, turns=2"),
        ({"kind": "huggingface", "source": "org/set"}, "org/set"),
        ('{"prompt_tokens": 256, "output_tokens": 128}', "256 in / 128 out"),
        ("prompt_tokens=256,output_tokens=128,prefix_tokens=64", "256 in / 128 out, prefix_tokens=64"),
        ("org/set", "org/set"),
        (None, "decode"),
    ],
)
def test_the_workload_is_the_data_that_was_asked_for(tmp_path, data, workload):
    raw = document()
    raw["config"]["spec"]["data"] = [data]
    assert rows(written(tmp_path, raw))[0]["workload"] == workload


def test_a_label_is_the_contender(tmp_path):
    raw = document()
    raw["config"]["metadata"]["labels"] = {"name": "vllm tp2"}
    assert rows(written(tmp_path, raw))[0]["contender"] == "vllm tp2"


def test_json_and_yaml_give_the_same_points(tmp_path):
    path = tmp_path / "benchmarks.yaml"
    path.write_text(yaml.safe_dump(document()))
    assert read_file(path).points.equals(read_file(REPORT).points)


@pytest.mark.parametrize("path", [REPORT, OLD], ids=lambda path: path.name)
def test_no_beginning_of_a_file_gives_another_number(tmp_path, path):
    expected = read_file(path).points
    damaged = tmp_path / path.name
    for beginning in fuzzing.truncations(path, step=509):
        damaged.write_bytes(beginning)
        fuzzing.assert_sound(read_file, damaged, expected)


def test_a_yaml_file_that_ends_on_a_whole_line_lacks_what_a_point_needs(tmp_path):
    lines = OLD.read_text().splitlines(keepends=True)
    expected = read_file(OLD).points
    damaged = tmp_path / "report.yaml"
    for n in range(1, len(lines), 7):
        damaged.write_text("".join(lines[:n]))
        fuzzing.assert_sound(read_file, damaged, expected)


@settings(max_examples=150)
@given(mutation=fuzzing.mutations(without_throughput()))
def test_a_damaged_report_is_refused_or_right(tmp_path_factory, mutation):
    path = mutation.write(tmp_path_factory.mktemp("guidellm") / "benchmarks.json")
    fuzzing.assert_sound(read_file, path, read_file(REPORT).points, sets(mutation))


def test_real_reports_agree_with_their_requests():
    files = [path for path in sorted(REAL.rglob("*.json")) if '"guidellm_version"' in path.read_text()[:4096]]
    if not files:
        pytest.skip("no recorded report of GuideLLM in data/foreign")
    compared = 0
    for path in files:
        benchmarks = json.loads(path.read_text())["benchmarks"]
        for row, raw in zip(rows(path), benchmarks, strict=True):
            assert row["load"] == raw["config"]["strategy"]["streams"]
            tpot = raw["metrics"]["inter_token_latency_ms"]["successful"]["percentiles"]
            assert row["tpot_p50_ms"] == pytest.approx(tpot["p50"], rel=0.05)
            done = [one for one in raw["requests"]["successful"] if one["request_end_time"] >= raw["start_time"]]
            if not done:
                continue
            compared += 1
            of_requests = median(one["inter_token_latency_ms"] for one in done if one["output_tokens"] > 1)
            assert row["tpot_p50_ms"] == pytest.approx(of_requests, rel=0.05)
            assert row["e2e_p50_ms"] == pytest.approx(1000 * median(one["request_latency"] for one in done), rel=0.05)
    assert compared >= 3


def test_the_published_report_gives_its_throughput_and_not_the_burst():
    if not SAMPLE.exists():
        pytest.skip("the published samples are not beside this repository")
    found = read_file(SAMPLE)
    row = found.points.to_dict("records")[0]
    assert (row["load_kind"], row["load"]) == ("request_rate", 2.0)
    assert row["output_throughput_tok_per_s"] == pytest.approx(3.195, abs=1e-3)
    assert row["e2e_p50_ms"] == pytest.approx(19.27, abs=0.01)
    assert row["decode_speed_tok_per_s"] == pytest.approx(1000 / 1.04598, rel=1e-4)
    assert "tpot_p90_ms" not in found.points


def _left_out(found):
    return list(found.notes.not_converted)
