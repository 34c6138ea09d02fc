"""Paired log ratios and Student's t by hand, none for one or two runs, and right 95 % of the time on A/A."""

import math

import numpy as np
import pytest
from curve_builders import curve, noisy

from wholecurve.curves import compare
from wholecurve.curves.uncertainty import by_repeat, matched_log_ratios, paired_log_ratios, t_interval


def test_the_t_interval_by_hand():
    logs = [0.1, 0.2, 0.6]
    half = 4.302653 * np.std(logs, ddof=1) / math.sqrt(3)  # t of 97.5 % with 2 degrees of freedom, from a table
    low, high = t_interval(logs, centre=1.5, confidence=0.95)
    assert (low, high) == pytest.approx((1.5 * math.exp(-half), 1.5 * math.exp(half)), rel=1e-6)
    assert t_interval(logs, 1.5, 0.8)[0] > low


@pytest.mark.parametrize("n", [0, 1, 2])
def test_too_few_runs_have_no_interval(n):
    assert t_interval([0.1] * n, 1.0, 0.95) == (None, None)


def test_repeats_are_paired_by_number():
    a = curve("a", [4, 4, 4], [100, 200, 400], [1, 1, 1], repeats=[1, 2, 5])
    b = curve("b", [4, 4, 4], [100, 50, 10], [1, 1, 1], repeats=[5, 2, 3])
    assert np.exp(paired_log_ratios(a, b, 4, "speed")).tolist() == pytest.approx([4, 4])
    assert paired_log_ratios(a, b, 8, "speed") == []


def test_a_drift_that_both_contenders_share_cancels():
    drift = np.array([1.0, 0.7, 1.3, 0.9])
    rows = {"repeats": [1, 2, 3, 4]}
    a = curve("a", [8] * 4, 120 * drift, 900 * drift, **rows)
    b = curve("b", [8] * 4, 100 * drift, 600 * drift, **rows)
    (row,) = compare(a, b).direct.itertuples()
    assert (row.low, row.ratio, row.high) == pytest.approx((1.5, 1.5, 1.5))


def test_repeats_that_leave_the_overlap_are_counted():
    # In repeat 3 B's point at load 2 is faster than anything that A reached.
    rows = {"repeats": [1, 1, 2, 2, 3, 3, 4, 4]}
    loads, throughputs = [1, 4] * 4, [100, 300] * 4
    a = curve("a", loads, [100, 50] * 4, throughputs, **rows)
    b = curve("b", [2] * 4, [70, 71, 130, 69], [90, 91, 92, 93], repeats=[1, 2, 3, 4])
    logs, outside = matched_log_ratios(by_repeat(a, "A"), by_repeat(b, "B"), "speed", load_b=2)
    assert (len(logs), outside) == (3, 1)
    found = compare(a, b)
    (row,) = found.same_speed.itertuples()
    assert (row.n, row.repeats_outside) == (4, 1) and row.low < row.estimate < row.high
    assert 0.025 < row.outside_share < 1
    assert any("of the resamples leave the overlap (1 of 4 repeats do)" in warning for warning in found.warnings)


def test_a_against_a_with_noise_covers_one_about_95_percent_of_the_time():
    rng, loads, hits, trials = np.random.default_rng(20261130), (4.0, 8.0, 16.0), 0, 600
    for _ in range(trials):
        a, b = (noisy(name, 100, 12, rng, 0.02, 4, loads) for name in "ab")
        logs = paired_log_ratios(a, b, 8.0, "throughput")
        low, high = t_interval(logs, math.exp(np.mean(logs)), 0.95)
        hits += low <= 1 <= high
    assert 0.90 <= hits / trials <= 0.99
