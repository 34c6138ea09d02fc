"""vLLM's serving results: what each number becomes, and which rows must not become one."""

import json
import math
import warnings
from pathlib import Path

import pandas as pd
import pytest
from fuzzing import VALUES, assert_sound, document_of_lines, fields_of, mutate, mutations, truncations
from hypothesis import HealthCheck, given, settings

from wholecurve.errors import UserError
from wholecurve.readers.content import read_content
from wholecurve.readers.recognise import read_file
from wholecurve.readers.serving.vllm import recognises

DATA = Path(__file__).parents[1] / "data" / "readers" / "vllm"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
GONE = object()

sample = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the collection of real result files is not on this machine")


def changed(tmp_path, name="serve_conc16.json", /, **fields):
    """A data file with some fields changed, or removed with GONE."""
    document = json.loads((DATA / name).read_text()) | fields
    path = tmp_path / name
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not GONE}))
    return path


def only(found):
    (row,) = found.points.to_dict("records")
    return {name: value for name, value in row.items() if not (isinstance(value, float) and math.isnan(value))}


def said(found):
    document = found.to_document()
    return "\n".join(document["converted"] + document["not_converted"] + document["dropped"])


def refused(path):
    with pytest.raises(UserError) as caught:
        read_file(path)
    return str(caught.value)


def test_one_run_becomes_one_point_with_all_its_numbers():
    found = read_file(DATA / "serve_conc16.json")
    assert found.format == "vLLM bench serve"
    row = only(found)
    assert row.pop("achieved_concurrency") == pytest.approx(4.95 * 400 / 125)
    assert row == {
        "contender": "vllm Tiny-8B",
        "workload": "decode",
        "load_kind": "concurrency",
        "load": 16,
        "repeat": 1,
        "devices": 4,
        "device_kind": "gpu",
        "source": "measured (gpu)",
        "model": "acme/Tiny-8B",
        "hardware": "H100",
        "configuration": "tensor_parallel_size=4, hardware=H100",
        "decode_speed_tok_per_s": 50.0,
        "decode_speed_p90_tok_per_s": 40.0,
        "speed_from": "median TPOT",
        "output_throughput_tok_per_s": 643.2,
        "logical_throughput_tok_per_s": 3843.2,
        "window": "full",
        "window_s": 125.0,
        "n_completed": 400,
        "n_failed": 0,
        "output_tokens": 80400,
        "mean_input_tokens": 1000.0,
        "mean_output_tokens": 201.0,
        **{"ttft_p50_ms": 800.0, "ttft_p90_ms": 1200.0, "ttft_p99_ms": 2000.0},
        **{"tpot_p50_ms": 20.0, "tpot_p90_ms": 25.0, "tpot_p99_ms": 40.0},
        **{"e2e_p50_ms": 4752.0, "e2e_p90_ms": 6187.5, "e2e_p99_ms": 9900.0},
        **{"itl_p50_ms": 19.0, "itl_p90_ms": 22.0, "itl_p99_ms": 60.0},
    }


def test_names_without_ms_are_seconds():
    found = read_file(DATA / "serve_seconds.json")
    row = only(found)
    assert (row["tpot_p50_ms"], row["ttft_p50_ms"], row["e2e_p99_ms"]) == pytest.approx((40, 750, 9600))
    assert row["decode_speed_tok_per_s"] == pytest.approx(25)
    assert row["contender"] == "Tiny-8B-FP8" and "logical_throughput_tok_per_s" not in row
    assert "are seconds: times 1000" in said(found)


def test_milliseconds_under_a_name_that_means_seconds_are_refused(tmp_path):
    assert "median_tpot means 40000 ms, which does not fit into a run of 60 s" in refused(
        changed(tmp_path, "serve_seconds.json", median_tpot=40.0)
    )


def test_appended_runs_are_rows_and_the_same_load_twice_is_a_repeat():
    found = read_file(DATA / "serve_appended.json")
    assert found.points[["load", "repeat"]].values.tolist() == [[8, 1], [16, 1], [16, 2]]
    assert found.points["output_throughput_tok_per_s"].tolist() == pytest.approx([335, 643.2, 80400 / 126])


