"""How well each way of reading between points predicts a point that was measured and then left out."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from wholecurve.curves.curve import Curve
from wholecurve.curves.interpolate import Axis, ParametricCurve, other_axis
from wholecurve.curves.multipliers import Refused, read

METHODS = (
    "parametric PCHIP",  # the estimate of a multiplier
    "parametric PCHIP, three-point ends",  # the same with the end slopes of scipy
    "PCHIP y(x)",
    "linear",
    "log-log",
)
COLUMNS = ("curve", "load", "held", "measured", "method", "predicted", "error", "refused")


def leave_one_out(curve: Curve) -> pd.DataFrame:
    """Leave out each point between the ends, and predict it from the others by every method of `METHODS`.

    One row per point, axis that is ``held`` (at a speed the throughput is predicted, at a throughput the speed) and
    method: measured and predicted value, and ``error``, predicted / measured - 1. Where the rules refuse a reading
    of the curve without the point, there is one row with the reason in ``refused`` and no method.
    """
    rows = []
    for load in sorted(curve.points["load"].unique())[1:-1]:
        point = curve.by_load().set_index("load").loc[load]
        rest = replace(curve, points=curve.points[curve.points["load"] != load])
        for axis in ("speed", "throughput"):
            row = {"curve": curve.name, "load": load, "held": axis, "measured": point[other_axis(axis)]}
            try:
                rows += [row | found for found in _predict(ParametricCurve.from_curve(rest, curve.name), axis, point)]
            except Refused as reason:
                rows.append(row | {"refused": str(reason)})
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.assign(error=frame["predicted"].astype(float) / frame["measured"] - 1)


def leave_one_out_table(curves: Sequence[Curve]) -> pd.DataFrame:
    """Errors in percent over all curves, one row per method: points, bias (median), median and 90th percentile of the
    absolute error, largest. Every method is judged by the same points, those that the rules let be read."""
    known = pd.concat([leave_one_out(curve) for curve in curves]).dropna(subset="method")
    error = 100 * known["error"].astype(float)
    by_method = error.groupby(known["method"]), error.abs().groupby(known["method"])
    table = pd.DataFrame(
        {
            "points": by_method[0].size(),
            "bias (%)": by_method[0].median(),
            "median |error| (%)": by_method[1].median(),
            "p90 |error| (%)": by_method[1].quantile(0.9),
            "largest (%)": by_method[1].max(),
        }
    )
    return table.loc[[method for method in METHODS if method in table.index]].rename_axis("method").reset_index()


def _predict(rest: ParametricCurve, axis: Axis, point: pd.Series) -> list[dict]:
    target = float(point[axis])
    ours = read(rest, axis, target)
    predicted = {
        "parametric PCHIP": ours.value,
        "parametric PCHIP, three-point ends": _three_point_ends(rest, axis, target, ours.load),
        "PCHIP y(x)": _function_of_x(rest, axis, target),
        "linear": ours.linear,
        "log-log": ours.log_log,
    }
    return [{"method": method, "predicted": predicted[method], "refused": None} for method in METHODS]


def _three_point_ends(rest: ParametricCurve, axis: Axis, target: float, near: float) -> float:
    # Imported where it is needed, to keep every analysis command quick to start.
    from scipy.interpolate import PchipInterpolator

    held, moved = (PchipInterpolator(rest.log_loads, rest.logs[name]) for name in (axis, other_axis(axis)))
    roots = held.solve(np.log(target), extrapolate=False)
    if not len(roots):  # the target is an end point, to within rounding
        roots = [np.log(near)]
    return float(np.exp(moved(min(roots, key=lambda root: abs(root - np.log(near))))))


def _function_of_x(rest: ParametricCurve, axis: Axis, target: float) -> float:
    """The other axis as a PCHIP function of this one, the load forgotten; of equal values the first is kept."""
    from scipy.interpolate import PchipInterpolator

    x, kept = np.unique(rest.values[axis], return_index=True)
    return float(PchipInterpolator(x, rest.values[other_axis(axis)][kept])(target))
