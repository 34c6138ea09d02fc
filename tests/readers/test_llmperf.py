"""LLMPerf: seconds, an inter-token latency that is none, and the requests that do have a TPOT."""

import json
import shutil
from pathlib import Path
from statistics import median

import fuzzing
import pytest
from hypothesis import given, settings

from wholecurve.errors import UserError
from wholecurve.readers.recognise import read_file

DATA = Path(__file__).parents[1] / "data" / "readers" / "llmperf"
SUMMARY = DATA / "small_128_34_summary.json"
RESPONSES = DATA / "small_128_34_individual_responses.json"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples" / "llmperf"

TPOT = {"tpot_p50_ms", "tpot_p90_ms", "decode_speed_tok_per_s", "decode_speed_p90_tok_per_s"}
# Columns that a damaged field sets and nothing else in the file can confirm.
SETS = {
    "num_concurrent_requests": {"load"},
    "results_mean_output_throughput_token_per_s": {"output_throughput_tok_per_s"},
    "results_num_completed_requests": {"n_completed", "window_s", "ttft_p99_ms", "e2e_p99_ms"},
    "results_num_completed_requests_per_min": {"window_s", "achieved_concurrency"},
    "results_number_errors": {"n_failed"},
    "results_end_to_end_latency_s_mean": {"achieved_concurrency"},
    "results_number_input_tokens_mean": {"mean_input_tokens"},
    "results_number_output_tokens_mean": {"mean_output_tokens"},
    "ttft_s": {"ttft_p50_ms", "ttft_p90_ms", *TPOT},
    "end_to_end_latency_s": {"e2e_p50_ms", "e2e_p90_ms", *TPOT},
    "number_output_tokens": TPOT,
    **{f"results_{field}_quantiles_{p}": {f"{name}_{p}_ms"} for name, field in
       (("ttft", "ttft_s"), ("e2e", "end_to_end_latency_s")) for p in ("p50", "p90", "p99")},
}  # fmt: skip


def document(path=SUMMARY):
    return json.loads(path.read_text())


def only(path):
    (row,) = read_file(path).points.to_dict("records")
    return row


def written(tmp_path, value, name="x_summary.json"):
    path = tmp_path / name
    path.write_text(json.dumps(value))
    return path


def responses(tmp_path, rows):
    """These requests in a folder with their summary."""
    shutil.copy(SUMMARY, tmp_path)
    return written(tmp_path, rows, RESPONSES.name)


def sets(mutation):
    return set().union(*(SETS.get(part, ()) for part in mutation.field))


def test_a_summary_gives_throughput_and_latencies_in_milliseconds():
    row, raw = only(SUMMARY), document()
    assert (row["load_kind"], row["load"], row["contender"]) == ("concurrency", 4, "serveco small-1b")
    assert (row["workload"], row["n_completed"], row["n_failed"]) == ("128 in / 34 ± 2 out", 32, 2)
    assert row["ttft_p50_ms"] == pytest.approx(1000 * raw["results_ttft_s_quantiles_p50"])
    assert row["e2e_p90_ms"] == pytest.approx(1000 * raw["results_end_to_end_latency_s_quantiles_p90"])
    assert row["output_throughput_tok_per_s"] == raw["results_mean_output_throughput_token_per_s"]
    tokens = raw["results_number_output_tokens_mean"] * raw["results_num_completed_requests"]
    assert row["window_s"] == pytest.approx(tokens / row["output_throughput_tok_per_s"], rel=1e-5)
    in_flight = 32 / row["window_s"] * raw["results_end_to_end_latency_s_mean"]
    assert row["achieved_concurrency"] == pytest.approx(in_flight)
    assert "ttft_p99_ms" not in row


def test_a_summary_has_no_decode_speed_and_says_why():
    found = read_file(SUMMARY)
    assert not {"decode_speed_tok_per_s", "tpot_p50_ms", "itl_p50_ms"} & set(found.points)
    assert any(
        sentence.startswith("decode speed: inter_token_latency_s includes the TTFT")
        for sentence in found.notes.not_converted
    )


def test_the_requests_have_the_tpot_that_the_inter_token_latency_is_not():
    row = only(RESPONSES)
    done = [one for one in document(RESPONSES) if one["error_code"] is None]
    tpot = [(one["end_to_end_latency_s"] - one["ttft_s"]) / (one["number_output_tokens"] - 1) for one in done]
    assert row["tpot_p50_ms"] == pytest.approx(1000 * median(tpot))
    assert row["decode_speed_tok_per_s"] == pytest.approx(1 / median(tpot))
    assert row["tpot_p50_ms"] < 900 * median(one["inter_token_latency_s"] for one in done)
    assert row["decode_speed_p90_tok_per_s"] < row["decode_speed_tok_per_s"]
    summary = only(SUMMARY)
    for column in set(row) & set(summary):
        assert row[column] == (pytest.approx(summary[column]) if isinstance(row[column], float) else summary[column])


def test_requests_with_an_error_count_as_failed_and_nothing_else():
    row, raw = only(RESPONSES), document(RESPONSES)
    failed = [one for one in raw if one["error_code"] is not None]
    assert {one["inter_token_latency_s"] for one in failed} == {5.04}
    assert (row["n_completed"], row["n_failed"]) == (32, 2)
    assert row["ttft_p50_ms"] == pytest.approx(1000 * median(one["ttft_s"] for one in raw if one not in failed))
    assert any("2 requests with an error_code" in sentence for sentence in read_file(RESPONSES).notes.converted)


