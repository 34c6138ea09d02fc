"""Many versions of one curve at once: the parametric curve of every resample, read together."""

from collections.abc import Mapping

import numpy as np

from wholecurve.curves.interpolate import SAME, Axis, cubic_coefficients, other_axis, pchip_slopes

# Halvings of an interval of log load; after 52 a step is exact to the last bit or so.
_HALVINGS = 52


class ResampledCurves:
    """Curves [resamples] over the same loads, each interpolated as `ParametricCurve` does.

    ``logs`` holds log speed and log throughput, each [resamples, loads].
    """

    def __init__(self, log_loads: np.ndarray, logs: Mapping[Axis, np.ndarray]):
        self.log_loads = log_loads
        self.logs = logs
        self._slopes = {axis: pchip_slopes(log_loads, y) for axis, y in logs.items()} if len(log_loads) > 1 else {}

    def read(self, axis: Axis, log_target: np.ndarray | float, near: float) -> np.ndarray:
        """log of the *other* axis [resamples] where ``axis`` equals exp(``log_target``) (a number, or one each).

        A curve that meets its target several times is read at the solution nearest to log load ``near``: leaving
        such curves out would bias the rest. Where the target lies beyond everything that a curve has, what it
        would read there lies beyond as well: -inf above the highest value of ``axis``, +inf below the lowest.
        """
        known = self.logs[axis]
        wanted = np.broadcast_to(np.asarray(log_target, float), known.shape[:1])
        lowest, highest = known.min(axis=1), known.max(axis=1)
        result = np.where(wanted > highest + SAME, -np.inf, np.where(wanted < lowest - SAME, np.inf, np.nan))
        inside = np.isnan(result)
        if len(self.log_loads) == 1:
            return np.where(inside, self.logs[other_axis(axis)][:, 0], result)
        wanted, distance = np.clip(wanted, lowest, highest), np.full(len(result), np.inf)
        for i in range(len(self.log_loads) - 1):
            left, right = known[:, i], known[:, i + 1]
            meets = inside & (wanted >= np.minimum(left, right) - SAME) & (wanted <= np.maximum(left, right) + SAME)
            rows = np.flatnonzero(meets)
            if len(rows):
                width = self.log_loads[i + 1] - self.log_loads[i]
                step = _bisect(self._cubic(axis, i, rows), wanted[rows], width)
                # Where the cubic is flat at a knot, rounding would move the solution away from it.
                step[np.abs(left[rows] - wanted[rows]) <= SAME] = 0.0
                step[np.abs(right[rows] - wanted[rows]) <= SAME] = width
                away = np.abs(self.log_loads[i] + step - near)
                nearer = away < distance[rows]
                rows, step = rows[nearer], step[nearer]
                distance[rows] = away[nearer]
                result[rows] = _value(self._cubic(other_axis(axis), i, rows), step)
        return result

    def _cubic(self, axis: Axis, i: int, rows: np.ndarray) -> np.ndarray:
        """Coefficients [4, rows] of interval ``i``."""
        values, slopes = (table[axis][rows, i : i + 2].T for table in (self.logs, self._slopes))
        return cubic_coefficients(self.log_loads[i + 1] - self.log_loads[i], *values, *slopes).T


def _value(cubic: np.ndarray, step: np.ndarray) -> np.ndarray:
    return ((cubic[0] * step + cubic[1]) * step + cubic[2]) * step + cubic[3]


def _bisect(cubic: np.ndarray, wanted: np.ndarray, width: float) -> np.ndarray:
    """Steps in [0, width] at which monotone cubics [4, rows] equal ``wanted`` [rows]."""
    falling = _value(cubic, np.full(len(wanted), width)) < cubic[3]
    sign = np.where(falling, -1.0, 1.0)
    cubic, wanted = cubic * sign, wanted * sign
    step, half = np.zeros(len(wanted)), width
    for _ in range(_HALVINGS):
        half *= 0.5
        further = step + half
        step = np.where(_value(cubic, further) <= wanted, further, step)
    return step
