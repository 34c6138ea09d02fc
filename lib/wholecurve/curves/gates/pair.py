"""What a reader must know before believing a comparison: the gates of both curves, and what sets them apart."""

from collections.abc import Mapping

import pandas as pd

from wholecurve.curves.curve import Curve
from wholecurve.curves.gates.findings import Finding, values_text
from wholecurve.curves.gates.one_curve import check_curve

# Fewer resamples than lie beyond the ends of the interval cannot open one.
OUTSIDE_SHARE = 0.025


def warnings_for(a: Curve, b: Curve, matched: Mapping[str, pd.DataFrame]) -> list[str]:
    """Named warnings about two curves as given, and about the rows matched by "speed" and "throughput"."""
    found = check_curve(f"A ({a.name})", a) + check_curve(f"B ({b.name})", b)
    return [str(finding) for finding in (*found, *_sides(a, b), *_loads(a, b), *_outside(matched))]


def _sides(a: Curve, b: Curve) -> list[Finding]:
    texts = {
        "device_kind": ("mixed-denominators", "per-device numbers differ: {a} is per {va}, {b} per {vb}"),
        "devices": ("device-counts", "{a} runs on {va} devices, {b} on {vb}: throughput is per device, speed is not"),
        "source": ("sources-differ", "{a} is {va}, {b} is {vb}"),
        "window": ("windows-differ", "throughput of {a} is over the {va} window, of {b} over the {vb} one"),
    }
    found = []
    for column, (gate, text) in texts.items():
        if column in a.points and column in b.points:
            of_a, of_b = (values_text(curve.points[column].dropna().unique()) for curve in (a, b))
            if of_a != of_b:
                names = {"a": f"A ({a.name})", "b": f"B ({b.name})", "va": of_a, "vb": of_b}
                found.append(Finding(gate, text.format(**names)))
    return found


def _loads(a: Curve, b: Curve) -> list[Finding]:
    of_a, of_b, found = set(a.points["load"]), set(b.points["load"]), []
    if of_a != of_b:
        found.append(
            Finding(
                "loads-differ",
                f"only A ({a.name}) has {values_text(of_a - of_b)}, only B ({b.name}) has {values_text(of_b - of_a)}; "
                f"direct ratios exist at {values_text(of_a & of_b)}",
            )
        )
    if set(a.repeats) != set(b.repeats):
        shared = set(a.repeats) & set(b.repeats)
        found.append(
            Finding(
                "unpaired-repeats",
                f"repeats are paired by number: A has {values_text(a.repeats)}, B has {values_text(b.repeats)}; "
                f"only {values_text(shared)} is used",
            )
        )
    return found


def _outside(matched: Mapping[str, pd.DataFrame]) -> list[Finding]:
    found = []
    for axis, rows in matched.items():
        for row in rows[rows["outside_share"] > OUTSIDE_SHARE].itertuples():
            found.append(
                Finding(
                    "outside-overlap",
                    f"same {axis} at {getattr(row, axis):.4g}: {row.outside_share:.0%} of the resamples leave the "
                    f"overlap ({row.repeats_outside} of {row.n} repeats do); an end of the interval among them is open",
                )
            )
    return found
