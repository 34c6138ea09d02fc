"""The bootstrap over runs: the same curves as `ParametricCurve`, Student's t where that is exact, and open ends."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from curve_builders import GRID, analytic, curve, noisy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wholecurve.curves import ParametricCurve, compare, multiplier_text, same_speed_table
from wholecurve.curves.bootstrap import Resampler, percentile_interval
from wholecurve.curves.interpolate import is_flat, other_axis
from wholecurve.curves.resampled import ResampledCurves
from wholecurve.curves.uncertainty import paired_log_ratios, t_interval
from wholecurve.errors import UserError

AXES = ("speed", "throughput")
scales = st.lists(st.floats(0.8, 1.25), min_size=3, max_size=6, unique=True)


def scaled(name, s0, c0, factors, loads=GRID):
    """The closed form once per factor, which multiplies throughput; repeats count from 1."""
    load = np.tile(loads, len(factors))
    factor, repeat = np.repeat(factors, len(loads)), np.repeat(np.arange(1, len(factors) + 1), len(loads))
    speed = s0 / (1 + load / c0)
    return curve(name, load, speed, load * speed * factor, repeats=repeat)


@given(
    st.lists(st.tuples(st.floats(1, 1000), st.floats(1, 1000)), min_size=1, max_size=8),
    st.floats(-0.2, 1.2),
    st.sampled_from(AXES),
)
def test_a_resampled_curve_reads_as_the_parametric_one(points, where, axis):
    loads = [2.0**k for k in range(len(points))]
    one = ParametricCurve("t", loads, *zip(*points, strict=True))
    many = ResampledCurves(one.log_loads, {name: np.stack([logs, logs]) for name, logs in one.logs.items()})
    logs = one.logs[axis]
    target = float(np.exp(logs.min() * (1 - where) + logs.max() * where))
    solutions = one.solve(axis, target)
    if not solutions:
        side = -np.inf if target > one.values[axis].max() else np.inf
        assert many.read(axis, np.log(target), 0.0).tolist() == [side, side]
    if any(is_flat(*pair) for pair in pairwise(solutions)):
        return
    for solution in solutions:
        read = many.read(axis, np.log(target), np.log(solution.load))
        assert read == pytest.approx(np.log(one.at(other_axis(axis), solution)), abs=1e-6)


def test_of_several_solutions_the_nearest_is_read():
    one = ParametricCurve("t", [1, 2, 4, 8], [60, 90, 50, 40], [10, 20, 40, 80])
    many = ResampledCurves(one.log_loads, {name: logs[None] for name, logs in one.logs.items()})
    first, second = one.solve("speed", 70)
    for solution in (first, second):
        read = many.read("speed", np.log(70), np.log(solution.load))
        assert np.exp(read[0]) == pytest.approx(one.at("throughput", solution), rel=1e-9)


def test_every_resample_may_have_its_own_target():
    one = ParametricCurve.from_curve(analytic("a", 100, 12), "a")
    many = ResampledCurves(one.log_loads, {name: np.stack([logs] * 3) for name, logs in one.logs.items()})
    targets = [80.0, 40.0, 99.0]
    expected = [np.log(12 * (100 / t - 1) * t) for t in targets[:2]] + [-np.inf]
    assert many.read("speed", np.log(targets), np.log(5)) == pytest.approx(expected, abs=0.005)


@settings(max_examples=15)
@given(scales)
def test_where_the_reading_is_linear_the_interval_is_students_t(factors):
    """A's throughput differs by one factor a run, so every same-speed multiplier does."""
    assume(np.ptp(factors) > 1e-3)
    a, b = scaled("a", 130, 20, factors), scaled("b", 100, 15, [1.0] * len(factors))
    centre = float(np.exp(np.mean(np.log(factors))))
    low, high = t_interval(np.log(factors), centre, 0.95)
    for row in compare(a, b).same_speed.dropna(subset="estimate").itertuples():
        found = math.log(row.high / row.estimate), math.log(row.low / row.estimate)
        assert found == pytest.approx((math.log(high / centre), math.log(low / centre)), rel=0.15)
        assert (row.n, row.repeats_outside, row.outside_share) == (len(factors), 0, 0)


def test_direct_and_matched_intervals_agree_where_both_are_linear():
    rng = np.random.default_rng(5)
    factors = np.exp(0.1 * rng.standard_normal(5))
    a, b = scaled("a", 100, 15, factors), scaled("b", 100, 15, [1.0] * 5)
    found = compare(a, b, resamples=100_000)
    direct, matched = (frame.set_index("load_b").loc[16.0] for frame in (found.direct, found.same_speed))
    assert matched["estimate"] == pytest.approx(direct["ratio"])
    assert (matched["low"], matched["high"]) == pytest.approx((direct["low"], direct["high"]), rel=0.01)


