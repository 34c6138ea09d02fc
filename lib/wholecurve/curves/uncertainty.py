"""How far repeats agree, one by one: paired log ratios, the t interval over them, and the curve of each repeat alone.

The unit of replication is a run. The intervals of matched multipliers come from `bootstrap`.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from wholecurve.curves.curve import Curve
from wholecurve.curves.interpolate import Axis, ParametricCurve, other_axis
from wholecurve.curves.multipliers import MIN_REPEATS, Refused, read


def paired_log_ratios(a: Curve, b: Curve, load: float, column: str) -> list[float]:
    """log(A/B) of ``column`` (speed, throughput) at one load, for every repeat that both have there."""
    of_a, of_b = (curve.points[curve.points["load"] == load].set_index("repeat")[column] for curve in (a, b))
    return [math.log(of_a[r] / of_b[r]) for r in sorted(set(of_a.index) & set(of_b.index))]


def t_interval(log_ratios: Sequence[float], centre: float, confidence: float) -> tuple[float | None, float | None]:
    """The interval centre × exp(± t s/√n) over paired log ratios, Student's t with n - 1 degrees of
    freedom.

    ``centre`` is the printed ratio. (None, None) for fewer than three repeats: one or two runs say nothing
    about their own spread.
    """
    n = len(log_ratios)
    if n < MIN_REPEATS:
        return None, None
    # Imported where it is needed, to keep every analysis command quick to start.
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, 0.5 + confidence / 2)) * float(np.std(log_ratios, ddof=1)) / math.sqrt(n)
    return centre * math.exp(-half), centre * math.exp(half)


def by_repeat(curve: Curve, name: str) -> dict[int, ParametricCurve]:
    """One parametric curve per repeat."""
    return {r: ParametricCurve.from_curve(curve, name, r) for r in curve.repeats}


def matched_log_ratios(
    a: Mapping[int, ParametricCurve],
    b: Mapping[int, ParametricCurve],
    axis: Axis,
    load_b: float | None = None,
    target: float | None = None,
) -> tuple[list[float], int]:
    """The multiplier again for each repeat r, from the curves of repeat r alone: (log ratios, repeats left out).

    They tell whether two runs point the same way, and how many miss the target on their own; they give no interval.
    With ``load_b`` the operating point is B's own point of that repeat at that load; else ``target`` holds for all. A
    repeat whose curve misses the target, or meets it several times, is left out and counted.
    """
    ratios, left = [], 0
    for r in sorted(a.keys() & b.keys()):
        try:
            if load_b is None:
                held, base = target, read(b[r], axis, target, slope_rule=False).value
            else:
                at = np.flatnonzero(b[r].loads == load_b)
                if not len(at):
                    continue
                held, base = (float(b[r].values[x][at[0]]) for x in (axis, other_axis(axis)))
            ratios.append(math.log(read(a[r], axis, held, slope_rule=False).value / base))
        except Refused:
            left += 1
    return ratios, left
