"""The second level of the bootstrap: the requests of a run, drawn again."""

from pathlib import Path

import numpy as np
import pytest
from curve_builders import noisy

from wholecurve.curves import Curve, RequestSample, compare
from wholecurve.curves.bootstrap import Resampler
from wholecurve.errors import UserError
from wholecurve.runs import RunFolder
from wholecurve.runs.requests import run_requests

RUN = Path(__file__).parents[2] / "data" / "runs" / "recorded-quick"


def requests_of(made, rng, spread, count=40):
    """Requests around the speed of every point, with this spread of TPOT from request to request."""
    found = {}
    for row in made.points.itertuples():
        tpot = np.exp(spread * rng.standard_normal(count)) / row.speed
        found[row.load, row.repeat] = RequestSample(tpot, np.full(count, 100), 0.1 + 99 * tpot)
    return found


def test_requests_widen_an_interval_and_never_narrow_it():
    rng = np.random.default_rng(3)
    a, b = noisy("a", 130, 20, rng, 0.01, 4), noisy("b", 100, 15, rng, 0.01, 4)
    widths = []
    for spread in (None, 0.0, 0.3):
        pools = {} if spread is None else {f"requests_{k}": requests_of(c, rng, spread) for k, c in zip("ab", (a, b))}
        rows = compare(a, b, **pools).same_speed.dropna(subset="estimate").iloc[1:-1]
        widths.append(np.log(rows["high"] / rows["low"]).to_numpy())
    runs_only, all_alike, spread_out = widths
    assert all_alike == pytest.approx(runs_only, rel=1e-9)
    assert (spread_out > 1.2 * runs_only).all()


def test_one_side_alone_may_have_requests():
    rng = np.random.default_rng(3)
    a, b = noisy("a", 130, 20, rng, 0.01, 4), noisy("b", 100, 15, rng, 0.01, 4)
    plain, more = (compare(a, b, requests_a=r).same_speed for r in (None, requests_of(a, rng, 0.3)))
    known = plain["low"].notna()
    assert (more["high"] / more["low"] > plain["high"] / plain["low"])[known].all()


def test_one_run_with_its_requests_still_has_no_interval():
    rng = np.random.default_rng(3)
    a, b = noisy("a", 130, 20, rng, 0.01, 1), noisy("b", 100, 15, rng, 0.01, 1)
    rows = compare(a, b, requests_a=requests_of(a, rng, 0.1), requests_b=requests_of(b, rng, 0.1)).same_speed
    assert rows[["low", "high"]].isna().all(axis=None)
    assert set(rows["verdict"]) <= {"undecided", "no difference shown", "not measured"}


def test_the_spread_is_that_of_the_median_and_of_tokens_over_time():
    """One point, runs without spread: what is left is the spread of the requests, over the number of runs."""
    rng, runs, count = np.random.default_rng(7), 4, 400
    made = noisy("a", 100, 15, rng, 0.0, runs, (8.0,))
    pools = requests_of(made, rng, 0.2, count)
    moved = Resampler([1, 2, 3, 4], 20_000).curves(made, pools).logs
    speed, throughput = (moved[axis][:, 0].std() for axis in ("speed", "throughput"))
    # Median of a normal sample: sigma sqrt(pi / 2 / count); a ratio of sums moves with the mean of E2E.
    assert speed == pytest.approx(0.2 * np.sqrt(np.pi / 2 / count / runs), rel=0.25)
    e2e = [np.std(pools[8.0, r].e2e_s) / np.mean(pools[8.0, r].e2e_s) for r in range(1, runs + 1)]
    assert throughput == pytest.approx(np.mean(e2e) / np.sqrt(count * runs), rel=0.15)


def test_tokens_count_in_the_throughput_of_a_draw():
    sample = RequestSample(np.full(50, 0.01), np.repeat([10, 1000], 25), np.full(50, 1.0))
    made = noisy("a", 100, 15, np.random.default_rng(0), 0.0, 3, (8.0,))
    moved = Resampler([1, 2, 3], 4_000).curves(made, {(8.0, r): sample for r in (1, 2, 3)}).logs
    assert np.ptp(moved["speed"]) == pytest.approx(0, abs=1e-12)
    relative = np.std(sample.output_tokens) / np.mean(sample.output_tokens) / np.sqrt(50 * 3)
    assert moved["throughput"][:, 0].std() == pytest.approx(relative, rel=0.1)


def test_an_undefined_tpot_is_left_out_of_the_median_only():
    with_gap = RequestSample(np.array([0.01, np.nan, 0.01, 0.01]), np.array([5, 1, 5, 5]), np.ones(4))
    made = noisy("a", 100, 15, np.random.default_rng(0), 0.0, 3, (8.0,))
    moved = Resampler([1, 2, 3], 4_000).curves(made, {(8.0, r): with_gap for r in (1, 2, 3)}).logs
    assert np.ptp(moved["speed"]) == pytest.approx(0, abs=1e-12) and np.ptp(moved["throughput"]) > 0.1


def test_a_point_without_requests_is_refused():
    rng = np.random.default_rng(3)
    a, b = noisy("a", 130, 20, rng, 0.01, 3), noisy("b", 100, 15, rng, 0.01, 3)
    pools = requests_of(a, rng, 0.1)
    del pools[4.0, 2]
    with pytest.raises(UserError, match="a, load 4, repeat 2: its requests are missing"):
        compare(a, b, requests_a=pools)


def test_the_requests_of_a_recorded_run_are_its_completed_ones():
    run = RunFolder.open(RUN)
    points = run.points()
    rows = points[(points["contender"] == "wholecurve") & (points["workload"] == "decode")]
    found = run_requests(run, "wholecurve")
    assert set(found) == set(zip(rows["load"], rows["repeat"]))
    for row in rows.itertuples():
        sample = found[row.load, row.repeat]
        assert len(sample.tpot_s) == len(sample.e2e_s) == row.n_completed
        assert sample.output_tokens.sum() == row.output_tokens
        assert 1e3 * np.nanmedian(sample.tpot_s) == pytest.approx(row.tpot_p50_ms)
    a, b = (Curve.from_points(points, name) for name in ("wholecurve", "openvino-genai"))
    other = run_requests(run, "openvino-genai")
    plain, deep = compare(a, b), compare(a, b, requests_a=found, requests_b=other)
    assert plain.same_throughput["estimate"].equals(deep.same_throughput["estimate"])
    assert not plain.same_throughput["low"].equals(deep.same_throughput["low"])


def test_a_run_without_such_points_is_refused():
    with pytest.raises(UserError, match="no decode points of 'nobody'"):
        run_requests(RunFolder.open(RUN), "nobody")
