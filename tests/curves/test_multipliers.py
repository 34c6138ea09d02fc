"""The matched multipliers against a closed form, their symmetries, and every refusal.

Closed form: speed = s0/(1 + c/c0), throughput = c × speed. At a fixed speed x the load is
c0 (s0/x - 1); at a fixed throughput y it is y/(s0 - y/c0). |d log speed / d log throughput| is c/c0.
"""

import numpy as np
import pytest
from curve_builders import GRID, analytic, curve
from hypothesis import given, settings
from hypothesis import strategies as st

from wholecurve.curves import ParametricCurve, compare
from wholecurve.curves.multipliers import Refused, match, read, verdict

pairs = st.tuples(st.floats(30, 300), st.floats(0.5, 2000))


def matched_row(a, b, axis, target):
    """The match as a row, as comparisons hold it."""
    return match(a, b, axis, target).row()


def parametric(made, name="A"):
    return ParametricCurve.from_curve(made, name)


def exact(axis, target, s0, c0):
    """(load, other axis) of the closed form where ``axis`` is ``target``."""
    if axis == "speed":
        load = c0 * (s0 / target - 1)
        return load, load * target
    load = target / (s0 - target / c0)
    return load, target / load


@pytest.mark.parametrize("axis", ["speed", "throughput"])
@settings(max_examples=150, deadline=None)
@given(of_a=pairs, of_b=pairs)
def test_the_closed_form_is_met_within_half_a_percent(axis, of_a, of_b):
    """Everywhere on the grid, its first and last interval included, wherever a reading is not refused."""
    a, b = analytic("a", *of_a), analytic("b", *of_b)
    mean_a, mean_b = parametric(a), parametric(b, "B")
    for target in mean_b.values[axis]:
        row = matched_row(mean_a, mean_b, axis, target)
        if row["estimate"] is None:
            assert row["refused"]
            continue
        value, other = exact(axis, target, *of_a)[1], exact(axis, target, *of_b)[1]
        assert row["estimate"] == pytest.approx(value / other, rel=0.005)


@pytest.mark.parametrize("axis", ["speed", "throughput"])
@pytest.mark.parametrize(
    "of_a, of_b",
    [
        ((100, 40), (80, 30)),
        ((120, 24), (100, 16)),
        ((90, 64), (100, 32)),
        ((150, 20), (100, 20)),
        ((100, 16), (100, 64)),
    ],
)
def test_ordinary_pairs_meet_the_closed_form_wherever_they_are_read(axis, of_a, of_b):
    found = compare(analytic("a", *of_a), analytic("b", *of_b))
    rows = getattr(found, f"same_{axis}").dropna(subset="estimate")
    assert len(rows) >= 4
    for row in rows.itertuples():
        target = getattr(row, axis)
        load, value = exact(axis, target, *of_a)
        assert row.estimate == pytest.approx(value / exact(axis, target, *of_b)[1], rel=0.005)
        assert row.load_a == pytest.approx(load, rel=0.02)


