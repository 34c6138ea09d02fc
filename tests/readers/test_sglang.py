"""SGLang's results: serving runs (JSON Lines) and static batches, with and without a server."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from fuzzing import VALUES, assert_sound, document_of_lines, fields_of, mutate, mutations, truncations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wholecurve.errors import UserError
from wholecurve.readers.content import read_content
from wholecurve.readers.recognise import read_file
from wholecurve.readers.serving.sglang import recognises
from wholecurve.readers.serving.sglang_batch import recognises as recognises_batch

DATA = Path(__file__).parents[1] / "data" / "readers" / "sglang"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples" / "sglang"
GONE = object()

sample = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the collection of real result files is not on this machine")


def lines(name="serving.jsonl"):
    return document_of_lines(DATA / name)["lines"]


def write(tmp_path, rows):
    path = tmp_path / "results.jsonl"
    rows = [{key: value for key, value in row.items() if value is not GONE} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def changed(tmp_path, name="serving.jsonl", at=1, /, **fields):
    """One line of a data file as a file of its own, with some fields changed, or removed with GONE."""
    return write(tmp_path, [lines(name)[at] | fields])


def only(found, at=0):
    row = found.points.to_dict("records")[at]
    return {name: value for name, value in row.items() if not (isinstance(value, float) and math.isnan(value))}


def said(found):
    document = found.to_document()
    return "\n".join(document["converted"] + document["not_converted"] + document["dropped"])


def test_one_run_becomes_one_point_with_all_its_numbers(tmp_path):
    row = only(read_file(changed(tmp_path)))
    assert row.pop("achieved_concurrency") == pytest.approx(15.84)
    assert row == {
        "contender": "sglang Tiny-8B",
        "workload": "random 1000 in / 201 out",
        "load_kind": "concurrency",
        "load": 16,
        "repeat": 1,
        "devices": 8,
        "device_kind": "gpu",
        "source": "measured (gpu)",
        "model": "acme/Tiny-8B",
        "precision": "bfloat16",
        "configuration": "tp 4, pp 1, dp 2",
        "decode_speed_tok_per_s": 50.0,
        "decode_speed_p90_tok_per_s": 40.0,
        "speed_from": "median TPOT",
        "output_throughput_tok_per_s": 643.2,
        "logical_throughput_tok_per_s": 3843.2,
        "window": "full",
        "window_s": 125.0,
        "n_completed": 400,
        "output_tokens": 80400,
        "mean_input_tokens": 1000.0,
        "mean_output_tokens": 201.0,
        **{"ttft_p50_ms": 800.0, "ttft_p90_ms": 1200.0, "ttft_p99_ms": 2000.0},
        **{"tpot_p50_ms": 20.0, "tpot_p90_ms": 25.0, "tpot_p99_ms": 40.0},
        **{"e2e_p50_ms": 4752.0, "e2e_p90_ms": 6187.5, "e2e_p99_ms": 9900.0},
        **{"itl_p50_ms": 19.0, "itl_p90_ms": 22.0, "itl_p99_ms": 60.0},
    }


def test_settings_that_differ_in_a_file_are_in_the_name_and_repeats_are_numbered():
    points = read_file(DATA / "serving.jsonl").points
    assert points["contender"].unique().tolist() == [
        "sglang Tiny-8B (tp 4, pp 1, dp 2)",
        "sglang Tiny-8B (tp 4, pp 1, dp 2, speculation EAGLE)",
    ]
    assert points[["load", "repeat"]].values.tolist() == [[8, 1], [16, 1], [16, 2], [32, 1]]
    assert points["tokens_per_chunk"].tolist()[3] == 2.6 and points["tokens_per_chunk"].notna().sum() == 1


def test_tags_and_backends_tell_contenders_apart(tmp_path):
    rows = [lines()[1] | {"tag": tag} for tag in ("old kernel", "new kernel")]
    points = read_file(write(tmp_path, rows)).points
    assert points["contender"].tolist() == ["old kernel", "new kernel"]
    rows = [lines()[1] | {"backend": name} for name in ("sglang", "sglang-oai", "vllm")]
    points = read_file(write(tmp_path, rows)).points
    assert points["contender"].tolist() == ["sglang Tiny-8B", "sglang-oai Tiny-8B", "vllm Tiny-8B"]
    assert read_file(write(tmp_path, rows[1:])).points["contender"].tolist() == ["sglang Tiny-8B", "vllm Tiny-8B"]


def test_files_of_2024_give_throughput_but_no_decode_speed():
    found = read_file(DATA / "serving_2024.jsonl")
    row = only(found)
    assert not any("speed" in name or "tpot" in name for name in row)
    assert (row["load_kind"], row["load"], row["workload"]) == ("request_rate", 2.0, "sharegpt")
    assert row["output_throughput_tok_per_s"] == pytest.approx(600 * 500 / 310)
    assert row["achieved_concurrency"] == pytest.approx(7.875 * 600 / 310)
    assert row["itl_p50_ms"] == 14.5 and row["device_kind"] == "server"
    assert "no TPOT in the file (ITL is a gap between chunks" in said(found)


@pytest.mark.parametrize(
    "fields, workload",
    [
        ({"random_range_ratio": 0.0}, "random 1000 in / 201 out, range ratio 0"),
        ({"random_range_ratio": 0.5}, "random 1000 in / 201 out, range ratio 0.5"),
        ({"dataset_name": "random-ids"}, "random-ids 1000 in / 201 out"),
        ({"dataset_name": "sharegpt"}, "sharegpt"),
        ({"dataset_name": GONE}, "decode"),
    ],
)
def test_workload_is_the_data_set_and_its_lengths(tmp_path, fields, workload):
    assert only(read_file(changed(tmp_path, **fields)))["workload"] == workload


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"max_concurrency": None}, "max_concurrency is null and request_rate is infinite: all 400 requests"),
        ({"max_concurrency": None, "request_rate": "trace"}, "request_rate is the text 'trace', so the load is not"),
        ({"max_concurrency": 500}, "max_concurrency is 500, but 400 requests were sent"),
        ({"total_output_tokens_retokenized": 60000}, "80400 by the server and 60000 by tokenising the text again"),
        ({"total_output_tokens_retokenized": 8_040_000}, "one of them is wrong, and with it throughput and TPOT"),
        ({"total_output_tokens_retokenized": 0}, "80400 by the server and 0 by tokenising"),
        ({"median_tpot_ms": -0.0}, "median_tpot_ms is negative zero with 201 output tokens"),
        ({"completed": 0}, "0 requests completed"),
        ({"output_throughput": 700.0}, "output_throughput is 700, but total_output_tokens / duration is 643.2"),
        ({"completed": 90_000, "request_throughput": GONE}, "completed is 90000, but total_output_tokens is 80400"),
        ({"random_input_len": -1}, "random_input_len is negative"),
    ],
)
def test_a_run_that_contradicts_itself_or_has_no_load_gives_no_point(tmp_path, fields, reason):
    with pytest.raises(UserError, match=f"results.jsonl: .*{reason}"):
        read_file(changed(tmp_path, **fields))


def test_another_count_of_tokens_is_named_from_five_percent_on(tmp_path):
    name = "the count of tokenising the text again, more than 5 % off the server's"
    assert name in said(read_file(changed(tmp_path, total_output_tokens_retokenized=75000)))
    assert name not in said(read_file(changed(tmp_path, total_output_tokens_retokenized=78000)))
    assert "the server's count where it came with text, else the length" in said(read_file(changed(tmp_path)))


def test_concurrency_must_be_what_its_latencies_say(tmp_path):
    found = read_file(changed(tmp_path, concurrency=12.0))
    assert "achieved_concurrency" not in only(found)
    assert "concurrency, which is not mean E2E × completed / duration" in said(found)
    assert only(read_file(changed(tmp_path, concurrency=GONE)))["achieved_concurrency"] == pytest.approx(15.84)
    assert only(read_file(changed(tmp_path, concurrency=15.9)))["achieved_concurrency"] == 15.9


@pytest.mark.parametrize("value, kept", [(2.5, 2.5), (0.0, None), (None, None), (0.5, None), (300, None), (-1, None)])
def test_accept_length_is_tokens_per_step(tmp_path, value, kept):
    found = read_file(changed(tmp_path, accept_length=value))
    assert only(found).get("tokens_per_chunk") == kept
    assert ("accept_length is" in said(found)) == (value in (0.5, 300, -1))


@pytest.mark.parametrize(
    "report, rate",
    [
        ({"total_prompt_tokens": 400_000, "total_cached_tokens": 20_000, "cache_hit_rate_pct": 5.0}, 0.05),
        ({"total_prompt_tokens": 400_000, "total_cached_tokens": 0, "cache_hit_rate_pct": 0.0}, 0.0),
        ({"total_prompt_tokens": 400_000, "total_cached_tokens": 20_000, "cache_hit_rate_pct": 50.0}, None),
        ({"total_prompt_tokens": 400_000, "total_cached_tokens": 500_000, "cache_hit_rate_pct": 125.0}, None),
        ({"total_prompt_tokens": 0, "total_cached_tokens": 0, "cache_hit_rate_pct": 0.0}, None),
        ([], None),
    ],
)
def test_cache_hit_rate_is_cached_over_prompt_tokens(tmp_path, report, rate):
    found = read_file(changed(tmp_path, cache_report=report))
    assert only(found).get("cache_hit_rate") == rate
    assert ("cache hit rate is total_cached_tokens / total_prompt_tokens" in said(found)) == (rate is not None)


def worker(**fields):
    return {"tp_size": 4, "dp_size": 2, "pp_size": 1, "device": "cuda", "model_path": "acme/Tiny-8B"} | fields


@pytest.mark.parametrize(
    "info, devices, kind",
    [
        (worker(), 8, "gpu"),
        (worker(pp_size=2), 16, "gpu"),
        (worker(enable_dp_attention=True), 4, "gpu"),
        (worker(device="cpu"), 1, "cpu"),
        (worker(tp_size="four"), 1, "server"),
        ({"prefill": [worker(), worker()], "decode": [worker(tp_size=8, dp_size=1)]}, 24, "gpu"),
        ({"prefill": [], "decode": []}, 1, "server"),
        (None, 1, "server"),
        ({}, 1, "server"),
    ],
)
def test_devices_are_those_of_all_workers(tmp_path, info, devices, kind):
    row = only(read_file(changed(tmp_path, server_info=info)))
    assert (row["devices"], row["device_kind"]) == (devices, kind)
    assert row["output_throughput_tok_per_s"] == 643.2


def test_arrays_count_failures_and_gaps_of_the_native_client_are_no_chunks(tmp_path):
    tokens, gaps = [11, 0, 21], [[0.02] * 5, [], [0.02] * 10]
    fields = {
        "ttfts": [0.5, 0.0, 0.7],
        "itls": gaps,
        "output_lens": tokens,
        "errors": ["", "reset", ""],
        "completed": 2,
        "total_output_tokens": 32,
        "duration": 2.0,
        "output_throughput": 16.0,
        "request_throughput": 1.0,
        "max_concurrency": 2,
        "total_output_tokens_retokenized": 32,
    }
    latencies = [name for name in lines()[1] if name.endswith("_ms") or name == "concurrency"]
    fields |= dict.fromkeys(latencies, None)
    row = only(read_file(changed(tmp_path, **fields)))
    assert (row["n_completed"], row["n_failed"], row["load"]) == (2, 1, 2)
    assert row["tpot_p50_ms"] == pytest.approx(1000 * 0.01)
    assert row["decode_speed_tok_per_s"] == pytest.approx(100) and row["speed_from"] == "median TPOT"
    assert row["achieved_concurrency"] == pytest.approx((0.6 + 0.9) / 2)
    assert "tokens_per_chunk" not in row
    row = only(read_file(changed(tmp_path, **fields, backend="sglang-oai")))
    assert row["tokens_per_chunk"] == pytest.approx(32 / 17)


@pytest.mark.parametrize(
    "document, tool",
    [
        ({"successful_requests": 8, "total_latency": 3, "total_throughput": 9}, "bench_offline_throughput"),
        ({"concurrency_ratio": 0.8, "concurrency_threshold": 13, "window_start": 1}, "steady_state_serving"),
    ],
)
def test_benchmarks_without_a_load_are_named(tmp_path, document, tool):
    with pytest.raises(UserError, match=f"a result of sglang.*{tool}, which states no load"):
        read_file(write(tmp_path, [document]))


@pytest.mark.parametrize("text", ["[]", "[1, 2]", "{}", "3", "plain", '[{"1": 2}]', "x,y\n1,2\n"])
def test_other_content_is_not_recognised(tmp_path, text):
    path = tmp_path / "other.txt"
    path.write_text(text)
    assert not recognises(read_content(path)) and not recognises_batch(read_content(path))


def test_a_batch_without_a_server_gives_its_step_and_its_prefill():
    found = read_file(DATA / "one_batch.jsonl")
    decode = only(found, 2)
    assert decode == {
        "contender": "tp1",
        "workload": "1024 in / 64 out, one batch",
        "load_kind": "concurrency",
        "load": 16,
        "repeat": 1,
        "devices": 1,
        "device_kind": "server",
        "source": "measured (device unstated)",
        "n_completed": 16,
        "decode_speed_tok_per_s": 100.0,
        "speed_from": "step time",
        "output_throughput_tok_per_s": 1600.0,
        "window": "decode phase",
    }
    prefill = only(found, 3)
    assert (prefill["load_kind"], prefill["load"]) == ("step_tokens", 16384)
    assert prefill["input_throughput_tok_per_s"] == pytest.approx(32768)
    assert prefill["workload"] == "prefill of 1024 in" and "decode_speed_tok_per_s" not in prefill
    # As many tokens in one prefill, of other prompts: no repeat.
    other = only(found, 5)
    assert (other["load"], other["workload"], other["repeat"]) == (16384, "prefill of 4096 in", 1)


def test_a_batch_on_a_server_counts_no_first_tokens():
    found = read_file(DATA / "one_batch_server.jsonl")
    row = only(found)
    assert row["decode_speed_tok_per_s"] == pytest.approx(64 / 0.64)
    assert row["output_throughput_tok_per_s"] == pytest.approx(16 * 64 / 0.64)
    assert (row["window"], row["window_s"], row["speed_from"]) == ("decode phase", pytest.approx(0.64), "decode phase")
    assert "recomputed without" in said(found)
    prefill = only(found, 1)
    assert prefill["input_throughput_tok_per_s"] == 32768 and prefill["load"] == 16384


def test_the_window_of_a_full_batch_is_preferred():
    row = only(read_file(DATA / "one_batch_server.jsonl"), 2)
    assert row["output_throughput_tok_per_s"] == 1590 and row["decode_speed_tok_per_s"] == pytest.approx(1590 / 16)
    assert (row["window"], row["window_s"]) == ("steady", 0.62)


def test_cached_prefill_is_no_prefill():
    found = read_file(DATA / "one_batch_server.jsonl")
    assert len(found.points) == 5
    row = only(found, 4)
    assert row["workload"] == "1024 in (40% cached) / 65 out, one batch" and row["cache_hit_rate"] == 0.4
    assert row["repeat"] == 1 and row["tokens_per_chunk"] == 2.5
    assert "it counts tokens that came from the prefix cache" in said(found)


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"num_early_stopped": 3}, "replies stopped early, so the batch shrank"),
        ({"output_len": 1, "total_output_tokens": 16, "overall_throughput": 14386.0}, "one output token per request"),
        ({"latency": 0.504, "overall_throughput": 34571.4}, "latency − last_ttft is below 0.01 s"),
    ],
)
def test_a_batch_without_a_decode_phase_keeps_its_prefill(tmp_path, fields, reason):
    found = read_file(changed(tmp_path, "one_batch_server.jsonl", 0, **fields))
    assert found.points["load_kind"].tolist() == ["step_tokens"]
    assert f"decode speed: {reason}" in said(found)


def test_before_2025_a_batch_was_not_streamed(tmp_path):
    row = {"run_name": "default", "batch_size": 16, "input_len": 1024, "output_len": 16, "latency": 2.0}
    path = write(tmp_path, [row | {"output_throughput": 128.0, "overall_throughput": 8320.0}])
    found = read_file(path)
    assert only(found)["output_throughput_tok_per_s"] == 128 and only(found)["window"] == "full"
    assert "decode_speed_tok_per_s" not in only(found) and "no last_ttft" in said(found)


@pytest.mark.parametrize(
    "name, fields, reason",
    [
        ("one_batch.jsonl", {"median_decode_latency": 0.02}, "median_decode_throughput is 125, but batch_size"),
        ("one_batch.jsonl", {"prefill_latency": 0.05}, "prefill_throughput is 25600, but its tokens"),
        ("one_batch.jsonl", {"output_len": 128}, "overall_throughput is"),
        ("one_batch.jsonl", {"batch_size": 0}, "batch_size is 0"),
        ("one_batch_server.jsonl", {"latency": 1.3}, "overall_throughput is"),
        ("one_batch_server.jsonl", {"last_ttft": 0.7}, "output_throughput is 1625"),
        ("one_batch_server.jsonl", {"last_ttft": 1.2}, "last_ttft is 1.2 s, but latency is 1.14 s"),
        ("one_batch_server.jsonl", {"cache_hit_rate": 1.5}, "cache_hit_rate is 1.5; a share from 0 to 1"),
        (
            "one_batch_server.jsonl",
            {"steady_state_output_throughput": 2000.0, "steady_state_window_s": 0.6},
            "steady_state_output_throughput × steady_state_window_s is 1200 tokens in 0.6 s",
        ),
        (
            "one_batch_server.jsonl",
            {"steady_state_output_throughput": 1000.0, "steady_state_window_s": 0.8},
            "steady_state_output_throughput × steady_state_window_s is 800 tokens in 0.8 s",
        ),
    ],
)
def test_a_batch_that_contradicts_itself_gives_no_point(tmp_path, name, fields, reason):
    with pytest.raises(UserError, match=f"results.jsonl: {reason}"):
        read_file(changed(tmp_path, name, 0, **fields))


NAMES = sorted(path.name for path in DATA.glob("*.jsonl"))
# What nothing else in the line confirms: the field itself sets these columns of the point.
SETS = {
    "server_info": {"devices"},
    "tp_size": {"devices"},
    "pp_size": {"devices"},
    "dp_size": {"devices"},
    "device": {"devices"},
    "median_tpot_ms": {"decode_speed_tok_per_s"},
    "total_input_tokens": {"mean_input_tokens"},
    "steady_state_output_throughput": {"decode_speed_tok_per_s", "output_throughput_tok_per_s", "window_s"},
}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_cut_off_gives_whole_lines_or_none(tmp_path, name):
    expected = read_file(DATA / name).points
    path = tmp_path / name
    whole = [
        assert_sound(read_file, path, expected) for data in truncations(DATA / name) if path.write_bytes(data) >= 0
    ]
    assert any(points is not None for points in whole) and whole[0] is None


@pytest.mark.parametrize("name", NAMES)
def test_any_one_field_damaged_is_refused_or_changes_no_number(tmp_path, name):
    expected = read_file(DATA / name).points
    document = {"lines": lines(name)[1:2]}
    for field in fields_of(document):
        for change in VALUES:
            if len(field) > 2:
                damaged = mutate(document, field, change).write(tmp_path / name)
                assert_sound(read_file, damaged, expected, SETS.get(field[-1], ()))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutation=st.sampled_from(NAMES).flatmap(lambda name: mutations(document_of_lines(DATA / name))))
def test_damage_anywhere_raises_nothing_but_user_errors(tmp_path, mutation):
    expected = pd.concat([read_file(DATA / name).points for name in NAMES])
    damaged = mutation.write(tmp_path / "damaged.jsonl")
    assert_sound(read_file, damaged, expected, SETS.get(mutation.field[-1], ()))


@sample
def test_a_real_run_at_request_rates_gives_throughput_and_no_speed():
    found = read_file(SAMPLES / "datacrunch_llama_3_3_70b_online_output.jsonl")
    assert found.points["load"].tolist() == [1, 2, 4, 8, 16, 4, 8]
    assert "decode_speed_tok_per_s" not in found.points
    assert found.points["achieved_concurrency"].iloc[0] == pytest.approx(7.88, rel=1e-3)
    assert "queues grew" in said(found) and "line 5)" in said(found)


@sample
def test_a_real_run_of_everything_at_once_is_refused():
    with pytest.raises(UserError, match=r"line 1: max_concurrency is null .*all 3000 requests.*and 6 more rows"):
        read_file(SAMPLES / "datacrunch_llama_3_3_70b_offline_output.jsonl")


@sample
def test_a_damaged_real_file_gives_no_wrong_number(tmp_path):
    path = SAMPLES / "datacrunch_llama_3_3_70b_online_output.jsonl"
    expected, document = read_file(path).points, {"lines": document_of_lines(path)["lines"][:1]}
    damaged = tmp_path / path.name
    for data in truncations(path):
        damaged.write_bytes(data)
        assert_sound(read_file, damaged, expected)
    for field in fields_of(document):
        for change in VALUES:
            if len(field) > 2:
                mutate(document, field, change).write(damaged)
                assert_sound(read_file, damaged, expected, SETS.get(field[-1], ()))