def test_requests_without_their_summary_have_no_load(tmp_path):
    path = tmp_path / RESPONSES.name
    shutil.copy(RESPONSES, path)
    with pytest.raises(UserError, match=r"name neither load nor time; the run's _summary\.json beside this file"):
        read_file(path)
    renamed = tmp_path / "requests.json"
    shutil.copy(RESPONSES, renamed)
    with pytest.raises(UserError, match="name neither load nor time"):
        read_file(renamed)
    written(tmp_path, {"a": 1}, SUMMARY.name)
    with pytest.raises(UserError, match="is no summary of LLMPerf"):
        read_file(path)


def test_requests_of_another_run_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"31 requests without error, but small_128_34_summary\.json counts 32"):
        read_file(responses(tmp_path, document(RESPONSES)[:-1]))
    done = [one for one in document(RESPONSES) if one["error_code"] is None]
    with pytest.raises(UserError, match=r"0 requests with an error, but .* counts 2"):
        read_file(responses(tmp_path, done))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("end_to_end_latency_s", 0.05, "end_to_end_latency_s is 0.05, not above ttft_s"),
        ("ttft_s", 0, "ttft_s is 0; a finite number above 0"),
        ("ttft_s", None, "ttft_s is null"),
        ("number_output_tokens", 0, "number_output_tokens is 0; a whole number from 1 up"),
    ],
)
def test_a_request_without_its_numbers_refuses_the_file(tmp_path, field, value, message):
    rows = document(RESPONSES)
    rows[-1][field] = value
    with pytest.raises(UserError, match=rf"row 34: {message}"):
        read_file(responses(tmp_path, rows))


def test_a_row_without_error_code_is_neither_completed_nor_failed(tmp_path):
    rows = document(RESPONSES)
    del rows[3]["error_code"]
    with pytest.raises(UserError, match="row 4: error_code is missing"):
        read_file(responses(tmp_path, rows))
    with pytest.raises(UserError, match="row 35: is null; an object is needed; requests of the whole run"):
        read_file(responses(tmp_path, [*document(RESPONSES), None]))


def test_one_token_has_no_time_per_output_token(tmp_path):
    rows = document(RESPONSES)
    rows[0]["number_output_tokens"] = 1
    found = read_file(responses(tmp_path, rows))
    assert "TPOT of 1 requests: one token has none" in found.notes.not_converted
    done = [one for one in rows[1:] if one["error_code"] is None]
    tpot = [(one["end_to_end_latency_s"] - one["ttft_s"]) / (one["number_output_tokens"] - 1) for one in done]
    assert found.points["tpot_p50_ms"].item() == pytest.approx(1000 * median(tpot))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_concurrent_requests", None, "num_concurrent_requests is null"),
        ("results_mean_output_throughput_token_per_s", "NaN", "results_mean_output_throughput_token_per_s is NaN"),
        ("results_num_completed_requests", 0, "results_num_completed_requests is 0"),
        ("results_ttft_s_quantiles_p90", 0.0001, r"p90 of TTFT \(0.1 ms\) is below its p50"),
    ],
)
def test_a_summary_without_its_numbers_is_refused(tmp_path, field, value, message):
    with pytest.raises(UserError, match=message):
        read_file(written(tmp_path, {**document(), field: value}))


@pytest.mark.parametrize("path", [SUMMARY, RESPONSES], ids=lambda path: path.name)
def test_no_beginning_of_a_file_gives_another_number(tmp_path, path):
    expected = read_file(path).points
    shutil.copy(SUMMARY, tmp_path)
    for beginning in fuzzing.truncations(path, step=101):
        (tmp_path / path.name).write_bytes(beginning)
        fuzzing.assert_sound(read_file, tmp_path / path.name, expected)


@settings(max_examples=150)
@given(mutation=fuzzing.mutations(document()))
def test_a_damaged_summary_is_refused_or_right(tmp_path_factory, mutation):
    path = mutation.write(tmp_path_factory.mktemp("llmperf") / "x_summary.json")
    fuzzing.assert_sound(read_file, path, read_file(SUMMARY).points, sets(mutation))


@settings(max_examples=100)
@given(mutation=fuzzing.mutations(document(RESPONSES)))
def test_damaged_requests_are_refused_or_right(tmp_path_factory, mutation):
    folder = tmp_path_factory.mktemp("llmperf")
    shutil.copy(SUMMARY, folder)
    path = mutation.write(folder / RESPONSES.name)
    fuzzing.assert_sound(read_file, path, read_file(RESPONSES).points, sets(mutation))


def test_the_published_summaries_keep_their_failures():
    if not SAMPLES.exists():
        pytest.skip("the published samples are not beside this repository")
    bedrock, groq = (only(SAMPLES / f"{name}_70b_summary.json") for name in ("bedrock", "groq"))
    assert (bedrock["n_completed"], bedrock["n_failed"]) == (101, 49)
    assert groq["contender"] == "groq llama2-70b-4096"
    assert groq["output_throughput_tok_per_s"] == pytest.approx(441.847, abs=1e-3)
    # The tool kept fewer requests in flight than it was asked to.
    assert (groq["load"], groq["achieved_concurrency"]) == (5, pytest.approx(2.40, abs=0.01))
