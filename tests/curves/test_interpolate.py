"""Between the points: the cubic is scipy's, every solution is found, and a point is met exactly."""

import numpy as np
import pytest
from curve_builders import GRID, analytic
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator

from wholecurve.curves import ParametricCurve
from wholecurve.curves.interpolate import Solution, is_flat


def made(loads, speeds, throughputs=None):
    return ParametricCurve("t", loads, speeds, loads if throughputs is None else throughputs)


@given(st.lists(st.floats(1, 1000), min_size=2, max_size=8), st.floats(0.01, 0.99))
def test_every_crossing_is_found_and_lies_on_the_curve(speeds, where):
    loads = [2.0**k for k in range(len(speeds))]
    target = float(np.exp(np.log(min(speeds)) * (1 - where) + np.log(max(speeds)) * where))
    curve = made(loads, speeds)
    found = curve.solve("speed", target)
    reference = PchipInterpolator(np.log(loads), np.log(speeds))
    for solution in found:
        assert loads[solution.interval] <= solution.load <= loads[min(solution.interval + 1, len(loads) - 1)]
        assert np.log(curve.at("speed", solution)) == pytest.approx(np.log(target), abs=1e-9)
        if len(loads) < 4 or 0 < solution.interval < len(loads) - 2:
            assert reference(np.log(solution.load)) == pytest.approx(np.log(target), abs=1e-9)
    signs = np.sign(np.log(speeds) - np.log(target))
    if (abs(np.log(speeds) - np.log(target)) > 1e-9).all():
        assert len(found) == np.count_nonzero(np.diff(signs))
    assert [s.load for s in found] == sorted(s.load for s in found)


def test_the_other_axis_is_read_from_scipys_pchip():
    curve = ParametricCurve.from_curve(analytic("a", 100, 12), "a")
    (solution,) = curve.solve("speed", 61.7)
    reference = PchipInterpolator(np.log(GRID), np.log(curve.values["throughput"]))
    assert curve.at("throughput", solution) == pytest.approx(np.exp(reference(np.log(solution.load))), rel=1e-12)
    assert curve.slope("throughput", solution) == pytest.approx(reference(np.log(solution.load), 1), rel=1e-12)


@given(st.lists(st.floats(1, 1000), min_size=2, max_size=8), st.integers(0, 6), st.floats(0, 1))
def test_between_neighbouring_points_the_curve_stays_between_their_values(speeds, interval, where):
    interval = min(interval, len(speeds) - 2)
    curve = made([2.0**k for k in range(len(speeds))], speeds)
    solution = Solution(2.0 ** (interval + where), interval, None)
    low, high = sorted(speeds[interval : interval + 2])
    assert low * (1 - 1e-9) <= curve.at("speed", solution) <= high * (1 + 1e-9)


@given(st.lists(st.floats(1, 1000), min_size=3, max_size=8), st.data())
def test_slopes_inside_are_those_of_scipy(values, data):
    steps = data.draw(st.lists(st.floats(0.2, 3), min_size=len(values), max_size=len(values)))
    loads = np.exp(np.cumsum(steps))
    curve = made(loads, values)
    expected = PchipInterpolator(np.log(loads), np.log(values))(np.log(loads), nu=1)
    for k in range(1, len(values) - 1):
        slope = curve.slope("speed", Solution(float(loads[k]), k, None))
        assert slope == pytest.approx(expected[k], rel=1e-9, abs=1e-12)


def test_end_slopes_are_exact_for_cubics():
    x = np.log([1.0, 2.0, 5.0, 8.0, 20.0, 30.0])
    logs = 4 - 0.1 * x - 0.02 * x**2 - 0.005 * x**3
    curve = made(np.exp(x), np.exp(logs))
    for at, interval in ((0, 0), (-1, 4)):
        exact = -0.1 - 0.04 * x[at] - 0.015 * x[at] ** 2
        assert curve.slope("speed", Solution(float(np.exp(x[at])), interval, None)) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("k", [0, 3, 7])
def test_measured_points_and_both_ends_are_met_exactly(k):
    curve = ParametricCurve.from_curve(analytic("a", 100, 12), "a")
    (solution,) = curve.solve("speed", curve.values["speed"][k])
    assert (solution.load, solution.knot) == (GRID[k], k)
    for logarithmic in (False, True):
        assert curve.straight("speed", curve.values["speed"][k], solution, logarithmic) == curve.values["throughput"][k]
    assert curve.at("throughput", solution) == curve.values["throughput"][k]


def test_outside_the_points_there_is_no_solution():
    curve = made([1, 2, 4], [100, 80, 50])
    assert curve.solve("speed", 100.001) == [] and curve.solve("speed", 49.999) == []


def test_a_curve_that_turns_is_met_twice_and_a_flat_one_along_a_stretch():
    assert [round(s.load, 3) for s in made([1, 2, 4], [60, 90, 60]).solve("speed", 60)] == [1, 4]
    assert len(made([1, 2, 4], [60, 90, 60]).solve("speed", 75)) == 2
    flat = made([1, 2, 4, 8], [90, 60, 60, 30]).solve("speed", 60)
    assert [s.load for s in flat] == [2, 4] and is_flat(*flat)
    assert not is_flat(*made([1, 2, 4], [60, 90, 60]).solve("speed", 60))


def test_the_straight_lines_of_the_bracket():
    curve = made([1, 4], [100, 25], [100, 200])
    (solution,) = curve.solve("speed", 50)
    assert curve.straight("speed", 50, solution, logarithmic=False) == pytest.approx(100 + 100 * 50 / 75)
    assert curve.straight("speed", 50, solution, logarithmic=True) == pytest.approx(100 * 2**0.5)


def test_a_single_point_can_be_met_and_has_no_slope():
    curve = made([8], [50], [400])
    (solution,) = curve.solve("speed", 50)
    assert (solution.load, solution.knot, curve.at("throughput", solution)) == (8, 0, 400)
    assert curve.slope("speed", solution) is None and curve.solve("speed", 49) == []


def test_the_slope_at_an_end_is_the_one_to_the_neighbour():
    curve = made([1, 2, 4], [100, 90, 50])
    (end,) = curve.solve("speed", 100)
    assert PchipInterpolator(np.log([1, 2, 4]), np.log([100, 90, 50]))(0.0, 1) == 0
    assert curve.slope("speed", end) == pytest.approx(np.log(0.9) / np.log(2))