@settings(max_examples=60, deadline=None)
@given(of_a=pairs, of_b=pairs, where=st.floats(0.05, 0.95), axis=st.sampled_from(["speed", "throughput"]))
def test_swapping_inverts_a_reading_at_a_stated_target(of_a, of_b, where, axis):
    a, b = parametric(analytic("a", *of_a)), parametric(analytic("b", *of_b))
    low = max(a.values[axis].min(), b.values[axis].min())
    high = min(a.values[axis].max(), b.values[axis].max())
    target = low + where * (high - low)
    forth, back = matched_row(a, b, axis, target), matched_row(b, a, axis, target)
    assert (forth["estimate"] is None) == (back["estimate"] is None)
    if forth["estimate"] is not None:
        for one, other in (
            ("estimate", "estimate"),
            ("bracket_low", "bracket_high"),
            ("bracket_high", "bracket_low"),
        ):
            assert forth[one] * back[other] == pytest.approx(1, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(of_a=pairs, of_b=pairs, speed_unit=st.floats(1e-3, 1e3), throughput_unit=st.floats(1e-3, 1e3))
def test_the_units_of_both_curves_do_not_matter(of_a, of_b, speed_unit, throughput_unit):
    def scaled(made):
        return ParametricCurve(
            "s", made.loads, made.values["speed"] * speed_unit, made.values["throughput"] * throughput_unit
        )

    a, b = parametric(analytic("a", *of_a)), parametric(analytic("b", *of_b))
    for axis, unit in (("speed", speed_unit), ("throughput", throughput_unit)):
        for target in b.values[axis][1:-1]:
            plain, other = (
                matched_row(a, b, axis, target),
                matched_row(scaled(a), scaled(b), axis, target * unit),
            )
            assert (plain["estimate"] is None) == (other["estimate"] is None)
            for key in ("estimate", "bracket_low", "bracket_high", "floor", "load_a"):
                assert other[key] == (plain[key] and pytest.approx(plain[key], rel=1e-9))


@settings(max_examples=40, deadline=None)
@given(of_both=pairs)
def test_a_curve_against_itself_is_exactly_one(of_both):
    found = compare(analytic("a", *of_both), analytic("b", *of_both), at_speed=[of_both[0] * 0.7])
    for frame, column in (
        (found.direct, "ratio"),
        (found.direct, "speed_ratio"),
        (found.same_speed, "estimate"),
        (found.same_throughput, "estimate"),
    ):
        assert (frame[column].dropna() == 1).all()
    assert set(found.direct["verdict"]) == {"no difference shown"}


@settings(max_examples=60, deadline=None)
@given(of_a=pairs, of_b=pairs, factor=st.floats(1.0001, 10))
def test_nothing_is_ever_extrapolated(of_a, of_b, factor):
    a, b = parametric(analytic("a", *of_a)), parametric(analytic("b", *of_b))
    for axis in ("speed", "throughput"):
        for target in (a.values[axis].max() * factor, a.values[axis].min() / factor):
            row = matched_row(a, b, axis, target)
            assert [row[k] for k in ("estimate", "load_a", "bracket_low", "bracket_high", "floor")] == [None] * 5
            assert "everything measured of A" in row["refused"] and "not extrapolated" in row["refused"]


def test_out_of_range_names_the_edge_with_its_load():
    with pytest.raises(
        Refused,
        match=r"^120 tok/s/user is above everything measured of A, whose highest speed is 100 "
        r"\(load 1\); not extrapolated$",
    ):
        read(parametric(curve("a", [1, 2], [100, 80], [100, 160])), "speed", 120)
    with pytest.raises(Refused, match=r"^90 tok/s/device is below .* lowest throughput is 100 \(load 1\)"):
        read(parametric(curve("a", [1, 2], [100, 80], [100, 160])), "throughput", 90)


def test_a_curve_that_turns_is_refused_on_either_side():
    turning = parametric(curve("t", [1, 2, 8, 32], [60, 128, 92, 34], [60, 250, 700, 1000]), "T")
    falling = parametric(curve("f", [1, 8, 64], [120, 80, 20], [120, 600, 1200]), "F")
    for a, b in ((turning, falling), (falling, turning)):
        row = matched_row(a, b, "speed", 80)
        assert row["estimate"] is None
        assert "T has 80 tok/s/user at more than one load: 1." in row["refused"]
        assert row["floor"] is not None
    assert matched_row(turning, falling, "speed", 50)["estimate"] is not None


def test_a_flat_stretch_on_the_target_is_refused():
    flat = parametric(curve("f", [1, 2, 4, 8], [90, 60, 60, 30], [90, 120, 240, 250]))
    with pytest.raises(Refused, match="A has 60 tok/s/user along a flat stretch, loads 2 and 4"):
        read(flat, "speed", 60)


def test_throughput_that_hardly_moves_is_refused_and_the_rest_is_read():
    # 100 -> 50 -> 25 tok/s/user while throughput gains 2 %: |d log y / d log x| is about 0.03.
    saturated = parametric(curve("a", [8, 16, 32, 64], [200, 100, 50, 25], [700, 1000, 1020, 1040]))
    with pytest.raises(Refused, match=r"throughput of A hardly moves around load 2\d.*= 0\.027, below 0\.1"):
        read(saturated, "throughput", 1010)
    assert read(saturated, "throughput", 850).value > 100
    assert read(saturated, "speed", 75).value == pytest.approx(1010, rel=0.01)


def test_speed_that_hardly_moves_is_refused_on_the_side_of_b_too():
    # From load 1 to 2 the speed of B falls by 1 % while its throughput doubles.
    b = parametric(curve("b", [1, 2, 4, 8], [100, 99, 90, 60], [100, 198, 360, 480]), "B")
    a = parametric(curve("a", [1, 4, 16], [150, 100, 50], [150, 400, 800]))
    row = matched_row(a, b, "speed", 100.0)
    assert row["estimate"] is None and "speed of B hardly moves around load 1" in row["refused"]


@pytest.mark.parametrize("held, refused", [(0.099, True), (0.101, False)])
def test_the_slope_limit_is_a_tenth(held, refused):
    loads = np.array(GRID)
    power = parametric(curve("a", loads, 1000 * loads**-1.0, 100 * loads**held))
    row = matched_row(power, power, "throughput", 100 * 8.0**held * 1.01)
    assert (row["refused"] is not None) is refused


def test_one_point_is_met_but_not_interpolated():
    one = parametric(curve("b", [8], [50], [400]), "B")
    a = parametric(curve("a", [1, 8, 64], [120, 80, 20], [120, 600, 1200]))
    assert matched_row(a, one, "speed", 50.0)["estimate"] > 1
    row = matched_row(one, a, "speed", 80.0)
    assert row["estimate"] is None and "above everything measured of B" in row["refused"]


def test_bracket_and_floor_by_hand():
    a = parametric(curve("a", [1, 4], [100, 25], [100, 200]))
    b = parametric(curve("b", [1, 2], [80, 50], [60, 90]), "B")
    row = matched_row(a, b, "speed", 50.0)
    # Two points: PCHIP of the logarithms is the log-log line, 100 √2; the plain line gives 100 + 100 · 50/75.
    assert row["estimate"] == pytest.approx(100 * 2**0.5 / 90)
    assert (row["bracket_low"], row["bracket_high"]) == pytest.approx((row["estimate"], 100 * (5 / 3) / 90))
    assert row["floor"] == pytest.approx(100 / 90)
    assert (row["load_b"], row["throughput"], row["speed_a"]) == (2, 90, 50)
    assert row["load_a"] == pytest.approx(2)


@settings(max_examples=60, deadline=None)
@given(of_a=pairs, of_b=pairs, where=st.floats(0, 1), axis=st.sampled_from(["speed", "throughput"]))
def test_the_floor_is_a_ratio_of_two_measured_points_and_below_the_estimate(of_a, of_b, where, axis):
    a, b = parametric(analytic("a", *of_a)), parametric(analytic("b", *of_b))
    other = {"speed": "throughput", "throughput": "speed"}[axis]
    target = float(b.values[axis].min() + where * (b.values[axis].max() - b.values[axis].min()))
    row = matched_row(a, b, axis, target)
    if row["estimate"] is None:
        return
    assert row["floor"] <= row["estimate"] * (1 + 1e-12)
    ratios = [
        y_a / y_b
        for x_a, y_a in zip(a.values[axis], a.values[other])
        for y_b in b.values[other]
        if x_a >= target * (1 - 1e-12)
    ]
    assert min(abs(row["floor"] / r - 1) for r in ratios) < 1e-12


def test_every_method_is_kept_beside_the_bracket():
    a = parametric(curve("a", [1, 4, 16], [100, 50, 10], [100, 200, 260]))
    b = parametric(curve("b", [1, 2], [80, 60], [60, 90]), "B")
    row = matched_row(a, b, "speed", 60.0)
    assert row["linear"] == pytest.approx((100 + 100 * 40 / 50) / 90)
    assert row["log_log"] == pytest.approx(100 * 2 ** (np.log(100 / 60) / np.log(2)) / 90)
    ratios = (row["estimate"], row["linear"], row["log_log"])
    assert (row["bracket_low"], row["bracket_high"]) == (min(ratios), max(ratios)) and len(set(ratios)) == 3


@pytest.mark.parametrize("axis", ["speed", "throughput"])
def test_sensitivity_is_the_slope_of_the_closed_form(axis):
    """d log throughput / d log speed at load c is -c0/c."""
    c0 = 40
    a, b = parametric(analytic("a", 100, c0)), parametric(analytic("b", 90, 40), "B")
    found = {row["load_a"]: row["sensitivity"] for row in (matched_row(a, b, axis, t) for t in b.values[axis])}
    inside = {load: value for load, value in found.items() if load and 4 < load < 64}
    assert len(inside) >= 3
    for load, value in inside.items():
        assert value == pytest.approx(c0 / load if axis == "speed" else load / c0, rel=0.1)


def test_an_error_of_one_percent_moves_the_answer_by_the_sensitivity():
    a, b = parametric(analytic("a", 130, 30)), parametric(analytic("b", 100, 20), "B")
    row, moved = (matched_row(a, b, "speed", 50.0 * factor) for factor in (1, 1.001))
    change = abs(np.log(moved["throughput_a"] / row["throughput_a"])) / np.log(1.001)
    assert change == pytest.approx(row["sensitivity"], rel=0.01)


@pytest.mark.parametrize(
    "estimate, interval, bracket, logs, bound, says",
    [
        (1.4, (1.3, 1.5), (1.2, 1.6), [0.3, 0.4, 0.3], None, "A ahead"),
        (0.7, (0.65, 0.75), (0.6, 0.8), [-0.3, -0.4, -0.3], None, "B ahead"),
        (1.4, (0.9, 1.9), (1.2, 1.6), [], None, "no difference shown"),
        (1.4, (1.2, 1.6), (1.0, 1.6), [], None, "no difference shown"),
        (1.4, (0.0, np.inf), (1.3, 1.5), [], None, "no difference shown"),
        (1.4, (1.2, np.inf), (1.3, 1.5), [], None, "A ahead"),
        (0.7, (0.0, 0.9), (0.6, 0.8), [], None, "B ahead"),
        (1.4, (None, None), (None, None), [0.5, -0.1], None, "no difference shown"),
        (1.4, (None, None), (None, None), [0.5, 0.2], None, "undecided"),
        (1.4, (None, None), (1.2, 1.6), [0.4], None, "undecided"),
        (1.0, (None, None), (None, None), [0.0], None, "no difference shown"),
        (None, (None, None), (None, None), [], None, "not measured"),
        (1.04, (1.03, 1.05), (1.04, 1.04), [], 1.05, "no difference shown"),
        (1 / 1.04, (0.95, 0.97), (0.96, 0.97), [], 1.05, "no difference shown"),
        (1.04, (1.03, 1.05), (1.04, 1.04), [], 1.03, "A ahead"),
        (1 / 1.04, (0.95, 0.97), (0.96, 0.97), [], 1.03, "B ahead"),
    ],
)
def test_verdicts(estimate, interval, bracket, logs, bound, says):
    assert verdict(estimate, interval, bracket, logs, bound) == says
