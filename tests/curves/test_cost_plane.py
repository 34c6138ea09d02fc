"""Costs: formulas, rates, the table, readings at a latency and ratios there; what is missing is absent, never free."""

import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from curve_builders import analytic, frame
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from wholecurve.cost_report import cost_document, latency_table, points_table, print_costs, ratio_table
from wholecurve.curves import compare
from wholecurve.curves.costs.formulas import (
    dollars_per_million_tokens,
    joules_per_token,
    tokens_per_dollar,
    tokens_per_dollar_ratio,
    tokens_per_s_per_megawatt,
    worth_text,
)
from wholecurve.curves.costs.latency_curve import LatencyCurve
from wholecurve.curves.costs.match import costs_at_latency, matched_costs
from wholecurve.curves.costs.plane import cost_plane
from wholecurve.curves.costs.rates import Rate, device_named, rates_for
from wholecurve.curves.costs.ratio import cost_ratios
from wholecurve.curves.costs.table import cost_table
from wholecurve.curves.multipliers import Refused
from wholecurve.errors import UserError
from wholecurve.readers.rates import read_rates

GRID = (1.0, 2.0, 4.0, 8.0, 16.0)
positive = st.floats(0.01, 1e6)
ROWS = pd.DataFrame(
    [
        ("h200", "neocloud", 1.74, 1.73, "list", "2026-04-03", ""),
        ("h200", "neocloud", 2.00, 1.50, "list", "2026-09-04", ""),
        ("b200", "neocloud", 2.34, math.nan, "list", "2026-04-03", ""),
        ("gb200", "neocloud", math.nan, 2.10, "list", "2026-04-03", ""),
        ("h200", "owned", 1.41, 1.73, "list", "2026-04-03", ""),
    ],
    columns=["device", "tier", "usd_per_gpu_hour", "all_in_kw_per_gpu", "source", "date", "note"],
)


def points(name="A", rate=100.0, base_ms=1000.0, loads=GRID, **columns):
    """Throughput rate × c/(1 + c/8) per device and p90 E2E base × (1 + c/4): both rise with the load."""
    loads = np.asarray(loads, float)
    throughput = rate * loads / (1 + loads / 8)
    rows = frame(name, loads, throughput / loads, throughput, e2e_p90_ms=base_ms * (1 + loads / 4), n_completed=100)
    return rows.assign(**columns)


def rate(usd=2.0, kw=None, **columns):
    return Rate(usd, kw, "stated", **columns)


def table(*frames, usd=None):
    rows = pd.concat(frames)
    names = list(dict.fromkeys(rows["contender"]))
    rates = {name: rate(value) for name, value in zip(names, usd or [2.0] * len(names))}
    return cost_table(rows, rates), rates


# Formulas


def test_a_known_point_costs_what_the_arithmetic_says():
    assert dollars_per_million_tokens(1.80, 500) == pytest.approx(1.0)
    assert tokens_per_dollar(1.80, 500) == pytest.approx(1e6)
    assert joules_per_token(600, 50) == pytest.approx(12.0)
    assert tokens_per_s_per_megawatt(600, 50) == pytest.approx(83333.333)


@given(positive, positive, st.floats(1.01, 100))
def test_cost_falls_as_throughput_rises_and_both_forms_are_inverses(usd, throughput, factor):
    cost = dollars_per_million_tokens(usd, throughput)
    assert dollars_per_million_tokens(usd, factor * throughput) == pytest.approx(cost / factor)
    assert dollars_per_million_tokens(factor * usd, throughput) == pytest.approx(cost * factor)
    assert tokens_per_dollar(usd, throughput) * cost == pytest.approx(1e6)
    assert cost * throughput * 3600 / 1e6 == pytest.approx(usd)


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_missing_rate_power_or_throughput_is_missing_and_not_free(missing):
    for formula in (dollars_per_million_tokens, tokens_per_dollar, joules_per_token, tokens_per_s_per_megawatt):
        assert formula(missing, 100.0) is None and formula(100.0, missing) is None
    assert tokens_per_dollar_ratio(2.0, missing, 1.0) is None