def test_a_drift_that_both_contenders_share_cancels():
    drift = np.array([1.0, 0.7, 1.3, 0.9, 1.1])
    found = compare(scaled("a", 130, 20, drift), scaled("b", 100, 15, drift)).same_speed.dropna(subset="estimate")
    assert len(found) >= 5
    assert found["low"].to_numpy() == pytest.approx(found["estimate"].to_numpy(), rel=1e-9)
    assert found["high"].to_numpy() == pytest.approx(found["estimate"].to_numpy(), rel=1e-9)


def test_runs_are_paired_by_number():
    drift = np.array([1.0, 0.7, 1.3, 0.9, 1.1])
    a, b = scaled("a", 130, 20, drift), scaled("b", 100, 15, drift[::-1])
    row = compare(a, b).same_speed.dropna(subset="estimate").iloc[2]
    assert row["high"] / row["low"] > 1.5


def test_b_moves_along_at_its_own_points_and_stands_still_at_a_stated_target():
    """B's speed differs from run to run at one fixed throughput; A does not change."""
    speeds = np.array([1.0, 0.95, 1.05, 0.9, 1.1])
    load, repeat = np.tile(GRID, 5), np.repeat(np.arange(1, 6), len(GRID))
    steady = 15 * 100 / (15 + load)
    b = curve("b", load, steady * np.repeat(speeds, len(GRID)), load * steady, repeats=repeat)
    a = scaled("a", 130, 20, [1.0] * 5)
    at = ParametricCurve.from_curve(b, "b").values["speed"][4]
    found = compare(a, b, at_speed=[at]).same_speed
    point, stated = found.iloc[4], found.iloc[8]
    assert stated["estimate"] == pytest.approx(point["estimate"])
    # At B's point A is read at a speed that moves; at the target it is B that is read elsewhere. Both have spread.
    logs = [
        math.log((20 * (130 / (at * s) - 1) * at * s) / (15 * (100 / at - 1) * at))
        for s in speeds / speeds.prod() ** 0.2
    ]
    expected = t_interval(logs, point["estimate"], 0.95)
    assert (point["low"], point["high"]) == pytest.approx(expected, rel=0.03)
    assert stated["high"] / stated["low"] != pytest.approx(point["high"] / point["low"], rel=0.05)


@pytest.mark.parametrize("axis", AXES)
def test_the_same_seed_gives_the_same_interval(axis):
    rng = np.random.default_rng(8)
    a, b = noisy("a", 130, 20, rng, 0.05, 4), noisy("b", 100, 15, rng, 0.05, 4)
    one, again, other = (getattr(compare(a, b, seed=seed), f"same_{axis}") for seed in (1, 1, 2))
    assert one.equals(again)
    known = one["low"].notna()
    assert known.sum() >= 4 and (one["low"] != other["low"])[known].all()
    middle = known & (one["low"] > 0) & (one["high"] < np.inf)
    width, other_width = (np.log(f["high"] / f["low"])[middle] for f in (one, other))
    assert other_width.to_numpy() == pytest.approx(width.to_numpy(), rel=0.15)