def test_a_sweep_names_its_parameters_and_repeats():
    found = read_file(DATA / "sweep_summary.json")
    rows = found.points
    assert set(rows["contender"]) == {"vllm Tiny-8B max_num_seqs=8", "vllm Tiny-8B max_num_seqs=64"}
    assert (rows.groupby(["contender", "load"])["repeat"].apply(list).map(tuple) == (1, 2)).all()
    assert set(rows["configuration"]) == {"max_num_seqs=8", "max_num_seqs=64"}


def test_the_csv_of_a_sweep_says_the_same_as_its_json():
    pd.testing.assert_frame_equal(
        read_file(DATA / "sweep_summary.csv").points, read_file(DATA / "sweep_summary.json").points, check_dtype=False
    )


def test_the_warm_up_of_a_sweep_is_no_run(tmp_path):
    path = tmp_path / "warmup.json"
    path.write_text(json.dumps(json.loads((DATA / "sweep_summary.json").read_text())[0] | {"run_number": -1}))
    assert "run_number is -1, the sweep's warm-up" in refused(path)


def test_lengths_in_the_parameters_name_the_workload_and_no_contender(tmp_path):
    rows = json.loads((DATA / "sweep_summary.json").read_text())[:2]
    rows = [row | {"random_input_len": n, "random_output_len": 201} for row, n in zip(rows, (1000, 2000))]
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(rows))
    points = read_file(path).points
    assert points["workload"].tolist() == ["random 1000 in / 201 out", "random 2000 in / 201 out"]
    assert points["contender"].nunique() == 1


def test_parameters_are_known_with_dashes_too(tmp_path):
    row = json.loads((DATA / "sweep_summary.json").read_text())[0]
    path = tmp_path / "run=0.json"
    path.write_text(json.dumps(row | {"tensor-parallel-size": 2, "random-input-len": 1000, "random-output-len": 201}))
    made = only(read_file(path))
    assert (made["devices"], made["workload"]) == (2, "random 1000 in / 201 out")


def test_metadata_that_varies_is_in_the_name_and_the_load_under_another_name_is_not(tmp_path):
    lines = [json.loads(line) for line in (DATA / "serve_appended.json").read_text().splitlines()]
    kernels = ("fa2", "fa2", "fa3")
    lines = [x | {"kernel": k, "conc": str(x["max_concurrency"]), "site": "x"} for x, k in zip(lines, kernels)]
    path = tmp_path / "runs.json"
    path.write_text("\n".join(map(json.dumps, lines)))
    points = read_file(path).points
    assert points["contender"].tolist() == [f"vllm Tiny-8B kernel={k}" for k in kernels]
    assert points["repeat"].tolist() == [1, 1, 1]
    assert points["configuration"].iloc[0] == "kernel=fa2, conc=8, site=x"


@pytest.mark.parametrize(
    "fields, devices, kind",
    [
        ({"tensor_parallel_size": GONE}, 1, "server"),
        ({"tensor_parallel_size": GONE, "tp": "2", "pp": "2", "dp": "3"}, 12, "gpu"),
        ({"num_gpus": "16"}, 16, "gpu"),
        ({"tensor_parallel_size": "auto"}, 1, "server"),
        ({"tensor_parallel_size": "0"}, 1, "server"),
        ({"tensor_parallel_size": GONE, "dp": "3"}, 1, "server"),
    ],
)
def test_devices_are_those_that_the_metadata_names(tmp_path, fields, devices, kind):
    found = read_file(changed(tmp_path, **fields))
    row = only(found)
    assert (row["devices"], row["device_kind"]) == (devices, kind)
    assert row["source"] == ("measured (gpu)" if kind == "gpu" else "measured (device unstated)")
    assert ("throughput is of the whole server" in said(found)) == (kind == "server")


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"max_concurrency": None}, "max_concurrency is null and request_rate is infinite: all 400 requests"),
        ({"max_concurrency": GONE}, "max_concurrency is missing and request_rate is infinite: all 400 requests"),
        ({"max_concurrency": 0}, "max_concurrency is 0, which is no limit and request_rate is infinite"),
        ({"max_concurrency": None, "request_rate": 1e9}, "request_rate is 1e\\+09 per s: all 400 requests"),
        ({"max_concurrency": None, "request_rate": GONE}, "request_rate is missing, so the load is not known"),
        ({"max_concurrency": None, "request_rate": None}, "request_rate is null, so the load is not known"),
        ({"max_concurrency": None, "ramp_up_strategy": "linear"}, "the request rate was ramped up"),
        ({"max_concurrency": 401}, "max_concurrency is 401, but 400 requests were sent"),
        ({"max_concurrency": 2.5}, "max_concurrency is 2.5; a whole number from 0 up is needed"),
        ({"max_concurrency": -4}, "max_concurrency is negative \\(-4\\)"),
        ({"request_rate": 0}, "request_rate is 0; a finite number above 0"),
        ({"request_rate": "fast"}, "request_rate is the text 'fast'"),
    ],
)
def test_a_run_whose_load_is_not_known_gives_no_point(tmp_path, fields, reason):
    with pytest.raises(UserError, match=reason):
        read_file(changed(tmp_path, **fields))


