"""A frontier of configurations: which points are on it, and what two frontiers say about each other."""

import json

import pytest
from curve_builders import analytic, curve, frame
from hypothesis import given
from hypothesis import strategies as st

from wholecurve.curves import (
    Curve,
    Frontier,
    compare,
    compare_frontiers,
    compare_many,
    frontier_comparison_table,
    frontier_table,
)
from wholecurve.errors import UserError

TP1 = curve("tp1", [1, 8, 64], [50, 40, 20], [50, 300, 900])
TP4 = curve("tp4", [1, 8, 64], [120, 80, 30], [30, 150, 400])
B = Frontier.from_curves([curve("b", [1, 4, 16], [100, 60, 25], [40, 180, 350])], "B")


def test_points_that_no_other_beats_are_kept_with_their_configuration():
    found = Frontier.from_curves([TP1, TP4], "A")
    kept, left = (
        list(rows[["configuration", "load"]].itertuples(index=False)) for rows in (found.points, found.dominated)
    )
    assert kept == [("tp4", 1), ("tp4", 8), ("tp1", 8), ("tp4", 64), ("tp1", 64)]
    assert left == [("tp1", 1)]  # 50 tok/s/user at 50, while tp4 has 80 at 150
    assert found.label == "frontier of 2 configurations, not one engine's curve"
    assert found.configurations == ("tp1", "tp4") and (found.points["n"] == 1).all()


points = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=12)


@given(points, points)
def test_the_frontier_is_the_pareto_set(one, other):
    curves = [
        curve(name, range(1, len(rows) + 1), [10.0 * s for s, _ in rows], [10.0 * t for _, t in rows])
        for name, rows in (("one", one), ("other", other))
    ]
    found = Frontier.from_curves(curves, "F")
    everything = sorted((s, t) for s, t in {*one, *other})
    expected = [(s, t) for s, t in everything if not any((x, y) != (s, t) and x >= s and y >= t for x, y in everything)]
    kept = [(round(s / 10), round(t / 10)) for s, t in found.points[["speed", "throughput"]].to_numpy()]
    assert sorted(kept) == expected and kept == sorted(kept, reverse=True)
    assert len(found.points) + len(found.dominated) == len(one) + len(other)


def test_repeats_are_averaged_and_counted():
    rows = frame("b", [2, 2, 2], [40, 50, 62.5], [100, 100, 100], repeats=[1, 2, 3])
    (point,) = Frontier.from_curves([Curve.from_points(rows)], "B").points.itertuples()
    assert (point.speed, point.n) == (pytest.approx(50), 3)


def test_a_frontier_against_itself_is_exactly_one():
    found = compare_frontiers(B, B)
    for rows in (found.same_speed, found.same_throughput):
        assert (rows[["linear", "log_log", "bracket_low", "bracket_high", "floor"]] == 1).all(axis=None)
        assert set(rows["verdict"]) == {"no difference shown"} and rows["refused"].isna().all()


def test_bracket_and_floor_by_hand():
    a = Frontier.from_curves([curve("x", [1], [80], [100]), curve("y", [1], [40], [400])], "A")
    rows = compare_frontiers(a, B).same_speed
    assert rows["load_b"].tolist() == [1, 4, 16]
    row = rows.iloc[1]  # B has 180 at 60 tok/s/user; A lies between 80 and 40, on a slope of -2
    assert row["linear"] == pytest.approx(250 / 180)
    assert row["log_log"] == pytest.approx(100 * (80 / 60) ** 2 / 180)
    assert (row["bracket_low"], row["bracket_high"]) == tuple(sorted((row["linear"], row["log_log"])))
    assert (row["floor"], row["floor_configuration_a"]) == (pytest.approx(100 / 180), "x")
    assert (row["between_a"], row["verdict"]) == ("y and x", "no difference shown")
    held = compare_frontiers(a, B).same_throughput.iloc[1]  # 180 tok/s/device: A between 100 and 400
    assert held["linear"] == pytest.approx((80 - 40 * 80 / 300) / 60)
    assert (held["floor"], held["floor_configuration_a"]) == (pytest.approx(40 / 60), "y")


