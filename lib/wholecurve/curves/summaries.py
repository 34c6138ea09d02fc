"""What the rows of a comparison say together: minimum, median, maximum, the overlap, and the noise of a control."""

import math

import numpy as np
import pandas as pd

from wholecurve.curves.curve import Curve
from wholecurve.curves.interpolate import Axis
from wholecurve.curves.readings import Bounds

# Each multiplier of a comparison: its frame and the column that holds it.
MULTIPLIERS = {
    "direct": ("direct", "ratio"),
    "direct_speed": ("direct", "speed_ratio"),
    "same_speed": ("same_speed", "estimate"),
    "same_throughput": ("same_throughput", "estimate"),
}


def summarise(frame: pd.DataFrame, column: str) -> dict:
    """Minimum, median and maximum of a multiplier over B's measured points, each with its operating points.

    The median of an even number is the geometric mean of the middle two and carries both points. ``read``
    and ``refused`` count rows; ``verdicts`` counts what the rows with an answer say. Stated targets do not count.
    """
    rows = frame[~frame["stated"].astype(bool)] if "stated" in frame else frame
    known = rows[rows[column].notna()].sort_values(column, kind="stable")
    says = "speed_verdict" if column == "speed_ratio" else "verdict"
    result = {
        "read": len(known),
        "refused": int(rows["refused"].notna().sum()),
        "min": None,
        "median": None,
        "max": None,
        "verdicts": known[says].value_counts().to_dict(),
    }
    if len(known):
        middle = known.iloc[(len(known) - 1) // 2 : len(known) // 2 + 1]
        for name, picked in (("min", known.iloc[:1]), ("median", middle), ("max", known.iloc[-1:])):
            result[name] = {
                "value": float(np.exp(np.log(picked[column]).mean())),
                "points": picked[["load_a", "load_b", "speed", "throughput"]].to_dict("records"),
            }
    return result


def overlap(a: Curve, b: Curve, axis: Axis) -> list[float] | None:
    """[lowest, highest] value of ``axis`` that both curves reach; None where they share nothing."""
    of_a, of_b = a.by_load()[axis], b.by_load()[axis]
    low, high = max(of_a.min(), of_b.min()), min(of_a.max(), of_b.max())
    return [float(low), float(high)] if low <= high else None


def control_summary(control) -> dict:
    """How far a control (a `Comparison` of one contender with itself) lies from 1, per multiplier.

    For each: ``low`` and ``high``, the least and the greatest ratio over all points, and ``bound``, exp(max |log
    ratio|); None where the control has no reading of it. ``name`` says what was compared.
    """
    found = {"name": f"{control.a.name} over {control.b.name}"}
    for name, (frame, column) in MULTIPLIERS.items():
        rows = getattr(control, frame)
        logs = np.log(rows.loc[~rows["stated"], column].dropna().to_numpy(float))
        found[name] = None
        if len(logs):
            low, high = float(logs.min()), float(logs.max())
            found[name] = {"low": math.exp(low), "high": math.exp(high), "bound": math.exp(max(-low, high))}
    return found


def bounds_of(control: dict | None) -> Bounds:
    """The bounds in a `control_summary`; all unknown without one."""
    if control is None:
        return Bounds()
    return Bounds(**{name: control[name] and control[name]["bound"] for name in MULTIPLIERS})