@pytest.mark.parametrize(
    "fields, kind, load",
    [
        ({"max_concurrency": None, "request_rate": 3.25}, "request_rate", 3.25),
        ({"max_concurrency": 0, "request_rate": 3.25}, "request_rate", 3.25),
        ({"max_concurrency": 16, "request_rate": 1e9}, "concurrency", 16),
        ({"max_concurrency": 16, "request_rate": 5.0}, "concurrency", 16),
        ({"max_concurrency": 19, "request_rate": 3.25}, "concurrency", 19),
        ({"max_concurrency": 20, "request_rate": 3.25}, "request_rate", 3.25),
        ({"max_concurrency": 400}, "concurrency", 400),
    ],
)
def test_load_is_what_kept_requests_in_flight(tmp_path, fields, kind, load):
    row = only(read_file(changed(tmp_path, **fields)))
    assert (row["load_kind"], row["load"]) == (kind, load)


def test_a_rate_that_the_server_did_not_keep_up_with_is_said(tmp_path):
    slow = said(read_file(changed(tmp_path, max_concurrency=None, request_rate=4.9)))
    assert "queues grew" in slow
    assert "queues grew" not in said(read_file(changed(tmp_path, max_concurrency=None, request_rate=4.7)))


def test_more_in_flight_than_the_limit_allows_is_said(tmp_path):
    text = said(read_file(changed(tmp_path, max_concurrency=8)))
    assert "max_concurrency as the number of requests in flight: more were" in text
    assert "16 on average, 8 at most" in text
    assert "more were" not in said(read_file(DATA / "serve_conc16.json"))


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"completed": 0}, "0 of 400 requests completed"),
        ({"completed": 400.5}, "completed is 400.5; a whole number"),
        ({"output_throughput": 660.0}, "output_throughput is 660, but total_output_tokens / duration is 643.2"),
        ({"output_throughput": 0}, "output_throughput is 0"),
        ({"output_throughput": math.nan}, "output_throughput is NaN"),
        ({"duration": 120.0}, "output_throughput is 643.2, but total_output_tokens / duration is 670"),
        ({"total_output_tokens": 78000}, "output_throughput is 643.2, but total_output_tokens / duration is 624"),
        ({"request_throughput": 3.0}, "request_throughput is 3, but completed / duration is 3.2"),
        ({"completed": 390}, "request_throughput is 3.2, but completed / duration is 3.12"),
        ({"num_prompts": 399}, "completed is 400 and failed 0, but num_prompts is 399"),
        ({"failed": 1}, "completed is 400 and failed 1, but num_prompts is 400"),
        ({"median_tpot_ms": 0.0}, "median_tpot_ms is 0 with 201 output tokens per request"),
        ({"median_tpot_ms": -0.0}, "median_tpot_ms is negative zero with 201 output tokens"),
        ({"median_tpot_ms": -3.5}, "median_tpot_ms is negative \\(-3.5\\) with 201"),
        ({"median_tpot_ms": math.nan}, "median_tpot_ms is NaN"),
        ({"median_tpot_ms": 41.0}, "percentiles of TPOT do not rise .*p50 41 ms, p90 25 ms, p99 40 ms"),
        (
            {"median_tpot_ms": 1400.0, "p90_tpot_ms": GONE, "p99_tpot_ms": GONE},
            "median_tpot_ms means 1400 ms, which does not fit into a run of 125 s",
        ),
        ({"mean_tpot_ms": -1.0}, "mean_tpot_ms is negative"),
        ({"run_number": 10**9}, "run_number is 1e\\+09; the number of a repeat"),
    ],
)
def test_a_run_that_contradicts_itself_gives_no_point(tmp_path, fields, reason):
    with pytest.raises(UserError, match=f"serve_conc16.json: {reason}"):
        read_file(changed(tmp_path, **fields))


