"""InferenceX rows: denominators, units, percentiles, and what is refused by name."""

import json

import pytest
from inferencex_files import POOLS, ROW, point, read, refusal, rows, sentences

from wholecurve.curves import Curve
from wholecurve.errors import UserError

# --- denominators ---------------------------------------------------------------------------------------------


def test_one_pool_multiplies_by_all_gpus_of_tp_pp_and_pcp_and_by_nothing_else(tmp_path):
    row = point(tmp_path, pp=2, pcp_size=2, dcp_size=4, ep=4)
    assert row["devices"] == 4 * 2 * 2
    assert row["output_throughput_tok_per_s"] == pytest.approx(25 * 16)
    assert row["logical_throughput_tok_per_s"] == pytest.approx(75 * 16)


def test_output_of_two_pools_is_per_decode_gpu_and_becomes_per_gpu_of_all(tmp_path):
    found = rows(tmp_path, POOLS)
    (row,) = found.points.itertuples()
    assert row.devices == 16
    assert row.output_throughput_tok_per_s == pytest.approx(1200)
    assert row.logical_throughput_tok_per_s == pytest.approx(2000)
    assert Curve.from_points(found.points).points["throughput"].tolist() == pytest.approx([1200 / 16])
    assert "per decode GPU" in sentences(found)