@pytest.mark.parametrize(("value", "message"), [(0, "0, which would make tokens free"), (-1, "-1"), (math.inf, "inf")])
def test_zero_negative_and_infinite_are_told_apart_by_name(value, message):
    with pytest.raises(UserError, match=f"rate is {message}"):
        dollars_per_million_tokens(value, 100)
    with pytest.raises(UserError, match=f"throughput is {message}"):
        tokens_per_dollar(1.0, value)


def test_capacity_and_cost_are_always_said_together():
    assert worth_text(2.2, 1.0, 1.0) == "+120 % capacity, 54.5 % lower cost"
    assert worth_text(2.2, 3.0, 1.0) == "+120 % capacity, 36.4 % higher cost at 3.00 and 1.00 $/h"
    assert worth_text(0.5, 1.0, 1.0) == "-50 % capacity, 100.0 % higher cost"
    assert worth_text(2.2, None, 1.0) == "+120 % capacity, cost not known (no rate)"


# Rates


def test_hardware_is_found_as_a_word_and_never_inside_another():
    devices = ["b200", "gb200", "h200"]
    assert device_named("NVIDIA H200-SXM 141GB", devices) == ["h200"]
    assert device_named("gb200 NVL72", devices) == ["gb200"]
    assert device_named("h200 and b200", devices) == ["b200", "h200"]
    assert device_named("A100", devices) == []


def test_the_newest_rate_up_to_a_date_is_taken_with_its_power():
    rows = points(hardware="NVIDIA H200")
    newest = rates_for(rows, rows=ROWS, tier="neocloud")["A"]
    assert (newest.usd_per_device_hour, newest.all_in_kw_per_device, newest.date) == (2.00, 1.50, "2026-09-04")
    april = rates_for(rows, rows=ROWS, tier="neocloud", as_of="2026-04-03")["A"]
    assert (april.usd_per_device_hour, april.date, april.missing) == (1.74, "2026-04-03", None)
    assert rates_for(rows, rows=ROWS, tier="owned")["A"].usd_per_device_hour == 1.41


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({}, "do not name the hardware"),
        ({"hardware": "A100"}, "'A100' names no device"),
        ({"hardware": "h200 or b200"}, "names more than one device"),
        ({"hardware": ["h200", "b200", "h200", "h200", "h200"]}, r"several kinds of hardware \(h200, b200\)"),
        ({"hardware": "h200", "device_kind": "server"}, "per GPU, this contender is counted per server"),
        ({"hardware": "gb200"}, "leaves the rate of gb200, neocloud, 2026-04-03 empty"),
    ],
)
def test_a_rate_that_cannot_be_found_is_missing_with_its_reason(columns, reason):
    found = rates_for(points(**columns), rows=ROWS, tier="neocloud")["A"]
    assert found.usd_per_device_hour is None
    assert re.search(reason, found.missing)


def test_rates_that_make_no_sense_are_refused():
    rows = points(hardware="h200")
    for value, message in ((0.0, "is 0; .*free"), (-2.0, "is -2"), (math.nan, "is NaN"), (math.inf, "is inf")):
        with pytest.raises(UserError, match=message):
            rates_for(rows, value)
    with pytest.raises(UserError, match="one of the two"):
        rates_for(rows, 1.0, rows=ROWS, tier="owned")
    with pytest.raises(UserError, match="no tier was named; the file of rates has 'neocloud', 'owned'"):
        rates_for(rows, rows=ROWS)
    with pytest.raises(UserError, match="no tier 'spot'"):
        rates_for(rows, rows=ROWS, tier="spot")


# The table


