"""Simulation: does a 95 % interval hold the truth 95 % of the time, with the runs that a study has?

Truth: TPOT = t0 + k c and throughput = occupancy × c / TPOT, so at any speed the load, and with it the multiplier, has
a closed form. Every run carries 10 % log-normal noise, either one factor for all of its loads (a slow server) or an
independent one for every point and axis. The truth of a reading is the multiplier at B's true operating point.

Coverage is pooled: of all readings at B's measured points, over all trials, that the rules did not refuse, the share
whose interval holds the truth; an open end holds everything on its side. With shared noise the readings of a trial
stand or fall together, so that the share is as certain as one of 500 and not more: ±2 %.
"""

import numpy as np
import pandas as pd
import pytest
from curve_builders import GRID

from wholecurve.curves import Curve
from wholecurve.curves.bootstrap import Resampler
from wholecurve.curves.readings import Bounds, MatchedReader

LOADS = np.array(GRID)
A, B = (0.010, 0.0004, 0.95), (0.012, 0.0006, 0.90)  # t0 [s], k [s per request in flight], occupancy
SIGMA, TRIALS, RESAMPLES = 0.10, 500, 1_000


def speed_and_throughput(parameters, load):
    t0, k, occupancy = parameters
    return 1 / (t0 + k * load), occupancy * load / (t0 + k * load)


def true_multiplier(load_b):
    """Same-speed multiplier where B truly is at ``load_b``; A may be at any load above 0."""
    speed, throughput = speed_and_throughput(B, load_b)
    t0, k, occupancy = A
    return occupancy * (1 / speed - t0) / k * speed / throughput


def measured(name, parameters, runs, shared, rng):
    load, repeat = np.repeat(LOADS, runs), np.tile(np.arange(1, runs + 1), len(LOADS))
    noise = SIGMA * (rng.standard_normal(runs)[None, repeat - 1] if shared else rng.standard_normal((2, len(load))))
    speed, throughput = np.array(speed_and_throughput(parameters, load)) * np.exp(noise)
    points = pd.DataFrame({"load": load, "repeat": repeat, "speed": speed, "throughput": throughput})
    return Curve(name, "decode", "concurrency", points)


def coverage(runs, shared, trials, resamples=RESAMPLES, seed=20261130):
    """(pooled coverage, readings, coverage by load of B)."""
    rng, hits = np.random.default_rng(seed), {load: [] for load in GRID}
    for trial in range(trials):
        a, b = (measured(name, truth, runs, shared, rng) for name, truth in (("a", A), ("b", B)))
        reader = MatchedReader(a, b, 0.95, Bounds(), Resampler(a.repeats, resamples, seed + trial))
        for row in reader.rows("speed", (), ()).dropna(subset="estimate").itertuples():
            hits[row.load_b].append(row.low <= true_multiplier(row.load_b) <= row.high)
    pooled = np.concatenate([np.array(found, float) for found in hits.values()])
    return pooled.mean(), len(pooled), {load: np.mean(found) for load, found in hits.items() if found}


@pytest.mark.parametrize(
    "runs, trials, shared",
    [
        pytest.param(5, TRIALS, True, id="5 runs, noise shared by all loads of a run"),
        pytest.param(5, TRIALS, False, id="5 runs, noise of its own for every point"),
        pytest.param(3, 200, False, id="3 runs, noise of its own for every point"),
    ],
)
def test_a_95_percent_interval_holds_the_truth_about_95_percent_of_the_time(runs, trials, shared):
    share, readings, by_load = coverage(runs, shared, trials)
    each = ", ".join(f"{load:g}: {value:.1%}" for load, value in by_load.items())
    print(f"\nn = {runs}, {trials} trials: {share:.1%} of {readings} readings; by load of B {each}")
    assert readings > 4 * trials
    assert 0.90 <= share <= 0.99