@pytest.mark.parametrize(
    "changed",
    [
        {"output_tput_per_gpu": 1200 / 16},
        {"input_tput_per_gpu": 800 / 16},
        {"tput_per_gpu": 2000 / 12},
        {"num_decode_gpu": 16},
        {"num_prefill_gpu": 8},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_two_pools_whose_numbers_do_not_add_up_are_refused_with_both_sums(tmp_path, changed):
    text = refusal(tmp_path, POOLS, **changed)
    assert "decode GPUs + input_tput_per_gpu" in text and "tput_per_gpu ×" in text and "tok/s" in text


def test_two_pools_are_believed_within_two_percent(tmp_path):
    assert point(tmp_path, POOLS, tput_per_gpu=125 * 1.015)["output_throughput_tok_per_s"] == pytest.approx(1200)
    assert "2050" in refusal(tmp_path, POOLS, tput_per_gpu=125 * 1.025)


@pytest.mark.parametrize("name", ["num_prefill_gpu", "num_decode_gpu", "input_tput_per_gpu", "tput_per_gpu"])
@pytest.mark.parametrize(("value", "state"), [("absent", "missing"), (None, "null"), (0, "0"), (-1, "negative")])
def test_two_pools_without_what_confirms_them_are_refused_by_field_and_state(tmp_path, name, value, state):
    assert f"{name} is {state}" in refusal(tmp_path, POOLS, **{name: value})


def test_a_dashboard_row_of_one_pool_repeats_its_gpus_and_is_not_doubled(tmp_path):
    row = point(tmp_path, tp=None, decode_tp=8, prefill_tp=8, num_prefill_gpu=8, num_decode_gpu=8, disagg=False)
    assert (row["devices"], row["output_throughput_tok_per_s"]) == (8, 200)


def test_a_row_called_one_pool_with_numbers_of_two_is_refused(tmp_path):
    halves = {"output_tput_per_gpu": 50.0, "input_tput_per_gpu": 100.0, "num_prefill_gpu": 8, "num_decode_gpu": 8}
    text = refusal(tmp_path, **halves, disagg=False)
    assert "output_tput_per_gpu 50 + input_tput_per_gpu 100 is not tput_per_gpu 75" in text


def test_gpu_counts_of_one_pool_that_differ_or_whose_kind_is_unknown_are_refused(tmp_path):
    text = refusal(tmp_path, num_prefill_gpu=8, num_decode_gpu=16, disagg=False)
    assert "num_prefill_gpu is 8 and num_decode_gpu 16" in text
    assert "disagg is missing" in refusal(tmp_path, num_prefill_gpu=8, num_decode_gpu=8)
    assert "disagg is the text 'perhaps'" in refusal(tmp_path, disagg="perhaps")
    assert point(tmp_path, disagg="False")["devices"] == 4


def test_expert_parallelism_adds_no_gpus_where_the_dashboard_multiplied_it_in(tmp_path):
    dashboard = {"tp": None, "decode_tp": 8, "decode_ep": 8, "num_prefill_gpu": 64, "num_decode_gpu": 64}
    found = rows(tmp_path, {**ROW, **dashboard, "disagg": False})
    assert found.points["devices"].tolist() == [8]
    assert "tp × ep" in sentences(found)
    several = {**dashboard, "decode_ep": 1, "num_prefill_gpu": 24, "num_decode_gpu": 24, "decode_num_workers": 3}
    assert point(tmp_path, **several, disagg=False)["devices"] == 24


def test_a_multinode_row_without_decode_gpus_is_one_pool(tmp_path):
    aggregated = {"tp": None, "prefill_tp": 16, "decode_tp": 0, "num_prefill_gpu": 16, "num_decode_gpu": 0}
    assert point(tmp_path, **aggregated, disagg=False, is_multinode=True)["devices"] == 16


def test_output_above_all_tokens_on_one_denominator_is_impossible(tmp_path):
    text = refusal(tmp_path, output_tput_per_gpu=80.0, input_tput_per_gpu="absent")
    assert "output_tput_per_gpu is 80" in text and "tput_per_gpu 75" in text
    assert point(tmp_path, output_tput_per_gpu=75.0, input_tput_per_gpu="absent")["output_throughput_tok_per_s"] == 300


def test_without_output_throughput_the_point_keeps_speed_and_logical_throughput_and_says_so(tmp_path):
    found = rows(tmp_path, {k: v for k, v in ROW.items() if not k.startswith(("output", "input"))})
    (row,) = found.points.to_dict("records")
    assert "output_throughput_tok_per_s" not in row
    assert (row["decode_speed_tok_per_s"], row["logical_throughput_tok_per_s"]) == (50, 300)
    assert "no output_tput_per_gpu" in sentences(found)


@pytest.mark.parametrize("name", ["output_tput_per_gpu", "tput_per_gpu", "median_tpot", "conc", "tp"])
@pytest.mark.parametrize(
    ("value", "state"),
    [(0, "0"), (-2, "negative (-2)"), (float("nan"), "NaN"), (float("inf"), "infinite"), ("OOM", "the text 'OOM'")],
)
def test_a_needed_number_in_a_bad_state_drops_its_row_alone_by_name(tmp_path, name, value, state):
    found = rows(tmp_path, {**ROW, name: value}, {**ROW, "conc": 16})
    assert found.points["load"].tolist() == [16]
    (dropped,) = found.notes.dropped
    assert "row 1" in dropped and f"{name} is {state}" in dropped


def test_a_row_without_gpu_count_or_load_is_refused(tmp_path):
    assert "tp is missing" in refusal(tmp_path, tp="absent")
    assert "conc is missing" in refusal(tmp_path, conc="absent")
    assert "at most 1000000" in refusal(tmp_path, tp=10**9)


# --- speeds and latencies ---------------------------------------------------------------------------------------


def test_seconds_become_ms_and_speed_is_the_reciprocal_of_the_median_tpot(tmp_path):
    found = rows(tmp_path, {**ROW, "median_ttft": 0.25, "p90_tpot": 0.025, "p99_e2el": 3.5, "median_itl": 0.06})
    (row,) = found.points.to_dict("records")
    assert row["decode_speed_tok_per_s"] == pytest.approx(1 / 0.02)
    assert row["decode_speed_p90_tok_per_s"] == pytest.approx(1 / 0.025)
    latencies = [row[name] for name in ("ttft_p50_ms", "tpot_p50_ms", "tpot_p90_ms", "e2e_p99_ms", "itl_p50_ms")]
    assert latencies == pytest.approx([250, 20, 25, 3500, 60])
    assert "how many requests completed" in sentences(found)


def test_interactivity_stands_in_for_tpot_and_must_agree_with_it(tmp_path):
    row = point(tmp_path, median_tpot="absent", median_intvty=62.5, p90_intvty=40)
    assert (row["decode_speed_tok_per_s"], row["decode_speed_p90_tok_per_s"]) == (62.5, 40)
    assert row["speed_from"] == "median TPOT"
    text = refusal(tmp_path, median_intvty=20)
    assert "median_tpot means 50 tok/s/user" in text and "median_intvty is 20" in text


def test_mean_tpot_is_used_only_where_there_is_no_median_and_is_called_so(tmp_path):
    row = point(tmp_path, median_tpot="absent", mean_tpot=0.04)
    assert (row["decode_speed_tok_per_s"], row["speed_from"]) == (25, "mean TPOT")
    assert point(tmp_path, mean_tpot=0.04)["speed_from"] == "median TPOT"


def test_a_row_without_any_tpot_has_no_speed_and_one_without_throughput_as_well_is_refused(tmp_path):
    found = rows(tmp_path, {**ROW, "median_tpot": None, "median_itl": 0.01})
    assert "decode_speed_tok_per_s" not in found.points
    assert "no decode speed" in sentences(found)
    bare = {"median_tpot": None, "output_tput_per_gpu": None, "input_tput_per_gpu": None, "tput_per_gpu": None}
    path = tmp_path / "bare.json"
    path.write_text(json.dumps([{**ROW, **bare, "mean_intvty": 10}]))
    with pytest.raises(UserError, match="a speed or a throughput is needed"):
        read(path)


@pytest.mark.parametrize(
    ("field", "value", "column", "said"),
    [
        ("p90_tpot", 0, "decode_speed_p90_tok_per_s", "p90_tpot is 0, which these rows use for missing"),
        ("p99_ttft", 0, "ttft_p99_ms", "p99_ttft is 0, which these rows use for missing"),
        ("median_e2el", -1, "e2e_p50_ms", "median_e2el is negative (-1)"),
        ("p90_tpot", 0.01, "decode_speed_p90_tok_per_s", "above the median"),
        ("std_intvty", 8400, "std_intvty", "not the spread of anything"),
        ("avg_power_w", 0, "power_w_per_device", "avg_power_w is 0"),
    ],
)
def test_what_is_not_usable_is_left_out_by_name_and_the_point_stays(tmp_path, field, value, column, said):
    found = rows(tmp_path, {**ROW, field: value})
    assert len(found.points) == 1 and column not in found.points
    assert said in sentences(found)


def test_p90_fields_that_contradict_each_other_give_no_p90_speed(tmp_path):
    found = rows(tmp_path, {**ROW, "p90_tpot": 0.025, "p90_intvty": 30})
    assert "decode_speed_p90_tok_per_s" not in found.points
    assert "p90_tpot and p90_intvty contradict each other" in sentences(found)


def test_percentiles_need_their_number_of_completed_requests(tmp_path):
    outcome = {"status": "passed", "completed": 29, "failed": 1}
    percentiles = {"p90_tpot": 0.025, "p90_ttft": 0.4, "p99_ttft": 0.5, "median_ttft": 0.3}
    row = point(tmp_path, **percentiles, benchmark_outcome=outcome)
    assert (row["n_completed"], row["n_failed"], row["ttft_p50_ms"]) == (29, 1, 300)
    assert not {"ttft_p90_ms", "ttft_p99_ms", "tpot_p90_ms", "decode_speed_p90_tok_per_s"} & set(row.index)
    row = point(tmp_path, **percentiles, benchmark_outcome={**outcome, "completed": 299})
    assert "ttft_p90_ms" in row and "ttft_p99_ms" not in row


def test_a_run_that_failed_is_refused(tmp_path):
    assert "benchmark_outcome.status is 'failed'" in refusal(tmp_path, benchmark_outcome={"status": "failed"})


@pytest.mark.parametrize(
    ("power", "watts", "said"),
    [
        ({"avg_power_w": 500}, 500, "avg_power_w is per GPU"),
        ({"avg_power_w": 500, "power_valid": 1, "avg_total_gpu_power_w": 2000}, 500, "per GPU"),
        ({"avg_power_w": 500, "power_valid": 0}, None, "power_valid is 0"),
        ({"avg_power_w": 500, "power_valid": True}, None, "power_valid is true"),
        ({"avg_power_w": 2000, "avg_total_gpu_power_w": 2000}, None, "is not avg_total_gpu_power_w"),
    ],
)
def test_power_is_per_gpu_and_only_where_it_is_valid_and_adds_up(tmp_path, power, watts, said):
    found = rows(tmp_path, {**ROW, **power})
    assert found.points.get("power_w_per_device", [None])[0] == watts
    assert said in sentences(found)