def test_nothing_is_extrapolated_and_the_floor_stays_where_a_point_guarantees_it():
    a = Frontier.from_curves([curve("x", [1], [80], [100]), curve("y", [1], [40], [400])], "A")
    fast, _, slow = compare_frontiers(a, B).same_speed.to_dict("records")
    assert "100 tok/s/user is above every point of A (frontier of 2 configurations)" in fast["refused"]
    assert fast["floor"] != fast["floor"] and fast["verdict"] == "not measured" and fast["linear"] != fast["linear"]
    assert "25 tok/s/user is below every point of A" in slow["refused"] and slow["linear"] != slow["linear"]
    assert slow["floor"] == pytest.approx(400 / 350)


@given(gain=st.floats(1.1, 4))
def test_a_frontier_that_is_higher_everywhere_is_ahead_by_that_factor(gain):
    made = [analytic("b", 100, 15), analytic("c", 60, 60)]
    b = Frontier.from_curves(made, "B")
    a = Frontier.from_curves(
        [
            Curve(m.name, m.workload, m.load_kind, m.points.assign(throughput=m.points["throughput"] * gain))
            for m in made
        ],
        "A",
    )
    rows = compare_frontiers(a, b).same_speed
    for column in ("linear", "log_log", "floor"):
        assert rows[column].to_numpy() == pytest.approx(gain)
    assert set(rows["verdict"]) == {"undecided"}


def test_a_frontier_is_no_curve():
    a = Frontier.from_curves([TP1, TP4], "A")
    for arguments in ((a, TP1), (TP1, a)):
        with pytest.raises(UserError, match="A is not one configuration's curve; a frontier"):
            compare(*arguments)
    with pytest.raises(UserError, match="a frontier over configurations is another object"):
        compare_many(TP1, [TP4, a])
    with pytest.raises(UserError, match="tp1 is one configuration's curve; build a Frontier"):
        compare_frontiers(TP1, a)


@pytest.mark.parametrize(
    "curves, says",
    [
        ([], "F: no curves"),
        ([TP1, TP1], "F: tp1 occurs twice"),
        ([TP1, Curve("c", "other", "concurrency", TP4.points)], "workload mixes decode, other"),
        ([TP1, Curve("c", "decode", "request_rate", TP4.points)], "load_kind mixes concurrency, request_rate"),
        ([TP1, curve("c", [1], [5], [5], device_kind="cpu")], "device_kind mixes cpu, gpu"),
        ([Curve("c", "prefill", "step_tokens", TP4.points)], "prefill curves have no speed"),
    ],
)
def test_curves_that_do_not_compete_are_refused(curves, says):
    with pytest.raises(UserError, match=says):
        Frontier.from_curves(curves, "F")


def test_frontiers_of_different_workloads_are_refused():
    other = Frontier.from_curves([Curve("c", "other", "concurrency", TP4.points)], "C")
    with pytest.raises(UserError, match="C has workload other, B has decode"):
        compare_frontiers(other, B)


def test_documents_and_tables_carry_the_label():
    a = Frontier.from_curves([TP1, TP4], "A")
    found = compare_frontiers(a, B)
    document = json.loads(json.dumps(found.to_document(), allow_nan=False))
    assert set(document) == {"a", "b", "label", "same_speed", "same_throughput", "warnings"}
    assert document["label"].startswith("A: frontier of 2 configurations, not one engine's curve; B: frontier of 1")
    assert document["a"]["dominated"] == len(a.dominated) and document["a"]["configurations"] == ["tp1", "tp4"]
    assert document["same_speed"][0]["configuration_b"] == "b" and document["same_speed"][0]["n_b"] == 1
    table = frontier_comparison_table(found, "speed")
    row = found.same_speed.iloc[1]
    assert table["A/B, bracket"][1] == f"{row['bracket_low']:.2f}–{row['bracket_high']:.2f}"
    assert table["at least"][1] == f"{row['floor']:.2f}× ({row['floor_configuration_a']})"
    assert table["B's point"].tolist() == ["b, load 1", "b, load 4", "b, load 16"]
    assert frontier_table(a)["configuration"].tolist() == a.points["configuration"].tolist()