def test_costs_are_per_device_and_both_powers_stay_apart():
    rows = points(devices=4, power_w_per_device=600.0).assign(output_throughput_tok_per_s=800.0)
    row = cost_table(rows, {"A": rate(1.80, kw=1.5)}).iloc[0]
    assert row["throughput_tok_per_s"] == 200
    assert row["usd_per_million_tokens"] == pytest.approx(2.5) and row["tokens_per_usd"] == pytest.approx(4e5)
    assert row["joules_per_token_measured"] == pytest.approx(3.0)
    assert row["joules_per_token_all_in"] == pytest.approx(7.5)
    assert row["tok_per_s_per_mw_measured"] == pytest.approx(1e6 / 3)
    assert row["tok_per_s_per_mw_all_in"] == pytest.approx(1e6 / 7.5)
    assert row["tokens"] == "output" and row["cost_missing"] is None and row["e2e_ms"] == pytest.approx(1250)


def test_what_is_not_known_is_absent_with_the_reason():
    rows = points(n_completed=29, power_w_per_device=math.nan)
    row = cost_table(rows, rates_for(rows)).iloc[0]
    for column in ("usd_per_million_tokens", "tokens_per_usd", "joules_per_token_measured", "joules_per_token_all_in"):
        assert math.isnan(row[column]), column
    assert row["cost_missing"] == "no rate was given"
    assert row["e2e_missing"] == "fewer than the 30 completed requests that p90 needs" and math.isnan(row["e2e_ms"])


@pytest.mark.parametrize(
    ("percentile", "n", "there"), [(50, 1, True), (90, 30, True), (99, 299, False), (99, 300, True)]
)
def test_a_percentile_needs_its_number_of_requests(percentile, n, there):
    rows = points(n_completed=n, e2e_p50_ms=900.0, e2e_p99_ms=2000.0)
    assert cost_table(rows, {"A": rate()}, percentile)["e2e_ms"].notna().all() == there


def test_prefill_counts_new_input_tokens_and_logical_tokens_are_never_priced():
    rows = points(load_kind="step_tokens", output_throughput_tok_per_s=math.nan, input_throughput_tok_per_s=500.0)
    row = cost_table(rows, {"A": rate(1.80)}).iloc[0]
    assert row["tokens"] == "input, not cached" and row["usd_per_million_tokens"] == pytest.approx(1.0)
    logical = points(output_throughput_tok_per_s=math.nan, logical_throughput_tok_per_s=10525.0)
    row = cost_table(logical, {"A": rate()}).iloc[0]
    assert math.isnan(row["usd_per_million_tokens"]) and "logical tokens" in row["cost_missing"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (points(output_throughput_tok_per_s=0.0), "A, load 1, repeat 1: output_throughput_tok_per_s is 0"),
        (points(power_w_per_device=0.0), "power_w_per_device is 0"),
        (points(e2e_p90_ms=-5.0), "e2e_p90_ms is -5"),
        (points(output_throughput_tok_per_s=math.inf), "output_throughput_tok_per_s is inf"),
        (points(devices=math.nan), "devices is missing"),
        (pd.concat([points(), points()]), "repeat 1 occurs twice"),
        (points().drop(columns="source"), "lack column source"),
        (points().iloc[:0], "no points"),
        (points("B"), "no entry in the rates for B"),
    ],
)
def test_points_that_cannot_be_priced_are_refused_by_name(rows, message):
    with pytest.raises(UserError, match=message):
        cost_table(rows, {"A": rate()})


# At a stated latency


def test_cost_at_a_latency_follows_from_the_interpolated_throughput():
    costs, rates = table(points("A"), points("B", rate=50), usd=[1.9, 1.4])
    found = costs_at_latency(costs, rates, [1700.0, 2000.0])
    for row in found.itertuples():
        usd = rates[row.contender].usd_per_device_hour
        assert row.usd_per_million_tokens * row.throughput_tok_per_s * 3600 / 1e6 == pytest.approx(usd, rel=1e-12)
        assert row.tokens_per_usd_low <= row.tokens_per_usd <= row.tokens_per_usd_high
    between = found[found["latency_ms"] == 1700]
    assert (between["tokens_per_usd_low"] < between["tokens_per_usd_high"]).all()
    at = found.set_index(["contender", "latency_ms"])
    assert at.loc[("A", 2000.0), "load"] == pytest.approx(4) and at.loc[("A", 2000.0), "measured"]
    assert at.loc[("A", 1700.0), "load"] == pytest.approx(2.8, rel=0.01) and not at.loc[("A", 1700.0), "measured"]
    assert at.loc[("A", 1700.0), "throughput_tok_per_s"] == pytest.approx(100 * 2.8 / 1.35, rel=0.005)


