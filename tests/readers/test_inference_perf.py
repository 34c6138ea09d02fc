"""inference-perf: seconds, its per-request TPOT, gaps of 0 inside a chunk, and the load of one stage."""

import json
from pathlib import Path

import fuzzing
import pytest
import yaml
from hypothesis import given, settings

from wholecurve.errors import UserError
from wholecurve.readers.recognise import read_file

STAGE = Path(__file__).parents[1] / "data" / "readers" / "llm_d" / "stage_0_lifecycle_metrics.yaml"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"

TAILS = {f"{name}_p99_ms" for name in ("ttft", "tpot", "e2e", "itl")}
# Columns that a damaged field sets and nothing else in the file can confirm.
SETS = {
    "time_to_first_token": {"ttft_p50_ms", "ttft_p90_ms"},
    "time_per_output_token": {"tpot_p50_ms", "tpot_p90_ms", "decode_speed_tok_per_s", "decode_speed_p90_tok_per_s"},
    "inter_token_latency": {"itl_p50_ms", "itl_p90_ms"},
    "request_latency": {"e2e_p50_ms", "e2e_p90_ms", "achieved_concurrency"},
    "throughput": {"output_throughput_tok_per_s", "logical_throughput_tok_per_s", "achieved_concurrency"},
    "load_summary": {"load", "client_lag_ms"},
    "benchmark_time_seconds": {"window_s"},
    "count": {"n_completed", "n_failed"} | TAILS,
    "output_len": {"mean_output_tokens"},
    "prompt_len": {"mean_input_tokens"},
    "prompt_tokens": {"cache_hit_rate"},
}


def document(path=STAGE):
    return yaml.safe_load(path.read_text())


def written(tmp_path, value):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(value))
    return path


def only(path):
    (row,) = read_file(path).points.to_dict("records")
    return row


def test_a_stage_of_inference_perf_is_a_point_in_milliseconds():
    found = read_file(STAGE)
    row, raw = found.points.to_dict("records")[0], document()
    fields = raw["successes"]["latency"]
    assert (found.format, row["load_kind"], row["load"]) == ("inference-perf", "request_rate", 5.0)
    assert row["tpot_p50_ms"] == pytest.approx(1000 * fields["time_per_output_token"]["median"])
    assert row["decode_speed_tok_per_s"] == pytest.approx(1 / fields["time_per_output_token"]["median"])
    assert row["decode_speed_p90_tok_per_s"] == pytest.approx(1 / fields["time_per_output_token"]["p90"])
    assert row["e2e_p90_ms"] == pytest.approx(1000 * fields["request_latency"]["p90"])
    assert row["output_throughput_tok_per_s"] == raw["successes"]["throughput"]["output_tokens_per_sec"]
    assert (row["n_completed"], row["n_failed"], row["cache_hit_rate"]) == (40, 1, 0.25)
    in_flight = raw["successes"]["throughput"]["requests_per_sec"] * fields["request_latency"]["mean"]
    assert row["achieved_concurrency"] == pytest.approx(in_flight)
    assert row["client_lag_ms"] == pytest.approx(1000 * raw["load_summary"]["schedule_delay"]["median"])


def test_gaps_of_0_between_tokens_of_a_chunk_are_no_latency():
    found = read_file(STAGE)
    assert "itl_p50_ms" not in found.points
    assert found.points["itl_p90_ms"].item() > 0
    assert any(s.startswith("itl_p50_ms: 0, several chunks arrive together") for s in _left_out(found))


def test_a_closed_loop_of_inference_perf_has_a_concurrency(tmp_path):
    raw = document()
    raw["load_summary"]["concurrency"] = 16
    row = only(written(tmp_path, raw))
    assert (row["load_kind"], row["load"]) == ("concurrency", 16)


def test_a_report_over_all_stages_has_no_one_load(tmp_path):
    raw = document()
    del raw["load_summary"]["requested_rate"]
    with pytest.raises(UserError, match=r"requested_rate is missing; a report over all stages has no one load"):
        read_file(written(tmp_path, raw))


def test_no_cached_tokens_may_mean_that_nobody_counted(tmp_path):
    raw = document()
    raw["successes"]["prompt_tokens"]["cached"] = 0.0
    raw["successes"]["token_count_mismatches"] = 3
    found = read_file(written(tmp_path, raw))
    assert "cache_hit_rate" not in found.points
    assert any(s.startswith("cache_hit_rate: 0 is also written") for s in _left_out(found))
    assert any(s.startswith("tokens of 3 requests: the client counts others") for s in _left_out(found))
    raw["successes"]["prompt_tokens"]["cached"] = 9999.0
    with pytest.raises(UserError, match="9999 cached of 5160 prompt tokens"):
        read_file(written(tmp_path, raw))


def test_no_beginning_of_a_file_gives_another_number(tmp_path):
    expected = read_file(STAGE).points
    damaged = tmp_path / STAGE.name
    lines = STAGE.read_text().splitlines(keepends=True)
    for beginning in [*fuzzing.truncations(STAGE, step=53), *("".join(lines[:n]).encode() for n in range(len(lines)))]:
        damaged.write_bytes(beginning)
        fuzzing.assert_sound(read_file, damaged, expected)


@settings(max_examples=120)
@given(mutation=fuzzing.mutations(document()))
def test_a_damaged_report_is_refused_or_right(tmp_path_factory, mutation):
    damaged = mutation.write(tmp_path_factory.mktemp("inference_perf") / "report.json")
    may_differ = set().union(*(SETS.get(part, ()) for part in mutation.field))
    fuzzing.assert_sound(read_file, damaged, read_file(STAGE).points, may_differ)


def test_the_published_report_has_too_few_requests_for_a_p90():
    sample = SAMPLES / "inference-perf" / "llm-d_inference_perf_lifecycle.yaml"
    if not sample.exists():
        pytest.skip("the published samples are not beside this repository")
    row = only(sample)
    assert row["decode_speed_tok_per_s"] == pytest.approx(125.53, abs=0.01)
    assert not {"tpot_p90_ms", "e2e_p90_ms", "decode_speed_p90_tok_per_s"} & set(row)


def _left_out(found):
    return list(found.notes.not_converted)
