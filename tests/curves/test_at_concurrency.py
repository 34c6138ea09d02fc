"""Readings that were asked for at one concurrency: direct and both matched ones, or the reason why not."""

import pytest
from curve_builders import GRID, analytic

from wholecurve.curves import Curve, compare, direct_table, same_speed_table
from wholecurve.errors import UserError


def test_a_measured_concurrency_repeats_its_rows_as_stated():
    found = compare(analytic("a", 130, 20), analytic("b", 100, 15), at_concurrency=[8])
    for frame in (found.direct, found.same_speed, found.same_throughput):
        assert frame["stated"].tolist() == [False] * len(GRID) + [True]
        stated, measured = frame.iloc[-1], frame[frame["load_b"] == 8].iloc[0]
        assert stated.drop("stated").equals(measured.drop("stated"))
    assert found.same_speed.iloc[-1]["estimate"] > 1 and found.direct.iloc[-1]["ratio"] > 1


def test_stated_rows_do_not_count_twice_in_the_summary():
    a, b = analytic("a", 130, 20), analytic("b", 100, 15)
    plain, asked = compare(a, b).summary, compare(a, b, at_concurrency=[8, 64]).summary
    assert plain == asked


@pytest.mark.parametrize(
    "loads_a, loads_b, direct, matched",
    [
        (GRID, GRID[:3], "B (b) was not measured at load 8", "B (b) was not measured at load 8"),
        (GRID[:3], GRID, "A (a) was not measured at load 8", None),
        (
            GRID[:3],
            GRID[:3],
            "A (a) was not measured at load 8; B (b) was not measured at load 8",
            "B (b) was not measured at load 8",
        ),
    ],
)
def test_what_was_not_measured_there_is_refused_with_the_reason(loads_a, loads_b, direct, matched):
    found = compare(analytic("a", 130, 20, loads_a), analytic("b", 100, 15, loads_b), at_concurrency=[8])
    row = found.direct.iloc[-1]
    assert (row["refused"], row["verdict"], row["load_b"], row["stated"]) == (direct, "not measured", 8, True)
    assert row[["ratio", "speed_ratio", "low"]].isna().all()
    for frame in (found.same_speed, found.same_throughput):
        row = frame.iloc[-1]
        assert (row["load_b"], row["stated"], row["verdict"]) == (8, True, "not measured")
        assert row[["estimate", "low", "bracket_low", "load_a"]].isna().all()
        if matched:
            assert row["refused"].startswith(matched) and row[["speed", "throughput"]].isna().all()
        else:
            assert "not extrapolated" in row["refused"] and row[["speed", "throughput"]].notna().all()


def test_a_concurrency_between_points_is_never_interpolated():
    found = compare(analytic("a", 130, 20), analytic("b", 100, 15), at_concurrency=[12])
    assert all(frame.iloc[-1]["refused"] for frame in (found.direct, found.same_speed, found.same_throughput))
    assert direct_table(found).iloc[-1]["load"] == same_speed_table(found).iloc[-1]["load of B"] == "12"


@pytest.mark.parametrize("load", [0, -4, float("nan"), float("inf")])
def test_senseless_concurrencies_are_refused(load):
    with pytest.raises(UserError, match="target concurrency is"):
        compare(analytic("a", 130, 20), analytic("b", 100, 15), at_concurrency=[load])


def test_curves_over_request_rates_have_no_concurrency():
    a = analytic("a", 130, 20)
    rates = Curve("a", a.workload, "request_rate", a.points)
    with pytest.raises(UserError, match="a concurrency was given, but a is measured over request_rate"):
        compare(rates, rates, at_concurrency=[8])