@given(st.floats(0.05, 50), st.floats(1300, 4900))
def test_tokens_per_dollar_at_a_latency_scale_inversely_with_the_rate(usd, target):
    one, rates = table(points(), usd=[1.0])
    other, dearer = table(points(), usd=[usd])
    a, b = costs_at_latency(one, rates, [target]).iloc[0], costs_at_latency(other, dearer, [target]).iloc[0]
    assert a["throughput_tok_per_s"] == b["throughput_tok_per_s"]
    assert b["tokens_per_usd"] * usd == pytest.approx(a["tokens_per_usd"])


def test_without_a_rate_the_throughput_is_read_and_the_cost_stays_absent():
    rows = points()
    rates = rates_for(rows)
    found = costs_at_latency(cost_table(rows, rates), rates, [2000.0]).iloc[0]
    assert found["throughput_tok_per_s"] > 0 and math.isnan(found["usd_per_million_tokens"])
    assert found["refused"] == "no rate was given"


@pytest.mark.parametrize(
    ("latencies", "target", "message"),
    [
        (
            (1, 2, 3, 4, 5),
            900,
            r"0.9000 s is below everything measured of A, whose shortest .* 1.000 s \(load 1\)",
        ),
        ((1, 2, 3, 4, 5), 5100, r"5.100 s is above .* longest latency is 5.000 s \(load 16\), and nothing"),
        ((1, 3, 2, 4, 5), 2500, "at more than one load: 1.* and 2.* and "),
        ((1, 2, 2, 4, 5), 2000, "along a flat stretch, loads 2 and 4"),
        ((1, 1.01, 1.02, 4, 5), 1015, r"hardly moves around load .* = 0.0\d+, below 0.1"),
    ],
)
def test_a_latency_that_cannot_be_read_says_why(latencies, target, message):
    costs, rates = table(points(e2e_p90_ms=[1000.0 * value for value in latencies]))
    with pytest.raises(Refused, match=message):
        LatencyCurve(costs, "A").read(target)
    row = costs_at_latency(costs, rates, [target]).iloc[0]
    assert math.isnan(row["tokens_per_usd"]) and row["refused"]


def test_points_without_a_latency_leave_the_curve_and_none_at_all_is_said():
    rows = points(n_completed=[10, 100, 100, 100, 100])
    costs, _ = table(rows)
    assert LatencyCurve(costs, "A").loads.tolist() == [2, 4, 8, 16]
    costs, rates = table(points(n_completed=10))
    assert costs_at_latency(costs, rates, [2000.0]).iloc[0]["refused"] == "A has no point with an E2E latency at p90"


@pytest.mark.parametrize("target", [0, -1, math.nan, math.inf])
def test_a_target_that_is_no_latency_is_refused(target):
    costs, rates = table(points("A"), points("B"))
    for call in (
        lambda: costs_at_latency(costs, rates, [target]),
        lambda: cost_ratios(costs, rates, "A", "B", [target]),
    ):
        with pytest.raises(UserError, match="latency target"):
            call()


# Ratios at equal latency