def test_rounding_is_no_contradiction(tmp_path):
    row = only(read_file(changed(tmp_path, output_throughput=655.0, request_throughput=3.15)))
    assert row["output_throughput_tok_per_s"] == 655.0


def test_one_output_token_has_no_tpot(tmp_path):
    found = read_file(
        changed(
            tmp_path,
            total_output_tokens=400,
            output_throughput=3.2,
            total_token_throughput=3203.2,
            **{f"{s}_tpot_ms": 0.0 for s in ("mean", "median", "p90", "p99")},
        )
    )
    row = only(found)
    assert not any("tpot" in name or "speed" in name for name in row)
    assert row["output_throughput_tok_per_s"] == 3.2 and row["ttft_p50_ms"] == 800
    assert "one output token per request, so TPOT is undefined" in said(found)


def test_without_a_median_the_mean_speaks_and_without_tpot_nothing(tmp_path):
    row = only(read_file(changed(tmp_path, median_tpot_ms=GONE)))
    assert row["speed_from"] == "mean TPOT" and row["decode_speed_tok_per_s"] == pytest.approx(1000 / 20.5)
    assert "tpot_p50_ms" not in row
    found = read_file(changed(tmp_path, **{f"{s}_tpot_ms": None for s in ("mean", "median", "p90", "p99")}))
    assert "decode_speed_tok_per_s" not in only(found) and only(found)["itl_p50_ms"] == 19
    assert "no TPOT in the file (ITL is a gap between chunks" in said(found)


@pytest.mark.parametrize(
    "field, value, column, reason",
    [
        ("median_ttft_ms", 0.0, "ttft_p50_ms", "median_ttft_ms is 0"),
        ("p99_ttft_ms", -1.0, "ttft_p99_ms", "p99_ttft_ms is negative"),
        ("p90_e2el_ms", math.inf, "e2e_p90_ms", "p90_e2el_ms is infinite"),
        ("p99_itl_ms", 130_000.0, "itl_p99_ms", "p99_itl_ms means 130000 ms, which does not fit"),
        ("p99_tpot_ms", 0.0, "tpot_p99_ms", "p99_tpot_ms is 0"),
        ("p90_ttft_ms", 700.0, "ttft_p50_ms", "ttft: its percentiles do not rise"),
    ],
)
def test_a_latency_that_cannot_be_is_left_out_and_named(tmp_path, field, value, column, reason):
    found = read_file(changed(tmp_path, **{field: value}))
    assert column not in only(found)
    assert reason in said(found)
    assert only(found)["decode_speed_tok_per_s"] == 50


def test_percentiles_of_few_requests_are_left_out(tmp_path):
    thirty = {"num_prompts": 29, "completed": 29, "duration": 9.0625, "total_output_tokens": 29 * 201}
    found = read_file(changed(tmp_path, **thirty, total_input_tokens=29000))
    assert not any("_p90_" in name or "_p99_" in name for name in only(found))
    assert "decode_speed_p90_tok_per_s: fewer than 30 completed requests" in said(found)


def test_tokens_that_contradict_the_total_are_left_out(tmp_path):
    found = read_file(changed(tmp_path, total_input_tokens=500_000))
    assert "mean_input_tokens" not in only(found) and "logical_throughput_tok_per_s" not in only(found)
    assert "mean input tokens and total throughput: total_token_throughput is 3843.2" in said(found)


def test_failures_that_are_counted_in_two_ways_are_left_out(tmp_path):
    found = read_file(changed(tmp_path, "serve_detailed.json", failed=0))
    assert "n_failed" not in only(found)
    assert "the count and the per-request errors differ" in said(found) and "0 and 1" in said(found)


