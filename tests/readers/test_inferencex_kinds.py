"""InferenceX: agentic rows, experiments' summaries, names of contenders, and damaged files."""

import copy
import json
from dataclasses import replace

import pytest
from fuzzing import assert_sound, mutations, truncations
from hypothesis import given, settings
from inferencex_files import DATA, FILES, ROW, SHARED, point, read, refusal, rows, sentences

from wholecurve.curves import Curve
from wholecurve.errors import UserError
from wholecurve.readers.content import read_content
from wholecurve.readers.found import Notes
from wholecurve.readers.inferencex import files as inferencex

# --- agentic rows -----------------------------------------------------------------------------------------------


@pytest.fixture
def agentic():
    return json.loads((DATA / "agentic_agg.json").read_text())


def test_an_agentic_row_keeps_output_apart_from_tokens_that_include_cached_input():
    (row,) = read(DATA / "agentic_agg.json").points.to_dict("records")
    assert row["workload"] == "agentic-coding example/cc-traces"
    assert (row["devices"], row["load"], row["n_completed"], row["n_failed"]) == (4, 8, 400, 6)
    assert row["output_throughput_tok_per_s"] == pytest.approx(400 * 900 / 3600)
    assert row["logical_throughput_tok_per_s"] == pytest.approx(400 * 90900 / 3600)
    assert row["cache_hit_rate"] == 0.93
    assert row["achieved_concurrency"] == pytest.approx(27 * 400 / 3600)
    assert (row["decode_speed_tok_per_s"], row["decode_speed_p90_tok_per_s"]) == (100, 62.5)
    assert row["e2e_speed_p90_tok_per_s"] == 13.5
    assert (row["mean_input_tokens"], row["mean_output_tokens"], row["window_s"]) == (90000, 900, 3600)
    assert not [name for name in row if name.startswith("itl_")]


def test_agentic_rows_of_two_pools_divide_by_all_gpus(tmp_path, agentic):
    pools = {"disagg": True, "num_gpus": 4, "num_prefill_gpu": 1, "num_decode_gpu": 3}
    assert point(tmp_path, agentic, **pools)["output_throughput_tok_per_s"] == pytest.approx(100)
    flat = {"scenario_type": "agentic-coding", **pools, "output_tput_per_gpu": 25.0, "users": 8}
    assert point(tmp_path, ROW, **flat)["output_throughput_tok_per_s"] == pytest.approx(25 * 4)
    assert "num_gpus is 5" in refusal(tmp_path, agentic, **pools | {"num_gpus": 5})


def test_agentic_totals_that_contradict_the_numbers_per_gpu_are_refused(tmp_path, agentic):
    text = refusal(tmp_path, agentic, num_gpus=8)
    assert "output.tokens_per_second is 100" in text and "is 200" in text


def test_agentic_p90_comes_from_tpot_because_interactivity_was_also_written_for_the_fast_side(tmp_path, agentic):
    agentic["request_metrics"]["latency"]["intvty"]["p90"] = 160
    assert point(tmp_path, agentic)["decode_speed_p90_tok_per_s"] == 62.5
    del agentic["request_metrics"]["latency"]["tpot"]
    found = rows(tmp_path, agentic)
    assert "decode_speed_p90_tok_per_s" not in found.points
    assert "of which side it is" in sentences(found)


def test_an_e2e_speed_of_the_fast_side_is_left_out(tmp_path, agentic):
    agentic["request_metrics"]["latency"]["e2e_norm_intvty"]["p90"] = 120
    found = rows(tmp_path, agentic)
    assert "e2e_speed_p90_tok_per_s" not in found.points
    assert "fast side" in sentences(found)


@pytest.mark.parametrize(
    ("cache", "rate", "said"),
    [
        ({"gpu_cache_hit_rate": 0.4}, 0.4, "the GPU's own cache"),
        ({"overall_cache_hit_rate": 93}, None, "is above 1"),
        ({}, None, "theoretical_cache_hit_rate"),
    ],
)
def test_the_cache_hit_rate_is_a_measured_share(tmp_path, agentic, cache, rate, said):
    agentic["server_metrics"]["cache"] = cache
    found = rows(tmp_path, agentic)
    assert found.points.get("cache_hit_rate", [None])[0] == rate
    assert said in sentences(found)


def test_an_agentic_run_without_a_successful_request_is_dropped(tmp_path, agentic):
    assert "num_requests_successful is 0" in refusal(tmp_path, agentic, num_requests_successful=0)


def test_sessions_are_called_conc_or_users_but_not_both(tmp_path, agentic):
    assert point(tmp_path, agentic, conc="absent", users=12)["load"] == 12
    assert "conc is 8 and users 9" in refusal(tmp_path, agentic, users=9)


# --- names, workloads, repeats ----------------------------------------------------------------------------------


