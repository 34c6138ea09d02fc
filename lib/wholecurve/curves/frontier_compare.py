"""Two frontiers side by side: a floor from measured points, and a bracket between neighbouring ones."""

import math
from dataclasses import dataclass, field

import pandas as pd

from wholecurve.curves.compare import plain
from wholecurve.curves.frontier import Frontier
from wholecurve.curves.interpolate import SAME, Axis, other_axis
from wholecurve.curves.multipliers import NO_DIFFERENCE, NOT_MEASURED, UNDECIDED, UNITS
from wholecurve.curves.readings import frame_of
from wholecurve.errors import UserError

FRONTIER_COLUMNS = (
    *("configuration_b", "load_b", "n_b", "speed", "throughput", "between_a"),
    *("linear", "log_log", "bracket_low", "bracket_high", "floor", "floor_configuration_a", "refused", "verdict"),
)


@dataclass(frozen=True)
class FrontierComparison:
    """Frontier A over frontier B at each of B's points, at the same speed and at the same throughput.

    ``bracket_low`` to ``bracket_high`` spans plain linear and log-log interpolation between the two neighbouring
    points of A (``between_a`` names their configurations). ``floor`` needs no interpolation: it is A's best measured
    point with at least B's speed (or throughput), of ``floor_configuration_a``. There is no interval, so a verdict is
    at most "undecided". warnings: sentences.
    """

    a: Frontier
    b: Frontier
    same_speed: pd.DataFrame
    same_throughput: pd.DataFrame
    warnings: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """What the numbers are, to be printed wherever they are shown."""
        return f"A: {self.a.label}; B: {self.b.label}"

    def to_document(self) -> dict:
        """JSON values: both frontiers, the label, and the rows."""
        rows = {
            name: plain(getattr(self, name).astype(object).to_dict("records"))
            for name in ("same_speed", "same_throughput")
        }
        sides = {"a": self.a.to_document(), "b": self.b.to_document()}
        return {**sides, "label": self.label, **rows, "warnings": list(self.warnings)}


def compare_frontiers(a: Frontier, b: Frontier) -> FrontierComparison:
    """The multipliers of frontier A over frontier B at each of B's measured points; nothing is extrapolated.

    Raises UserError where one of them is not a `Frontier`, or their workload or kind of load differs.
    """
    for one in (a, b):
        if not isinstance(one, Frontier):
            raise UserError(f"{getattr(one, 'name', one)} is one configuration's curve; build a Frontier from it first")
    for shared in ("workload", "load_kind"):
        if getattr(a, shared) != getattr(b, shared):
            raise UserError(
                f"{a.name} has {shared} {getattr(a, shared)}, {b.name} has {getattr(b, shared)}; the two must share it"
            )
    rows = {axis: [_row(a, point, axis) for point in b.points.itertuples()] for axis in ("speed", "throughput")}
    return FrontierComparison(a, b, *(frame_of(rows[axis], FRONTIER_COLUMNS) for axis in ("speed", "throughput")))


def frontier_comparison_table(comparison: FrontierComparison, axis: Axis) -> pd.DataFrame:
    """One row per point of B for "speed" (throughput A/B there) or "throughput" (speed A/B there)."""
    rows = []
    for row in getattr(comparison, f"same_{axis}").itertuples():
        read = pd.notna(row.bracket_low)
        rows.append(
            {
                "B's point": f"{row.configuration_b}, load {row.load_b:g}",
                f"held ({UNITS[axis]})": f"{getattr(row, axis):.4g}",
                "A between": row.between_a or "",
                "A/B, bracket": f"{row.bracket_low:.2f}–{row.bracket_high:.2f}" if read else "not measured",
                "at least": f"{row.floor:.2f}× ({row.floor_configuration_a})" if pd.notna(row.floor) else "",
                "verdict": f"{row.verdict}: {row.refused}" if row.refused else row.verdict,
            }
        )
    return pd.DataFrame(rows)


def _row(a: Frontier, point, axis: Axis) -> dict:
    other = other_axis(axis)
    target, base = getattr(point, axis), getattr(point, other)
    row = {"configuration_b": point.configuration, "load_b": point.load, "n_b": point.n, "verdict": NOT_MEASURED}
    row |= {"speed": point.speed, "throughput": point.throughput}
    enough = a.points[a.points[axis] >= target * (1 - SAME)]
    if len(enough):
        best = enough.loc[enough[other].idxmax()]
        row |= {"floor": best[other] / base, "floor_configuration_a": best["configuration"]}
    ascending = a.points.sort_values(axis, ignore_index=True)
    if target < ascending[axis].iloc[0] * (1 - SAME) or not len(enough):
        return row | {"refused": _out_of_range(a, axis, target)}
    after = int((ascending[axis] >= target * (1 - SAME)).idxmax())
    met = abs(ascending[axis][after] / target - 1) <= SAME
    right, left = ascending.iloc[after], ascending.iloc[after if met else after - 1]
    between = right["configuration"] if met else f"{left['configuration']} and {right['configuration']}"
    linear, log_log = (_between(left, right, axis, target, logarithmic) / base for logarithmic in (False, True))
    low, high = sorted((linear, log_log))
    says = NO_DIFFERENCE if low <= 1 + SAME and high >= 1 - SAME else UNDECIDED
    row |= {"linear": linear, "log_log": log_log, "bracket_low": low, "bracket_high": high}
    return row | {"between_a": between, "verdict": says}


def _between(left: pd.Series, right: pd.Series, axis: Axis, target: float, logarithmic: bool) -> float:
    other = other_axis(axis)
    if right[axis] == left[axis]:
        return float(right[other])
    change, back = (math.log, math.exp) if logarithmic else (float, float)
    x0, x1, x = (change(v) for v in (left[axis], right[axis], target))
    y0, y1 = change(left[other]), change(right[other])
    return back(y0 + (x - x0) / (x1 - x0) * (y1 - y0))


def _out_of_range(a: Frontier, axis: Axis, target: float) -> str:
    values = a.points[axis]
    above = target > values.max()
    edge, most, more = (values.max(), "highest", "above") if above else (values.min(), "lowest", "below")
    return (
        f"{target:.4g} {UNITS[axis]} is {more} every point of {a.name} (frontier of {len(a.configurations)} "
        f"configurations), whose {most} {axis} is {edge:.4g}; not extrapolated"
    )