def test_at_equal_latency_the_ratio_is_that_of_throughput_and_rates():
    costs, rates = table(points("A", rate=220), points("B", rate=100), usd=[3.0, 2.0])
    found = cost_ratios(costs, rates, "A", "B", [1600.0])
    assert found["capacity_ratio"].to_numpy() == pytest.approx(2.2)
    assert found["estimate"].to_numpy() == pytest.approx(2.2 * 2 / 3)
    assert found["load_b"].tolist()[:5] == list(GRID) and math.isnan(found["load_b"].iloc[5])
    assert found["stated"].tolist() == [False] * 5 + [True]
    assert set(found["worth"]) == {"+120 % capacity, 31.8 % lower cost at 3.00 and 2.00 $/h"}
    assert set(found["verdict"]) == {"undecided"} and set(found["n"]) == {1}


def test_the_floor_uses_measured_points_alone():
    costs, rates = table(points("A", rate=200), points("B", loads=(3.0, 6.0)))
    row = cost_ratios(costs, rates, "A", "B").iloc[0]
    assert row["latency_ms"] == pytest.approx(1750) and row["load_a"] == pytest.approx(3, rel=0.01)
    # The slowest measured point of A within 1.75 s is load 2: 200 × 2/1.25 = 320, over B's 100 × 3/1.375.
    assert row["floor"] == pytest.approx(320 / (300 / 1.375))
    assert row["floor"] < row["bracket_low"] <= row["estimate"] <= row["bracket_high"]
    # At a stated latency B is interpolated too: the better one of its two neighbours stands for it.
    stated = cost_ratios(costs, rates, "A", "B", [2000.0]).iloc[-1]
    assert stated["floor"] == pytest.approx((800 / 1.5) / (600 / 1.75))


def test_outside_the_overlap_the_ratio_is_refused_with_the_reason_and_never_clamped():
    costs, rates = table(points("A", base_ms=1000), points("B", base_ms=2000))
    found = cost_ratios(costs, rates, "A", "B", [900.0])
    assert found["estimate"].notna().tolist() == [True, True, True, False, False, False]
    assert "above everything measured of A" in found["refused"].iloc[3]
    assert found["refused"].iloc[5].count("below everything measured") == 2
    assert set(found.loc[found["estimate"].isna(), "verdict"]) == {"not measured"}


def repeated(name, factors, rate=100.0):
    return pd.concat([points(name, rate * factor, repeat=r) for r, factor in enumerate(factors, 1)])


@pytest.mark.parametrize(
    ("factors", "says"),
    [((1.5, 1.52, 1.48), "A ahead"), ((0.5, 0.51, 0.49), "B ahead"), ((1.3, 1.0, 0.8), "no difference shown")],
)
def test_repeats_give_an_interval_and_it_decides(factors, says):
    costs, rates = table(repeated("A", factors), repeated("B", (1, 1, 1)))
    row = cost_ratios(costs, rates, "A", "B", [2000.0]).iloc[-1]
    assert row["n"] == 3 and row["low"] < row["estimate"] < row["high"] and row["verdict"] == says
    logs = np.log(factors)
    half = 4.302652729911275 * logs.std(ddof=1) / math.sqrt(3)
    assert row["low"] == pytest.approx(math.exp(logs.mean() - half), rel=1e-6)


def test_the_interval_moves_with_the_rates():
    costs, rates = table(repeated("A", (1.5, 1.52, 1.48)), repeated("B", (1, 1, 1)), usd=[3.0, 1.5])
    row = cost_ratios(costs, rates, "A", "B", [2000.0]).iloc[-1]
    assert row["capacity_ratio"] == pytest.approx(1.5, rel=1e-3) and row["verdict"] == "B ahead"
    assert row["low"] < row["estimate"] == pytest.approx(0.75, rel=1e-3) and row["high"] < 1


def test_two_repeats_point_both_ways_in_cost_and_not_in_throughput():
    costs, rates = table(repeated("A", (0.95, 1.05)), repeated("B", (1, 1)), usd=[1.0, 2.0])
    assert cost_ratios(costs, rates, "A", "B", [2000.0]).iloc[-1]["verdict"] == "undecided"
    costs, rates = table(repeated("A", (0.45, 0.55)), repeated("B", (1, 1)), usd=[1.0, 2.0])
    assert cost_ratios(costs, rates, "A", "B", [2000.0]).iloc[-1]["verdict"] == "no difference shown"