def names(found):
    return found.points["contender"].tolist()


def test_a_name_is_short_until_something_must_be_told_apart(tmp_path):
    assert names(rows(tmp_path, ROW)) == ["h100 vllm fp8"]
    assert names(rows(tmp_path, {**ROW, "spec_decoding": "mtp"})) == ["h100 vllm fp8 mtp"]
    assert names(rows(tmp_path, ROW, {**ROW, "tp": 8})) == ["h100 vllm fp8 tp4", "h100 vllm fp8 tp8"]
    assert names(rows(tmp_path, ROW, {**ROW, "conc": 16})) == ["h100 vllm fp8"] * 2


@pytest.mark.parametrize(
    "changed",
    [
        {"tp": 8},
        {"ep": 8},
        {"pp": 2},
        {"dcp_size": 2},
        {"dp_attention": "true"},
        {"image": "other:v2"},
        {"kv_offloading": "dram", "kv_offload_backend": "lmcache"},
        {"recipe_fingerprint": "b" * 64},
        {"model": "another/Model"},
        {"router": {"name": "r", "version": "2"}},
        {"hw": "h200"},
        {"framework": "sglang"},
        {"precision": "fp4"},
        {"spec_decoding": "mtp"},
        {"date": "2026-02-02"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_two_configurations_never_share_a_name(tmp_path, changed):
    base = {**ROW, "image": "some:v1", "ep": 1, "pp": 1, "dcp_size": 1, "recipe_fingerprint": "a" * 64, "model": "m"}
    base |= {"date": "2026-02-01", "kv_offloading": "none"}
    found = rows(tmp_path, base, {**base, **changed})
    assert len(set(names(found))) == 2
    assert not any(":" in name for name in names(found))
    assert found.points["repeat"].tolist() == [1, 1]


def test_two_layouts_of_pools_are_two_curves_and_each_curve_is_monotone():
    found = read(DATA / "dashboard_two_pools.json")
    curves = [Curve.from_points(found.points, name, "1024 in / 8192 out") for name in dict.fromkeys(names(found))]
    assert sorted(len(curve.points) for curve in curves) == [1, 2]
    assert all("decode" in curve.name and curve.points["speed"].is_monotonic_decreasing for curve in curves)


def test_dates_name_a_contender_only_where_they_alone_tell_runs_apart(tmp_path):
    days = [{**ROW, "conc": 8 * n, "date": f"2026-02-0{n}"} for n in (1, 2)]
    assert names(rows(tmp_path, *days)) == ["h100 vllm fp8"] * 2
    again = {**ROW, "date": "2026-02-03", "median_tpot": 0.021}
    assert len(set(names(rows(tmp_path, days[0], again)))) == 2


def test_rows_of_one_configuration_and_load_are_repeats_but_copies_count_once(tmp_path):
    found = rows(tmp_path, ROW, {**ROW, "median_tpot": 0.021}, copy.deepcopy(ROW))
    assert found.points["repeat"].tolist() == [1, 2]
    assert "row 3: equal to" in found.notes.dropped[0]


def test_the_workload_is_what_the_row_states(tmp_path):
    assert point(tmp_path, isl=1024, osl=8192)["workload"] == "1024 in / 8192 out"
    found = rows(tmp_path, ROW)
    assert found.points["workload"].tolist() == ["decode"]
    assert "its workload is not known" in sentences(found)


def test_configuration_model_precision_and_hardware_are_columns(tmp_path):
    row = point(tmp_path, model="m/M", image="i:v1", ep=8, dp_attention="true", kv_offloading="none")
    assert (row["model"], row["precision"], row["hardware"]) == ("m/M", "fp8", "h100")
    assert row["configuration"] == "m/M, tp4, ep8, dp-attention, i:v1"


def test_nested_flat_and_wrapped_rows_are_the_same_point(tmp_path):
    metrics = {k: v for k, v in ROW.items() if "tp" in k and k != "tp"}
    nested = {**{k: v for k, v in ROW.items() if k not in metrics}, "metrics": metrics}
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({"benchmarks": [ROW, 3], "evaluations": []}))
    wrapped = read(path)
    assert rows(tmp_path, nested).points.equals(rows(tmp_path, ROW).points)
    assert wrapped.points.equals(rows(tmp_path, ROW).points)
    assert "benchmark 2: is 3; an object is needed" in wrapped.notes.dropped[0]


# --- summaries of experiments -------------------------------------------------------------------------------------


def test_a_summary_is_in_ms_and_its_interactivity_is_of_the_mean():
    found = read(DATA / "experiment_summary.json")
    first, last = found.points.to_dict("records")
    assert (first["decode_speed_tok_per_s"], last["decode_speed_tok_per_s"]) == (20, 10)
    assert (last["output_throughput_tok_per_s"], last["devices"], last["tpot_p99_ms"]) == (320, 8, 120)
    assert (first["mean_output_tokens"], first["contender"]) == (700, "8x Example vllm 0.17 BF16")
    assert first["workload"] == "1024 in / 1024 out"
    assert "tpot_p99_ms: fewer than 300 completed requests" in sentences(found)
    assert "interactivity is 1/mean TPOT" in sentences(found)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"output_tput_per_gpu": 20.0}, "output_tput_per_gpu × num_gpus"),
        ({"num_gpus": 4}, "output_tput_per_gpu × num_gpus"),
        ({"duration_s": 700.0}, "total_output_tokens / duration_s"),
        ({"interactivity": 40.0}, "interactivity is 40"),
        ({"median_tpot_ms": 0}, "median_tpot_ms is 0"),
        ({"median_tpot_ms": 130.0}, "median_tpot_ms is 130, above p99_tpot_ms 120"),
        ({"total_throughput": 6.25}, "total_tput_per_gpu × num_gpus"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_result_of_a_summary_that_contradicts_itself_is_dropped_alone(tmp_path, changed, said):
    document = json.loads((DATA / "experiment_summary.json").read_text())
    document["results"][0] |= changed
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(document))
    found = read(path)
    assert found.points["load"].tolist() == [32]
    assert said in found.notes.dropped[0] and "result 1" in found.notes.dropped[0]


