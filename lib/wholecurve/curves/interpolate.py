"""Curves between their points: log speed and log throughput as monotone cubics (PCHIP) of log load."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from wholecurve.curves.curve import Curve

Axis = Literal["speed", "throughput"]

# Two logarithms this close are the same number: far below any measurement, far above rounding.
SAME = 1e-12


@dataclass(frozen=True)
class Solution:
    """Where a curve has the wanted value: inside interval ``interval``, or exactly on point ``knot``."""

    load: float
    interval: int
    knot: int | None


class ParametricCurve:
    """Speed [tok/s/user] and throughput [tok/s/device] of one curve as functions of load.

    log speed and log throughput are each a PCHIP (Fritsch and Butland 1984, as scipy implements it, with the
    slopes at both ends taken from four points) of log load. It is monotone between neighbouring points, so a
    value is met at most once in an interval, and it is never evaluated outside the measured loads. A single
    point is allowed: it can be met, not interpolated.
    """

    def __init__(self, name: str, loads: Sequence[float], speeds: Sequence[float], throughputs: Sequence[float]):
        self.name = name
        self.loads = np.asarray(loads, float)
        self.values = {"speed": np.asarray(speeds, float), "throughput": np.asarray(throughputs, float)}
        self.log_loads = np.log(self.loads)
        self.logs = {axis: np.log(values) for axis, values in self.values.items()}
        self._cubics = {axis: _pchip(self.log_loads, logs) for axis, logs in self.logs.items()}

    @classmethod
    def from_curve(cls, curve: Curve, name: str, repeat: int | None = None) -> "ParametricCurve":
        """Through the geometric means over repeats, or through the points of one repeat only."""
        rows = curve.by_load() if repeat is None else curve.points[curve.points["repeat"] == repeat]
        return cls(name, rows["load"], rows["speed"], rows["throughput"])

    def solve(self, axis: Axis, target: float) -> list[Solution]:
        """Every load at which ``axis`` equals ``target``, ascending; exact points and both ends included.

        A flat stretch on the target gives both of its ends. An empty list means that the target is out of
        reach.
        """
        wanted, logs = np.log(target), self.logs[axis]
        found = []
        for i in range(len(logs)):
            if abs(logs[i] - wanted) <= SAME:
                found.append(Solution(float(self.loads[i]), min(i, max(len(logs) - 2, 0)), i))
            elif (
                i + 1 < len(logs) and abs(logs[i + 1] - wanted) > SAME and (logs[i] < wanted) != (logs[i + 1] < wanted)
            ):
                step = _bisect(self._cubics[axis][i], wanted, self.log_loads[i + 1] - self.log_loads[i])
                found.append(Solution(float(np.exp(self.log_loads[i] + step)), i, None))
        return found

    def at(self, axis: Axis, solution: Solution) -> float:
        """The value of ``axis`` at a solution; on a knot, the measured value itself."""
        if solution.knot is not None:
            return float(self.values[axis][solution.knot])
        step = np.log(solution.load) - self.log_loads[solution.interval]
        return float(np.exp(_cubic(self._cubics[axis][solution.interval], step)))

    def slope(self, axis: Axis, solution: Solution) -> float | None:
        """d log value / d log load at a solution; None for a single point.

        On the first or last point it is the slope to the neighbour: PCHIP's own one-sided slope there is
        set to 0 where the data bend quickly, which would be a property of the formula and not of the curve.
        """
        if len(self.loads) == 1:
            return None
        i = solution.interval
        if solution.knot in (0, len(self.loads) - 1):
            rise, run = (known[i + 1] - known[i] for known in (self.logs[axis], self.log_loads))
            return float(rise / run)
        cubic, step = self._cubics[axis][i], np.log(solution.load) - self.log_loads[i]
        return float((3 * cubic[0] * step + 2 * cubic[1]) * step + cubic[2])

    def straight(self, axis: Axis, target: float, solution: Solution, logarithmic: bool) -> float:
        """The *other* axis at ``target`` on the straight line between the two neighbouring points.

        In plain coordinates it overstates a convex curve, in logarithmic ones it understates it: the two
        ends of the bracket. On a knot it is the measured value.
        """
        other = other_axis(axis)
        if solution.knot is not None:
            return float(self.values[other][solution.knot])
        i = solution.interval
        known = self.logs if logarithmic else self.values
        x0, x1, y0, y1 = *known[axis][i : i + 2], *known[other][i : i + 2]
        wanted = np.log(target) if logarithmic else target
        value = y0 + (wanted - x0) / (x1 - x0) * (y1 - y0)
        return float(np.exp(value) if logarithmic else value)


def is_flat(first: Solution, second: Solution) -> bool:
    """True when two solutions are neighbouring points of one value: every load between them solves it too."""
    return first.knot is not None and second.knot == first.knot + 1


def other_axis(axis: Axis) -> Axis:
    """The axis that is read off when ``axis`` is held fixed."""
    return "throughput" if axis == "speed" else "speed"


def pchip_slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Slopes [..., knots] of monotone cubics through ``y`` [..., knots] at the common ``x`` [knots], two or more.

    Written out because importing scipy.interpolate takes a quarter of the second that `compare` may take; the tests
    hold it to scipy's PchipInterpolator. scipy takes the slope at each end from three points, which is off by up to
    1.2 % in a multiplier on smooth curves; four points keep it under 0.5 %.
    """
    width, secant = np.diff(x), np.diff(y) / np.diff(x)
    slopes = np.empty(y.shape)
    slopes[..., 1:-1] = _inner_slopes(width, secant)
    slopes[..., 0] = _end_slope(x[:4], y[..., :4])
    slopes[..., -1] = _end_slope(x[:-5:-1], y[..., :-5:-1])
    return slopes