def test_a_repeat_that_leaves_the_overlap_is_counted():
    slow = points("A", base_ms=3000, repeat=3)
    rows = pd.concat([points("A", repeat=1), points("A", repeat=2), slow, repeated("B", (1, 1, 1))])
    costs, rates = table(rows)
    row = cost_ratios(costs, rates, "A", "B", [2000.0]).iloc[-1]
    assert (row["n"], row["repeats_outside"]) == (2, 1) and math.isnan(row["low"])
    found = cost_plane(
        pd.concat([points("A", repeat=1), points("A", repeat=2), slow, repeated("B", (1, 1, 1))]), rates, [2000]
    )
    assert (
        "A over B at 2.000 s: 1 of 3 repeats could not be read there; the interval is of the others" in found.warnings
    )


def test_a_ratio_without_a_rate_keeps_the_capacity_and_has_no_cost():
    costs, rates = table(points("A", rate=200), points("B"))
    rates["B"] = Rate(None, None, "no rate", missing="its points do not name the hardware")
    row = cost_ratios(costs, rates, "A", "B", [2000.0]).iloc[-1]
    assert row["capacity_ratio"] == pytest.approx(2) and math.isnan(row["estimate"]) and math.isnan(row["floor"])
    assert row["refused"] == "no cost of B: its points do not name the hardware" and row["verdict"] == "not measured"


def test_costs_at_the_matched_points_of_a_comparison_come_from_their_throughput():
    rows = compare(analytic("A", 120, 24, GRID), analytic("B", 100, 8, GRID)).same_speed
    found = matched_costs(rows, rate(3.0), rate(2.0))
    assert len(found) == len(rows) and found["usd_per_million_tokens_a"].notna().any()
    read = found[found["throughput_a"].notna()]
    assert (read["usd_per_million_tokens_a"] * read["throughput_a"] * 3600 / 1e6).to_numpy() == pytest.approx(3.0)
    assert (read["usd_per_million_tokens_b"] * read["throughput"] * 3600 / 1e6).to_numpy() == pytest.approx(2.0)
    assert read["worth"].str.contains("capacity").all() and read["worth"].str.contains("cost at 3.00 and 2.00").all()
    refused = found[found["refused"].notna()]
    assert len(refused) and refused["usd_per_million_tokens_a"].isna().all() and refused["worth"].isna().all()


# All together


def plane(**columns):
    rows = pd.concat([points("A", rate=200, **columns), points("B")])
    return cost_plane(rows, rates_for(rows, 2.0), [2000.0, 9000.0])


def test_a_plane_holds_points_readings_and_ratios_of_every_workload():
    rows = pd.concat([points("A"), points("B"), points("A", workload="chat")])
    prefill = points("A", workload="prefill", load_kind="step_tokens", input_throughput_tok_per_s=900.0)
    found = cost_plane(pd.concat([rows, prefill]), rates_for(rows, 2.0), [2000.0])
    assert found.workloads() == ["decode", "chat", "prefill"]
    assert found.at_latency["workload"].tolist() == ["decode", "decode", "chat"]
    assert set(found.ratios["workload"]) == {"decode"} and set(found.ratios["a"] + found.ratios["b"]) == {"AB"}
    assert found.costs.loc[found.costs["workload"] == "prefill", "usd_per_million_tokens"].notna().all()
    assert cost_plane(pd.concat([rows, prefill.assign(window="full")]), rates_for(rows, 2.0)).warnings == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"n_failed": [0, 0, 2, 0, 1]}, "A has 3 failed requests"),
        ({"model": ["x"] * 4 + ["y"]}, r"the models differ \(x, y\)"),
        ({"precision": ["fp4"] * 4 + ["fp8"]}, r"the precisions differ \(fp4, fp8\)"),
        ({"window": "full"}, r"different windows \(full, steady\)"),
        ({"source": "published"}, r"the sources differ \(measured \(gpu\), published\)"),
        ({"device_kind": "cpu"}, r"rates are per different things \(cpu, gpu\)"),
        ({"hardware": ["h200"] * 4 + ["b200"]}, r"one assumed rate is taken for different hardware \(b200, h200\)"),
        ({"n_completed": 5}, "no latency for A at load 1, 2, 4, 8, 16: fewer than the 30"),
        ({"n_completed": math.nan}, "the number of requests behind p90 is not stated for A"),
    ],
)
def test_what_must_be_said_is_said(columns, message):
    assert any(re.search(message, warning) for warning in plane(**columns).warnings)