# --- damage -------------------------------------------------------------------------------------------------------

# What nothing else in a row confirms: the load, and numbers that stand alone.
ALONE = {"load", "devices", "power_w_per_device", "achieved_concurrency", "cache_hit_rate", "window_s", "n_completed"}
ALONE |= {"n_failed", "mean_input_tokens", "mean_output_tokens", "input_tokens", "output_tokens"}
ALONE |= {"e2e_speed_p90_tok_per_s", "decode_speed_p90_tok_per_s"}
ALONE |= {f"{m}_{p}_ms" for m in ("ttft", "tpot", "e2e", "itl") for p in ("p50", "p90", "p99")}


def per_gpu(found):
    """The file's points with throughput of one GPU: what is compared, and what a wrong GPU count must not change."""
    points = found.points.copy()
    for name in ("output_throughput_tok_per_s", "logical_throughput_tok_per_s"):
        if name in points:
            points[name] /= points["devices"]
    return replace(found, points=points)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_that_breaks_off_is_refused(tmp_path, path):
    whole, cut = read(path).points, tmp_path / path.name
    for data in truncations(path):
        cut.write_bytes(data)
        assert_sound(read, cut, whole)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_changed_field_never_changes_speed_or_throughput_per_gpu(tmp_path_factory, path):
    document, whole = json.loads(path.read_text()), per_gpu(read(path)).points
    folder = tmp_path_factory.mktemp("mutated")

    @settings(max_examples=60)
    @given(mutations(document))
    def check(mutation):
        changed = mutation.write(folder / path.name)
        content = read_content(changed)
        if inferencex.recognises(content):
            assert_sound(lambda p: per_gpu(inferencex.read(read_content(p), Notes())), changed, whole, may_differ=ALONE)

    check()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the samples that these tests read are not beside this repository")
def test_published_rows_keep_the_throughput_that_their_denominators_confirm():
    two_pools = read(SHARED / "inferencex" / "api_rows_h100_dynamo_disagg_mtp_1k8k_nonmonotone.json").points
    raw = json.loads((SHARED / "inferencex" / "api_rows_h100_dynamo_disagg_mtp_1k8k_nonmonotone.json").read_text())
    inputs = [row["metrics"]["input_tput_per_gpu"] * row["num_prefill_gpu"] for row in raw]
    together = two_pools["output_throughput_tok_per_s"] + inputs
    assert together.tolist() == pytest.approx(two_pools["logical_throughput_tok_per_s"].tolist())
    assert two_pools["contender"].nunique() == 2
    one_pool = read(SHARED / "inferencex" / "api_rows_mi300x_sglang_fp8_1k1k.json").points
    assert one_pool["devices"].unique().tolist() == [8]
    occupancy = one_pool["output_throughput_tok_per_s"] / one_pool["load"] / one_pool["decode_speed_tok_per_s"]
    assert occupancy.between(0.85, 1.05).all()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the samples that these tests read are not beside this repository")
def test_hand_made_curves_with_bad_states_name_each_row():
    notes, content = Notes(), read_content(SHARED / "ugly_synthetic" / "curve_negative_and_zero.json")
    with pytest.raises(UserError, match="row 1: median_intvty is 0"):
        inferencex.read(content, notes)
    states = ["median_intvty is 0", "median_intvty is negative (-5)", "output_tput_per_gpu is 0"]
    assert [state in said for state, said in zip(states, notes.dropped, strict=True)] == [True] * 3
