"""What a reader must know before believing a comparison: one sentence per finding."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from wholecurve.curves.curve import Curve

OCCUPANCY_LOW, OCCUPANCY_HIGH = 0.5, 1.05


def warnings_for(a: Curve, b: Curve, matched: Mapping[str, pd.DataFrame]) -> list[str]:
    """Warnings about two curves as given, and about the rows matched by "speed" and "throughput"."""
    found = []
    for side, curve in (("A", a), ("B", b)):
        label = f"{side} ({curve.name})"
        found += _single_runs(label, curve) + _occupancy(label, curve) + _failures(label, curve)
        found += _shape(label, curve)
        if "devices" in curve.points and curve.points["devices"].nunique() > 1:
            found.append(
                f"{label} mixes numbers of devices ({_values(curve, 'devices')}): its points are "
                "different configurations, so this is a frontier, not one configuration's curve"
            )
    return found + _denominators(a, b) + _different_loads(a, b) + _repeats_outside(matched)


def _single_runs(label: str, curve: Curve) -> list[str]:
    counts = curve.points.groupby("load").size()
    single = counts[counts == 1].index
    if not len(single):
        return []
    where = "every load" if len(single) == len(counts) else f"load {_list(single)}"
    return [f"{label} has a single run at {where}: n = 1, no interval, and nothing says how much of a ratio is noise"]


def _occupancy(label: str, curve: Curve) -> list[str]:
    if not curve.has_speed or curve.load_kind != "concurrency":
        return []
    points = curve.points
    devices = points["devices"].astype(float) if "devices" in points else 1.0
    derived = points["throughput"] * devices / (points["load"] * points["speed"])
    recorded = pd.to_numeric(points["occupancy"], errors="coerce") if "occupancy" in points else derived
    occupancy = recorded.where(recorded.notna(), derived).groupby(points["load"]).median()
    high, low = occupancy[occupancy > OCCUPANCY_HIGH], occupancy[occupancy < OCCUPANCY_LOW]
    found = []
    if len(high):
        found.append(
            f"{label} has occupancy {high.max():.2f} at load {high.idxmax():g} (above "
            f"{OCCUPANCY_HIGH} at load {_list(high.index)}): more tokens than concurrency × speed "
            "allows, so something is counted wrongly"
        )
    if len(low):
        found.append(
            f"{label} has occupancy {low.min():.2f} at load {low.idxmin():g} (below "
            f"{OCCUPANCY_LOW} at load {_list(low.index)}): time goes to prefill or queueing, so "
            "speed and throughput ratios differ"
        )
    return found


def _failures(label: str, curve: Curve) -> list[str]:
    if "n_failed" not in curve.points:
        return []
    counts = pd.to_numeric(curve.points["n_failed"], errors="coerce").fillna(0)
    failed = counts.groupby(curve.points["load"]).sum()
    failed = failed[failed > 0]
    return (
        [
            f"{label} has {int(failed.sum())} failed requests (load {_list(failed.index)}): "
            "latencies are those of the survivors"
        ]
        if len(failed)
        else []
    )


def _shape(label: str, curve: Curve) -> list[str]:
    rows = curve.by_load()
    found = []
    if curve.has_speed and (np.diff(rows["speed"]) > 0).any():
        found.append(
            f"{label} is not monotone: speed rises with load at load "
            f"{_list(rows['load'][1:][np.diff(rows['speed']) > 0])}"
        )
    # Prefill throughput falls with the step by nature: attention grows with its square.
    if curve.has_speed and (np.diff(rows["throughput"]) < 0).any():
        found.append(
            f"{label} is not monotone: throughput falls with load at load "
            f"{_list(rows['load'][1:][np.diff(rows['throughput']) < 0])}"
        )
    return found


def _denominators(a: Curve, b: Curve) -> list[str]:
    found = []
    texts = {
        "device_kind": "per-device numbers have mixed denominators: {a} is per {va}, {b} per {vb}",
        "devices": "{a} runs on {va} devices, {b} on {vb}: throughput is per device, speed is not",
        "source": "sources differ: {a} is {va}, {b} is {vb}",
        "window": "windows differ: throughput of {a} is over the {va} window, of {b} over the {vb} one",
    }
    for column, text in texts.items():
        if column in a.points and column in b.points and _values(a, column) != _values(b, column):
            found.append(
                text.format(a=f"A ({a.name})", b=f"B ({b.name})", va=_values(a, column), vb=_values(b, column))
            )
    return found


def _different_loads(a: Curve, b: Curve) -> list[str]:
    of_a, of_b = set(a.points["load"]), set(b.points["load"])
    found = []
    if of_a != of_b:
        found.append(
            f"the loads differ: only A ({a.name}) has {_list(of_a - of_b)}, "
            f"only B ({b.name}) has {_list(of_b - of_a)}; direct ratios exist at "
            f"{_list(of_a & of_b)}"
        )
    if set(a.repeats) != set(b.repeats):
        shared = set(a.repeats) & set(b.repeats)
        found.append(
            f"repeats are paired by number: A has {_list(a.repeats)}, B has {_list(b.repeats)}; "
            f"only {_list(shared)} is used"
        )
    return found


def _repeats_outside(matched: Mapping[str, pd.DataFrame]) -> list[str]:
    found = []
    for axis, rows in matched.items():
        for row in rows[rows["repeats_outside"] > 0].itertuples():
            total = row.repeats_outside + row.n
            found.append(
                f"same {axis} at {getattr(row, axis):.4g}: {row.repeats_outside} of {total} "
                f"repeats leave the overlap ({row.repeats_outside / total:.0%}); "
                "the interval is of the others"
            )
    return found


def _values(curve: Curve, column: str) -> str:
    return _list(curve.points[column].dropna().unique())


def _list(values) -> str:
    return ", ".join(str(v) if isinstance(v, str) else f"{v:g}" for v in sorted(values)) or "none"