def test_a_clean_plane_warns_of_nothing_and_rates_of_different_dates_are_named():
    assert plane().warnings == []
    rows = pd.concat([points("A", hardware="h200"), points("B", hardware="b200")])
    found = cost_plane(rows, rates_for(rows, rows=ROWS, tier="neocloud"))
    assert found.warnings == [
        "the rates are of different dates, and prices move: h200, neocloud, 2026-09-04 for A; b200, neocloud, "
        "2026-04-03 for B"
    ]


def test_the_document_is_json_with_null_for_what_is_absent():
    document = json.loads(json.dumps(cost_document(plane()), allow_nan=False))
    assert document["rates"]["A"]["usd_per_device_hour"] == 2.0 and document["percentile"] == 90
    assert document["costs"][0]["joules_per_token_measured"] is None
    assert document["costs"][0]["usd_per_million_tokens"] == pytest.approx(2e6 / 3600 / (200 / 1.125))
    refused = document["at_latency"][2]
    assert refused["latency_ms"] == 9000 and refused["tokens_per_usd"] is None and "above" in refused["refused"]
    assert document["ratios"][-2]["estimate"] == pytest.approx(2.0) and document["ratios"][-1]["estimate"] is None


def test_tables_for_people_leave_out_empty_columns_and_print():
    found = plane()
    text = points_table(found, "decode")
    assert "J/token measured" not in text and "$/Mtok" in text and len(text) == 10
    assert text["tok/s per device"].iloc[4] == "1067" and text["tok/s per device"].iloc[0] == "177.8"
    assert text["contender"].tolist() == ["A"] * 5 + ["B"] * 5 and text["p90 E2E"].iloc[0] == "1.250 s"
    assert "J/token measured" in points_table(plane(power_w_per_device=600.0), "decode")
    assert latency_table(found, "decode")["says"].tolist() == ["measured", "measured", "not measured", "not measured"]
    assert ratio_table(found, "decode")["tokens/$ A/B"].iloc[-2] == "2.00× (n = 1, no interval)"
    console = Console(width=200, record=True, file=io.StringIO())
    print_costs(console, found)
    printed = console.export_text()
    assert "Rate A: 2 $ per device-hour (assumed by the user)" in printed
    assert "not measured, 9.000 s is above everything measured of A" in printed
    assert "+100 % capacity, 50.0 % lower cost" in printed


def test_published_points_give_the_joules_that_their_source_published():
    published = Path(__file__).parents[2] / "data" / "published"
    rows = pd.read_csv(published / "inferencex_points.csv")
    rates = rates_for(rows, rows=read_rates(published / "rates.csv"), tier="neocloud")
    assert all(found.missing is None for found in rates.values())
    costs = cost_table(rows, rates)
    powered = rows["published_joules_per_output_token"].notna()
    assert powered.sum() == 5 and costs["joules_per_token_measured"].notna().sum() == 5
    np.testing.assert_allclose(
        costs.loc[powered, "joules_per_token_measured"],
        rows.loc[powered, "published_joules_per_output_token"],
        rtol=1e-6,
    )
    occupancy = rows["output_throughput_tok_per_s"] / (rows["load"] * rows["decode_speed_tok_per_s"])
    assert occupancy.between(0.85, 1.05).all() and (costs["power_w_all_in"] > costs["power_w_measured"].fillna(0)).all()