@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**32 - 1), sigma=st.floats(0.001, 0.2), repeats=st.integers(3, 5), axis=st.sampled_from(AXES)
)
def test_the_interval_contains_the_estimate(seed, sigma, repeats, axis):
    rng = np.random.default_rng(seed)
    a, b = (noisy(name, s0, 20, rng, sigma, repeats) for name, s0 in (("a", 120), ("b", 100)))
    rows = getattr(compare(a, b, at_speed=[60.0], resamples=1_000), f"same_{axis}").dropna(subset="estimate")
    assert ((rows["low"] <= rows["estimate"]) & (rows["estimate"] <= rows["high"])).all()
    assert (rows["n"] == repeats).all() and rows["outside_share"].between(0, 1).all()


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), gain=st.floats(0.2, 5))
def test_scaling_the_throughput_of_a_scales_the_same_speed_multiplier_and_its_interval(seed, gain):
    rng = np.random.default_rng(seed)
    a, b = (noisy(name, s0, 20, rng, 0.05, 3) for name, s0 in (("a", 120), ("b", 100)))
    points = a.points.assign(throughput=a.points["throughput"] * gain)
    plain, more = (
        compare(one, b, resamples=1_000).same_speed for one in (a, type(a)(a.name, a.workload, a.load_kind, points))
    )
    for column in ("estimate", "low", "high", "linear", "log_log", "floor"):
        assert more[column].to_numpy() == pytest.approx(gain * plain[column].to_numpy(), rel=1e-9, nan_ok=True)
    for column in ("sensitivity", "outside_share"):
        assert more[column].to_numpy() == pytest.approx(plain[column].to_numpy(), rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("axis, target", [("speed", 50.0), ("throughput", 900.0)])
def test_swapping_inverts_the_interval_at_a_stated_target(axis, target):
    rng = np.random.default_rng(4)
    a, b = noisy("a", 130, 20, rng, 0.05, 4), noisy("b", 100, 25, rng, 0.05, 4)
    forth, back = (
        getattr(compare(*pair, **{f"at_{axis}": [target]}), f"same_{axis}").iloc[-1] for pair in ((a, b), (b, a))
    )
    for one, other in (("estimate", "estimate"), ("low", "high"), ("high", "low")):
        assert forth[one] * back[other] == pytest.approx(1, rel=1e-9)


def edge(top):
    """A whose fastest point is ``top`` tok/s/user, give or take 2 % from run to run, and B at 100."""
    wobble, repeats = [0.98, 1.0, 1.02, 0.99, 1.01], [1, 2, 3, 4, 5]
    a = curve(
        "a",
        [1, 4, 16] * 5,
        np.ravel([[top * w, 60, 20] for w in wobble]),
        [100, 300, 500] * 5,
        repeats=np.repeat(repeats, 3),
    )
    b = curve("b", [2] * 5, [100] * 5, [90] * 5, repeats=repeats)
    return a, b


def test_an_end_that_was_not_measured_is_open():
    found = compare(*edge(100.5))
    (row,) = found.same_speed.itertuples()
    assert row.low == 0 and row.estimate < row.high < 1.4
    assert 0.05 < row.outside_share < 0.6
    assert row.verdict == "no difference shown"
    assert same_speed_table(found)["A/B"][0] == f"{row.estimate:.2f}× [open, {row.high:.2f}]"
    assert same_speed_table(found)["resamples outside"][0] == f"{100 * row.outside_share:.0f} %"
    document = found.to_document()["same_speed"][0]
    assert document["low"] == 0 and document["outside_share"] == row.outside_share
    inside = compare(*edge(130)).same_speed.iloc[0]
    assert inside["low"] > 0.5 and inside["outside_share"] == 0


def test_the_other_end_is_open_upwards_and_none_in_json():
    a, b = edge(130)
    slow = b.points.assign(speed=20.0, throughput=250.0)
    wobbling = a.points.copy()
    wobble = dict(zip(range(1, 6), [0.96, 1.01, 0.98, 0.99, 1.02], strict=True))
    wobbling.loc[wobbling["load"] == 16, "speed"] *= wobbling["repeat"].map(wobble)
    found = compare(
        type(a)("a", a.workload, a.load_kind, wobbling), type(b)("b", b.workload, b.load_kind, slow), resamples=2_000
    )
    (row,) = found.same_speed.itertuples()
    assert row.high == math.inf and 1 < row.low < row.estimate and row.verdict == "A ahead"
    assert same_speed_table(found)["A/B"][0].endswith(", open]")
    document = json.loads(json.dumps(found.to_document(), allow_nan=False))["same_speed"][0]
    assert document["high"] is None and document["low"] == row.low and document["n"] == 5
    assert multiplier_text(document["estimate"], document["low"], document["high"], 5).endswith(", open]")


def test_a_percentile_interval_by_hand():
    logs = np.log(np.arange(1.0, 1002.0))  # 1 … 1001
    low, high, outside = percentile_interval(np.random.default_rng(0).permutation(logs), 500.0, 0.9)
    assert (low, high, outside) == pytest.approx((51, 951, 0))
    # 60 of 1001 beyond the lower end, more than 5 %: that end is open; 40 beyond the upper one only shift it.
    beyond = np.where(np.arange(1001) < 60, -np.inf, logs)
    beyond[-40:] = np.inf
    low, high, outside = percentile_interval(beyond, 500.0, 0.9)
    assert (low, high, outside) == pytest.approx((0, 951, 100 / 1001))
    unknown = np.where(np.arange(1001) % 16 == 0, np.nan, logs)  # 6.3 %: beyond both ends
    low, high, outside = percentile_interval(unknown, 500.0, 0.9)
    assert (low, high, outside) == (0, math.inf, pytest.approx(63 / 1001))
    assert percentile_interval(logs, 1000.0, 0.9)[1] == 1000 and percentile_interval(logs, 2.0, 0.9)[0] == 2


def test_both_curves_beyond_one_end_count_as_beyond_both():
    def made(name, s0, wobble):
        load, repeat = np.tile([1.0, 4.0, 16.0], 3), np.repeat([1, 2, 3], 3)
        speed = s0 / (1 + load / 4) * np.where(load == 1, np.repeat(wobble, 3), 1)
        return curve(name, load, speed, load * s0 / (1 + load / 4), repeats=repeat)

    wobble = [0.9, 1.0, 1.1]
    a, b = made("a", 100, wobble), made("b", 101, wobble)
    row = compare(a, b, at_speed=[79.0]).same_speed.iloc[-1]
    assert (row["low"], row["high"]) == (0, math.inf) and row["outside_share"] > 0.2


def test_n_is_that_of_the_points_behind_the_reading():
    """A has one run only at load 16, next to the matched load of B's point at 8, and five elsewhere."""
    rng = np.random.default_rng(2)
    a, b = noisy("a", 130, 20, rng, 0.02, 5), noisy("b", 100, 15, rng, 0.02, 5)
    points = a.points[(a.points["load"] != 16) | (a.points["repeat"] == 1)]
    rows = compare(type(a)("a", a.workload, a.load_kind, points), b).same_speed.dropna(subset="estimate")
    touches = (rows["load_a"] > 8) & (rows["load_a"] < 32)
    assert touches.any() and (~touches).any()
    assert (rows["n"][touches] == 1).all() and rows["low"][touches].isna().all()
    assert rows["outside_share"][touches].isna().all()
    assert (rows["n"][~touches] == 5).all() and rows["low"][~touches].notna().all()


def test_a_point_of_b_with_one_run_has_no_interval():
    rng = np.random.default_rng(2)
    a, b = noisy("a", 130, 20, rng, 0.02, 5), noisy("b", 100, 15, rng, 0.02, 5)
    points = b.points[(b.points["load"] != 16) | (b.points["repeat"] == 1)]
    rows = compare(a, type(b)("b", b.workload, b.load_kind, points)).same_speed.dropna(subset="estimate")
    assert rows.set_index("load_b")["n"].to_dict() == {load: 1 if load == 16 else 5 for load in rows["load_b"]}
    assert (rows["low"].isna() == (rows["load_b"] == 16)).all()


@pytest.mark.parametrize("repeats", [1, 2])
def test_one_or_two_runs_have_no_interval(repeats):
    rng = np.random.default_rng(2)
    found = compare(noisy("a", 130, 20, rng, 0.02, repeats), noisy("b", 100, 15, rng, 0.02, repeats))
    rows = found.same_speed.dropna(subset="estimate")
    assert (rows["n"] == repeats).all() and rows[["low", "high", "outside_share"]].isna().all(axis=None)
    assert f"(n = {repeats}, no interval)" in same_speed_table(found)["A/B"].str.cat()


def test_a_knot_has_the_spread_of_its_own_runs():
    """A load with fewer runs spreads with their number and its degrees of freedom; one run does not move."""
    rng = np.random.default_rng(1)
    full = noisy("a", 130, 20, rng, 0.05, 5, GRID[:3])
    points = full.points[(full.points["load"] < 4) | (full.points["repeat"] == 1)]
    points = points[(points["load"] != 2) | (points["repeat"] <= 3)]
    made = type(full)("a", full.workload, full.load_kind, points)
    moved = Resampler([1, 2, 3, 4, 5], 100_000, 3).curves(made).logs["speed"]
    for column, (load, n) in enumerate(((1, 5), (2, 3), (4, 1))):
        logs = np.log(points.loc[points["load"] == load, "speed"])
        assert len(logs) == n and np.median(moved[:, column]) == pytest.approx(logs.mean(), abs=1e-3)
        if n == 1:
            assert np.ptp(moved[:, column]) == 0
        else:
            low, high = np.quantile(moved[:, column], [0.025, 0.975])
            expected = t_interval(logs, math.exp(logs.mean()), 0.95)
            assert (low, high) == pytest.approx(np.log(expected), abs=0.05 * np.ptp(np.log(expected)))


def test_too_few_resamples_are_refused():
    a, b = edge(130)
    with pytest.raises(UserError, match=r"resamples is 300; at confidence 0\.95 at least 400 are needed"):
        compare(a, b, resamples=300)
    assert compare(a, b, resamples=300, confidence=0.9).summary["resamples"] == 300


def test_direct_ratios_keep_the_t_interval():
    rng = np.random.default_rng(2)
    a, b = noisy("a", 130, 20, rng, 0.02, 5), noisy("b", 100, 15, rng, 0.02, 5)
    for row in compare(a, b).direct.itertuples():
        logs = paired_log_ratios(a, b, row.load_b, "throughput")
        assert (row.low, row.high) == t_interval(logs, row.ratio, 0.95)