@pytest.mark.parametrize(
    "fields, failed, unaccounted",
    [
        ({"failed": GONE}, 0, None),
        ({"failed": GONE, "num_prompts": 460}, None, "60 of 460"),
        ({"failed": 60, "num_prompts": 460}, 60, None),
        ({"failed": 20, "num_prompts": 460}, 20, "40 of 460"),
        ({"failed": GONE, "num_prompts": GONE}, None, None),
    ],
)
def test_requests_that_neither_completed_nor_failed_are_named(tmp_path, fields, failed, unaccounted):
    found = read_file(changed(tmp_path, **fields))
    assert only(found).get("n_failed") == failed
    assert ("neither completed nor counted as failed" in said(found)) == (unaccounted is not None)
    assert unaccounted is None or unaccounted in said(found)


def test_chunks_are_never_tokens(tmp_path):
    text = said(read_file(changed(tmp_path, max_output_tokens_per_s=600.0, tokens_per_user=40.2)))
    assert "max_output_tokens_per_s: it counts chunks, not tokens, and this peak lies below the average" in text
    assert "tokens_per_user: it is output_throughput / max_concurrency" in text
    found = read_file(changed(tmp_path, spec_decode_acceptance_length=2.5))
    assert only(found)["tokens_per_chunk"] == 2.5 and only(found)["decode_speed_tok_per_s"] == 50
    found = read_file(changed(tmp_path, spec_decode_acceptance_length=0.5))
    assert "tokens_per_chunk" not in only(found) and "spec_decode_acceptance_length is 0.5" in said(found)


def test_the_queue_of_the_client_is_a_lag_only_where_requests_have_a_schedule(tmp_path):
    field = {"median_client_queue_time_ms": 7.5}
    assert only(read_file(changed(tmp_path, request_rate=3.3, **field)))["client_lag_ms"] == 7.5
    found = read_file(changed(tmp_path, **field))
    assert "client_lag_ms" not in only(found) and "the wait for a free slot, not a lag" in said(found)
    assert "client_lag_ms" not in only(read_file(changed(tmp_path, request_rate=3.3, median_client_queue_time_ms=-1)))


def test_arrays_give_what_the_summary_lacks_and_failed_requests_count_nowhere():
    document = json.loads((DATA / "serve_detailed.json").read_text())
    found = read_file(DATA / "serve_detailed.json")
    row = only(found)
    done = [i for i, error in enumerate(document["errors"]) if not error]
    tpot = sorted(sum(document["itls"][i]) / (document["output_lens"][i] - 1) for i in done)
    assert len(tpot) == 39 and row["n_completed"] == 39 and row["n_failed"] == 1
    assert row["tpot_p50_ms"] == pytest.approx(1000 * tpot[19])
    at = 0.9 * 38
    p90 = tpot[34] + (at - 34) * (tpot[35] - tpot[34])
    assert row["tpot_p90_ms"] == pytest.approx(1000 * p90)
    assert row["decode_speed_p90_tok_per_s"] == pytest.approx(1 / p90)
    chunks = sum(1 + len(document["itls"][i]) for i in done)
    assert row["tokens_per_chunk"] == pytest.approx(sum(document["output_lens"]) / chunks)
    in_flight = sum(document["ttfts"][i] + sum(document["itls"][i]) for i in done) / 3.25
    assert row["achieved_concurrency"] == pytest.approx(in_flight)
    assert row["contender"] == "draft model on"
    assert "what the summary lacks is recomputed from the completed requests" in said(found)


def test_arrays_speak_where_the_summary_is_not_theirs(tmp_path):
    found = read_file(changed(tmp_path, "serve_detailed.json", median_tpot_ms=12.0, p99_tpot_ms=13.0))
    row, whole = only(found), only(read_file(DATA / "serve_detailed.json"))
    assert row["decode_speed_tok_per_s"] == pytest.approx(whole["decode_speed_tok_per_s"])
    assert "tpot_p50_ms 12 in the summary, 8.896 from the requests" in said(found)
    assert "all latencies and throughput are recomputed" in said(found)


@pytest.mark.parametrize(
    "field, at, value, reason",
    [
        ("ttfts", 0, 0.0, "request 1 of the arrays: ttft is 0"),
        ("ttfts", 4, math.nan, "request 5 of the arrays: ttft is NaN"),
        ("itls", 0, None, "request 1 of the arrays: itls is null"),
        ("itls", 0, [-0.1, 0.2], "request 1 of the arrays: its times do not fit"),
        ("itls", 0, [9.0], "request 1 of the arrays: its times do not fit"),
        ("output_lens", 0, 2.5, "request 1 of the arrays: output_len is 2.5"),
        ("errors", 0, "timeout", "they hold 38 completed requests, but completed is 39"),
    ],
)
def test_arrays_that_contradict_themselves_are_left_out(tmp_path, field, at, value, reason):
    values = json.loads((DATA / "serve_detailed.json").read_text())[field]
    values[at] = value
    found = read_file(changed(tmp_path, "serve_detailed.json", **{field: values}))
    assert f"per-request arrays: {reason}" in said(found)
    assert "tpot_p90_ms" not in only(found)
    assert only(found)["tpot_p50_ms"] == only(read_file(DATA / "serve_detailed.json"))["tpot_p50_ms"]


