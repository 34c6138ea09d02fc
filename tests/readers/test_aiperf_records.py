"""AIPerf's requests, one a line: reduced by the canonical definitions, and only with all of them and their load."""

import json
import shutil
from pathlib import Path
from statistics import median

import fuzzing
import pytest
from hypothesis import given, settings

from wholecurve.errors import UserError
from wholecurve.readers.recognise import read_file

DATA = Path(__file__).parents[1] / "data" / "readers" / "aiperf" / "run"
SUMMARY = DATA / "profile_export_aiperf.json"
RECORDS = DATA / "profile_export.jsonl"
REAL = Path(__file__).parents[2] / "data" / "foreign" / "llama-server-smollm2"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"

TPOT = {"tpot_p50_ms", "tpot_p90_ms", "decode_speed_tok_per_s", "decode_speed_p90_tok_per_s"}
WINDOW = {"output_throughput_tok_per_s", "window_s", "achieved_concurrency"}
# Columns that a damaged field sets and nothing else in the file can confirm.
SETS = {
    "time_to_first_token": {"ttft_p50_ms", "ttft_p90_ms"},
    "inter_token_latency": TPOT,
    "request_latency": {"e2e_p50_ms", "e2e_p90_ms", "achieved_concurrency"},
    "inter_chunk_latency": {"itl_p50_ms", "itl_p90_ms", "tokens_per_chunk"},
    "input_sequence_length": {"mean_input_tokens", "input_tokens"},
    "output_sequence_length": {
        *("mean_output_tokens", "output_tokens", "output_throughput_tok_per_s", "tokens_per_chunk"),
        *TPOT,
    },
    "request_start_ns": WINDOW,
    "request_end_ns": WINDOW,
}


def only(path):
    (row,) = read_file(path).points.to_dict("records")
    return row


def sets(mutation):
    return set().union(*(SETS.get(part, ()) for part in mutation.field))


def a_run(tmp_path, lines):
    """A folder with the summary and these records."""
    shutil.copy(SUMMARY, tmp_path / SUMMARY.name)
    path = tmp_path / "profile_export.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_records_recompute_what_the_summary_says():
    found = read_file(RECORDS)
    row, summary = found.points.to_dict("records")[0], only(SUMMARY)
    for column in set(row) & set(summary) - {"repeat"}:
        expected = summary[column]
        assert row[column] == (pytest.approx(expected, rel=1e-4) if isinstance(expected, float) else expected), column
    assert "4 warm-up requests are not counted" in found.notes.converted
    assert "2 cancelled or failed requests count as failed" in found.notes.converted
    assert any("profile_export_aiperf.json beside it" in sentence for sentence in found.notes.converted)


def test_records_are_reduced_by_the_canonical_definitions():
    rows = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    done = [row for row in rows if row["metadata"]["benchmark_phase"] == "profiling" and row["error"] is None]
    row = only(RECORDS)
    tpot = [
        (of["request_latency"]["value"] - of["time_to_first_token"]["value"])
        / (of["output_sequence_length"]["value"] - 1)
        for of in (one["metrics"] for one in done)
    ]
    assert row["tpot_p50_ms"] == pytest.approx(median(tpot), rel=1e-4)
    tokens = sum(one["metrics"]["output_sequence_length"]["value"] for one in done)
    chunks = sum(len(one["metrics"]["inter_chunk_latency"]["value"]) + 1 for one in done)
    assert row["tokens_per_chunk"] == pytest.approx(tokens / chunks)
    start = min(one["metadata"]["request_start_ns"] for one in done)
    end = max(one["metadata"]["request_end_ns"] for one in done)
    assert row["output_throughput_tok_per_s"] == pytest.approx(tokens / (end - start) * 1e9)


def test_records_alone_have_no_load_and_the_peak_is_not_taken_for_it(tmp_path):
    path = tmp_path / "profile_export.jsonl"
    shutil.copy(RECORDS, path)
    with pytest.raises(UserError, match=r"no summary .* lies beside it that does; at most 4 requests were in flight"):
        read_file(path)


def test_a_record_that_is_cut_off_refuses_the_file(tmp_path):
    lines = RECORDS.read_text().splitlines()
    with pytest.raises(UserError, match=r"line 46: no JSON object .*; throughput is right only over all records"):
        read_file(a_run(tmp_path, [*lines[:-1], lines[-1][:60]]))


def test_records_of_a_part_of_the_run_are_refused(tmp_path):
    lines = RECORDS.read_text().splitlines()
    with pytest.raises(UserError, match=r"39 completed requests, but profile_export_aiperf\.json counts 40"):
        read_file(a_run(tmp_path, lines[:-1]))
    without_a_failed_one = [line for line in lines if '"HTTPError"' not in line]
    with pytest.raises(UserError, match=r"1 failed requests, but profile_export_aiperf\.json counts 2"):
        read_file(a_run(tmp_path, without_a_failed_one))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("metrics", "request_latency", "unit"), "days", r"request_latency: unit is 'days'"),
        (("metrics", "request_latency", "value"), 0, r"request_latency: value is 0"),
        (("metrics", "output_sequence_length", "value"), 0, r"output_sequence_length.value is 0"),
        (("metrics", "inter_chunk_latency", "value"), [1.0, -2.0], r"gap 2 is negative"),
        (("metrics", "time_to_first_token"), None, r"1 of 40 requests have no time_to_first_token"),
        (("metrics", "inter_token_latency"), None, r"1 of 40 requests have no inter_token_latency"),
        (("metadata", "was_cancelled"), "no", r"was_cancelled is the text"),
        (("metadata", "benchmark_phase"), "cooldown", r"benchmark_phase is the text 'cooldown'"),
        (("metadata", "request_end_ns"), 1, r"request_end_ns is before request_start_ns"),
    ],
)
def test_one_request_without_its_numbers_refuses_the_file(tmp_path, place, value, message):
    lines = RECORDS.read_text().splitlines()
    row = json.loads(lines[-1])
    inner = row
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(UserError, match=message):
        read_file(a_run(tmp_path, [*lines[:-1], json.dumps(row)]))