def cubic_coefficients(width, left, right, slope_left, slope_right) -> np.ndarray:
    """Coefficients [..., 4], highest power first, of the cubic between two knots, in the distance from the left one.

    ``left`` and ``right`` are values, the slopes are those of `pchip_slopes`; all broadcast.
    """
    secant = (right - left) / width
    cubic = (slope_left + slope_right - 2 * secant) / width**2
    square = (3 * secant - 2 * slope_left - slope_right) / width
    return np.stack(np.broadcast_arrays(cubic, square, slope_left, left), axis=-1)


def _pchip(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Coefficients [interval, 4] of all intervals; none for a single point."""
    if len(y) == 1:
        return np.empty((0, 4))
    slopes = pchip_slopes(x, y)
    return cubic_coefficients(np.diff(x), y[:-1], y[1:], slopes[:-1], slopes[1:])


def _inner_slopes(width: np.ndarray, secant: np.ndarray) -> np.ndarray:
    """Weighted harmonic mean of the secants on both sides, 0 where they differ in sign (Fritsch and Butland 1984)."""
    before, after = secant[..., :-1], secant[..., 1:]
    weight_before, weight_after = width[:-1] + 2 * width[1:], 2 * width[:-1] + width[1:]
    rising_or_falling = before * after > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (weight_before + weight_after) / (weight_before / before + weight_after / after)
    return np.where(rising_or_falling, mean, 0.0)


def _end_slope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Slope [...] at x[0] of the polynomial through all points of ``y`` [..., points], kept within [0, 3] secants of
    the first two.

    Inside these limits the cubic stays monotone (Fritsch and Carlson 1980).
    """
    secant = (y[..., 1] - y[..., 0]) / (x[1] - x[0])
    # Newton's divided differences: the slope is the sum of each times the product of the distances before it.
    slope, differences, reach = 0.0, y, 1.0
    for order in range(1, len(x)):
        differences = np.diff(differences) / (x[order:] - x[:-order])
        slope = slope + differences[..., 0] * reach
        reach *= x[0] - x[order]
    return np.clip(slope, np.minimum(0.0, 3 * secant), np.maximum(0.0, 3 * secant))


def _cubic(c: Sequence[float], step: float) -> float:
    return ((c[0] * step + c[1]) * step + c[2]) * step + c[3]


def _bisect(cubic: np.ndarray, wanted: float, width: float) -> float:
    """The one step in (0, width) at which a monotone cubic equals ``wanted``, to the last bit or so."""
    c = [float(v) for v in cubic]
    low, high, rising = 0.0, float(width), _cubic(c, float(width)) > c[3]
    while True:
        middle = 0.5 * (low + high)
        if middle <= low or middle >= high:
            return middle
        if (_cubic(c, middle) < wanted) == rising:
            low = middle
        else:
            high = middle