def test_arrays_of_other_lengths_are_left_out(tmp_path):
    found = read_file(changed(tmp_path, "serve_detailed.json", output_lens=[20] * 39))
    assert "per-request arrays: output_lens has 39 entries, ttfts has 40" in said(found)


def test_empty_replies_are_failures(tmp_path):
    document = json.loads((DATA / "serve_detailed.json").read_text())
    empty = {name: [zero if i < 2 else v for i, v in enumerate(document[name])] for name, zero in EMPTY.items()}
    tokens = sum(empty["output_lens"])
    totals = {
        "total_output_tokens": tokens,
        "output_throughput": tokens / 3.25,
        "total_token_throughput": (tokens + 32 * 39) / 3.25,
    }
    row = only(found := read_file(changed(tmp_path, "serve_detailed.json", **empty, **totals)))
    assert (row["n_completed"], row["n_failed"]) == (37, 3)
    assert "2 requests that were counted as completed but came back empty" in said(found)


EMPTY = {"ttfts": 0.0, "itls": [], "output_lens": 0}


def test_one_bad_row_does_not_take_the_others_with_it(tmp_path):
    lines = document_of_lines(DATA / "serve_appended.json")["lines"]
    lines[1]["max_concurrency"] = None
    path = tmp_path / "runs.json"
    path.write_text("\n".join(map(json.dumps, lines)))
    found = read_file(path)
    assert found.points["load"].tolist() == [8, 16]
    assert len(found.notes.dropped) == 1 and "line 2: max_concurrency is null" in found.notes.dropped[0]


@pytest.mark.parametrize(
    "document, tool",
    [
        (
            {"elapsed_time": 3, "num_requests": 8, "total_num_tokens": 900, "tokens_per_second": 300},
            "vllm bench throughput",
        ),
        ({"avg_latency": 3, "latencies": [3], "percentiles": {"50": 3}}, "vllm bench latency"),
    ],
)
def test_vllm_benchmarks_without_a_load_are_named(tmp_path, document, tool):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    assert f"a result of {tool}" in refused(path)


@pytest.mark.parametrize("text", ["[]", "[1, 2]", "{}", "3", "a: 1\n", "plain", '[{"1": 2}]', "x,y\n1,2\n"])
def test_other_content_is_not_recognised(tmp_path, text):
    path = tmp_path / "other.txt"
    path.write_text(text)
    assert not recognises(read_content(path))


FILES = sorted(p.name for p in DATA.glob("*.json"))


@pytest.mark.parametrize("name", [*FILES, "sweep_summary.csv"])
def test_a_file_that_is_cut_off_gives_whole_rows_or_none(tmp_path, name):
    expected = read_file(DATA / name).points
    path = tmp_path / name
    given_something = 0
    for data in truncations(DATA / name):
        path.write_bytes(data)
        given_something += assert_sound(read_file, path, expected) is not None
    assert (given_something > 0) == (name == "serve_appended.json")


# What nothing else in the file confirms: the field itself sets these columns of the point.
SETS = {
    "tensor_parallel_size": {"devices"},
    "median_tpot_ms": {"decode_speed_tok_per_s"},
}


@pytest.mark.parametrize("name", ["serve_conc16.json", "serve_seconds.json"])
def test_any_one_field_damaged_is_refused_or_changes_no_number(tmp_path, name):
    document = json.loads((DATA / name).read_text())
    expected = read_file(DATA / name).points
    path = tmp_path / name
    for field in document:
        for change in VALUES:
            mutate(document, (field,), change).write(path)
            assert_sound(read_file, path, expected, SETS.get(field, ()))