def test_a_request_of_one_token_counts_and_has_no_tpot(tmp_path):
    rows = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    rows[-1]["metrics"]["output_sequence_length"]["value"] = 1
    del rows[-1]["metrics"]["inter_token_latency"]
    row = only(a_run(tmp_path, map(json.dumps, rows)))
    tpot = [one["metrics"]["inter_token_latency"]["value"] for one in rows[4:-1] if one["error"] is None]
    assert (row["n_completed"], row["tpot_p50_ms"]) == (40, pytest.approx(median(tpot)))


def test_tokens_that_arrive_in_one_chunk_have_no_gap(tmp_path):
    rows = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    for row in rows:
        if "inter_chunk_latency" in row["metrics"]:
            row["metrics"]["inter_chunk_latency"]["value"] = [0.0, 0.0, 9.0]
    found = read_file(a_run(tmp_path, map(json.dumps, rows)))
    assert "itl_p50_ms" not in found.points
    assert found.points["itl_p90_ms"].item() == 9.0
    assert any(sentence.startswith("itl_p50_ms: 0") for sentence in _left_out(found))


@settings(max_examples=100)
@given(mutation=fuzzing.mutations(fuzzing.document_of_lines(RECORDS)))
def test_damaged_records_are_refused_or_right(tmp_path_factory, mutation):
    folder = tmp_path_factory.mktemp("aiperf_records")
    shutil.copy(SUMMARY, folder)
    path = mutation.write(folder / "profile_export.jsonl")
    fuzzing.assert_sound(read_file, path, read_file(RECORDS).points, sets(mutation))


def test_real_runs_say_the_same_in_their_summary_and_in_their_requests():
    files = sorted(REAL.rglob("profile_export.jsonl"))
    if not files:
        pytest.skip("no recorded run of AIPerf in data/foreign")
    for path in files:
        row, summary = only(path), only(path.with_name("profile_export_aiperf.json"))
        assert (row["load"], row["n_completed"]) == (summary["load"], summary["n_completed"])
        assert row["n_failed"] == summary.get("n_failed", 0)
        # Gaps between chunks are kept in the records of one run; the others are summaries of theirs alone.
        kept = "inter_chunk_latency" in path.read_text()
        assert row["cache_hit_rate"] == summary["cache_hit_rate"] == 0
        assert kept == (row.get("itl_p50_ms") is not None)
        for column in ("tpot_p50_ms", "tpot_p90_ms", "ttft_p50_ms", "e2e_p50_ms", *(["itl_p50_ms"] if kept else [])):
            assert row.get(column) == (pytest.approx(summary[column]) if column in summary else None), column
        # The tool's own window starts and ends a little outside the requests.
        throughput = summary["output_throughput_tok_per_s"]
        assert row["output_throughput_tok_per_s"] == pytest.approx(throughput, rel=0.01)
        assert row["achieved_concurrency"] == pytest.approx(summary["achieved_concurrency"], rel=0.01)


@pytest.mark.parametrize(("cached", "rate"), [(60, 0.5), (0, 0.0), (None, None), (400, None)])
def test_cached_prompt_tokens_are_a_share_of_all_and_absent_where_not_reported(tmp_path, cached, rate):
    shutil.copy(SUMMARY, tmp_path)
    lines = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    for line in lines:
        line["metrics"]["input_sequence_length"] = {"value": 120, "unit": "tokens"}
        if cached is not None:
            line["metrics"]["usage_prompt_cache_read_tokens"] = {"value": cached, "unit": "tokens"}
    path = tmp_path / "profile_export.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert only(path).get("cache_hit_rate") == rate


def test_no_beginning_of_a_file_gives_another_number(tmp_path):
    expected = read_file(RECORDS).points
    shutil.copy(SUMMARY, tmp_path)
    damaged = tmp_path / RECORDS.name
    for beginning in fuzzing.truncations(RECORDS, step=211):
        damaged.write_bytes(beginning)
        fuzzing.assert_sound(read_file, damaged, expected)


def test_what_others_published_has_no_load():
    sample = SAMPLES / "aiperf" / "profile_export_record_ok_and_cancelled.jsonl"
    if not sample.exists():
        pytest.skip("the published samples are not beside this repository")
    with pytest.raises(UserError, match="at most 1 requests were in flight"):
        read_file(sample)


def _left_out(found):
    return list(found.notes.not_converted)