def test_any_damage_to_arrays_is_refused_or_leaves_the_summary(tmp_path):
    document = json.loads((DATA / "serve_detailed.json").read_text())
    expected = read_file(DATA / "serve_detailed.json").points
    path = tmp_path / "detailed.json"
    fields = [("ttfts", 0), ("itls", 3), ("itls", 3, 1), ("output_lens", 5), ("errors", 2), ("errors", 1)]
    for field in [*fields, *(("ttfts",), ("itls",), ("output_lens",), ("errors",), ("failed",), ("completed",))]:
        for change in VALUES:
            mutate(document, field, change).write(path)
            # One entry of forty moves a p90, an average or a count of chunks, and nothing else holds these.
            moved = {c for c in expected if "_p90_" in c or c.startswith(("e2e", "achieved", "tokens_per"))}
            assert_sound(read_file, path, expected, moved)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutation=mutations(json.loads((DATA / "sweep_summary.json").read_text())))
def test_a_damaged_sweep_raises_nothing_but_user_errors(tmp_path, mutation):
    expected = read_file(DATA / "sweep_summary.json").points
    assert_sound(read_file, mutation.write(tmp_path / "summary.json"), expected, {"decode_speed_tok_per_s"})


@sample
@pytest.mark.parametrize("concurrency", [4, 8, 16, 32, 48, 64, 128])
def test_results_merged_from_two_clients_are_seen_through(concurrency):
    found = read_file(SAMPLES / "vllm" / f"anyscale_rayoss251-x2_allparts_conc{concurrency}.json")
    row = only(found)
    assert row["load"] == concurrency and "n_failed" not in row
    assert 1.8 < row["achieved_concurrency"] / concurrency < 2
    assert "more were (results of several clients in one?)" in said(found)
    assert "neither completed nor counted as failed" in said(found)


@sample
def test_real_results_give_their_numbers():
    row = only(read_file(SAMPLES / "inferencex" / "glm47_conc128.json"))
    assert row["decode_speed_tok_per_s"] == pytest.approx(6.2366, rel=1e-4)
    assert row["achieved_concurrency"] == pytest.approx(129, rel=0.01)
    row = only(read_file(SAMPLES / "inferencex" / "glm5_fp8_vllm_tp8_isl1024_osl128_conc16.json"))
    assert row["decode_speed_tok_per_s"] == pytest.approx(29.7487, rel=1e-4)
    assert row["ttft_p50_ms"] == pytest.approx(291.4, rel=1e-3)
    points = read_file(SAMPLES / "vllm" / "er0080_sweep_maxnumseqs4_summary.json").points
    assert points["repeat"].tolist() == [1, 2]
    assert points["decode_speed_tok_per_s"].tolist() == pytest.approx([120.142, 126.118], rel=1e-4)


REAL = sorted((SAMPLES / "vllm").glob("*.json")) + sorted((SAMPLES / "inferencex").glob("glm[45]*conc*.json"))


@sample
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_files_that_are_cut_off_are_refused(tmp_path, path):
    expected = read_file(path).points
    damaged = tmp_path / path.name
    for data in truncations(path):
        damaged.write_bytes(data)
        whole = data.strip() == path.read_bytes().strip()
        assert (assert_sound(read_file, damaged, expected) is not None) == whole


@sample
@pytest.mark.parametrize(
    "name",
    [
        "vllm/er0080_bench_serve_v0.25.1",
        "vllm/anyscale_rayoss251-x2_allparts_conc128",
        "inferencex/glm47_conc128",
        "inferencex/glm5_fp8_vllm_tp8_isl4096_osl128_conc8",
    ],
)
def test_any_one_field_of_a_real_file_damaged_gives_no_wrong_number(tmp_path, name):
    path = SAMPLES / f"{name}.json"
    document, expected = json.loads(path.read_text()), read_file(path).points
    for field in fields_of(document):
        for change in VALUES:
            damaged = mutate(document, field, change).write(tmp_path / path.name)
            assert_sound(read_file, damaged, expected, SETS.get(field[-1], ()))


@sample
@pytest.mark.parametrize(
    "name", ["vllm_truncated", "vllm_detailed_with_failed_ttft0", "vllm_osl1_no_tpot", "vllm_spec_decode_chunks"]
)
def test_made_up_contradictions_are_refused(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert name in refused(SAMPLES / "ugly_synthetic" / f"{name}.json")
