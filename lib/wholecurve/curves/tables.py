"""Comparisons as tables for people: strings that keep a number, its interval and its operating point
together."""

import pandas as pd

from wholecurve.curves.compare import Comparison
from wholecurve.curves.costs.formulas import capacity_gain, cost_cut
from wholecurve.curves.multipliers import NO_DIFFERENCE, within_bound


def multiplier_text(
    value: float | None, low: float | None = None, high: float | None = None, n: int | None = None
) -> str:
    """'1.42× [1.38, 1.47]', '1.42× [1.38, open]', '1.42× (n = 1, no interval)', or 'not measured' without a value.

    An open end (low = 0, high infinite) lies beyond what was measured. Where an interval was read back from JSON, its
    infinite end is None and is open too.
    """
    if value is None or pd.isna(value):
        return "not measured"
    ends = [None if end is None or pd.isna(end) else end for end in (low, high)]
    if ends != [None, None]:
        return f"{value:.2f}× [{', '.join(_end_text(end) for end in ends)}]"
    return f"{value:.2f}×" if n is None else f"{value:.2f}× (n = {n}, no interval)"


def _end_text(end: float | None) -> str:
    return "open" if end is None or end == 0 or end == float("inf") else f"{end:.2f}"


def gain_text(multiplier: float) -> str:
    """'+120 % capacity, 54.5 % lower cost' for 2.2: capacity gain and cost cut, always both."""
    gain, cut = 100 * capacity_gain(multiplier), 100 * cost_cut(multiplier)
    return f"{gain:+.0f} % capacity, {abs(cut):.1f} % {'lower' if cut >= 0 else 'higher'} cost"


def direct_table(comparison: Comparison) -> pd.DataFrame:
    """One row per load: both direct ratios with intervals, B's operating point, verdict or reason."""
    rows, bound = [], _bound(comparison, "direct")
    for row in comparison.direct.itertuples():
        load = row.load_b if pd.notna(row.load_b) else row.load_a
        cells = {
            "load": f"{load:g}",
            "B's operating point": _point(row.speed, row.throughput),
            "throughput A/B": multiplier_text(row.ratio, row.low, row.high, row.n),
        }
        if comparison.a.has_speed:
            cells["speed A/B"] = multiplier_text(row.speed_ratio, row.speed_low, row.speed_high, row.n)
        rows.append(cells | {"verdict": _outcome(row, row.ratio, bound)})
    return pd.DataFrame(rows)


def same_speed_table(comparison: Comparison) -> pd.DataFrame:
    """One row per speed: A's throughput over B's there, with bracket, floor and both operating points."""
    return _matched_table(comparison.same_speed, _bound(comparison, "same_speed"))


def same_throughput_table(comparison: Comparison) -> pd.DataFrame:
    """One row per throughput: A's speed over B's there, with bracket, floor and both operating points."""
    return _matched_table(comparison.same_throughput, _bound(comparison, "same_throughput"))


def summary_table(comparison: Comparison) -> pd.DataFrame:
    """One row per multiplier: minimum, median, maximum with B's load, how many rows were refused, and the A/A bound
    where there is a control."""
    rows = []
    for key, name in (
        ("direct", "direct, throughput"),
        ("direct_speed", "direct, speed"),
        ("same_speed", "same speed"),
        ("same_throughput", "same throughput"),
    ):
        found = comparison.summary[key]
        cells = {
            part: "not measured"
            if found[part] is None
            else f"{multiplier_text(found[part]['value'])} at load {_loads(found[part]['points'])} of B"
            for part in ("min", "median", "max")
        }
        row = {"multiplier": name, **cells, "read": found["read"], "refused": found["refused"]}
        if comparison.summary["control"] is not None:
            bound = _bound(comparison, key)
            row["A/A control differs by up to"] = "not measured" if bound is None else f"{bound:.3f}×"
        rows.append(row)
    return pd.DataFrame(rows)


def _matched_table(frame: pd.DataFrame, bound: float | None) -> pd.DataFrame:
    columns = [
        "load of B",
        "B's operating point",
        "matched load of A",
        "A's operating point",
        "A/B",
        "bracket",
        "at least",
        "1 % moves it by",
        "resamples outside",
        "verdict",
    ]
    rows = []
    for row in frame.itertuples():
        bracket = "" if pd.isna(row.estimate) else f"{row.bracket_low:.2f}–{row.bracket_high:.2f}"
        rows.append(
            (
                "stated target" if pd.isna(row.load_b) else f"{row.load_b:g}",
                _point(row.speed, row.throughput),
                "" if pd.isna(row.load_a) else f"{row.load_a:.3g}",
                _point(row.speed_a, row.throughput_a),
                multiplier_text(row.estimate, row.low, row.high, row.n),
                bracket,
                "" if pd.isna(row.floor) else f"{row.floor:.2f}×",
                "" if pd.isna(row.sensitivity) else f"{row.sensitivity:.2g} %",
                "" if pd.isna(row.outside_share) else _share(row.outside_share),
                _outcome(row, row.estimate, bound),
            )
        )
    return pd.DataFrame(rows, columns=columns)


def _share(share: float) -> str:
    return "<1 %" if 0 < share < 0.01 else f"{share:.0%}".replace("%", " %")


def _bound(comparison: Comparison, multiplier: str) -> float | None:
    control = comparison.summary["control"]
    return control[multiplier]["bound"] if control and control[multiplier] else None


def _point(speed: float, throughput: float) -> str:
    parts = [
        f"{value:.4g} {unit}"
        for value, unit in ((speed, "tok/s/user"), (throughput, "tok/s/device"))
        if not pd.isna(value)
    ]
    return ", ".join(parts)


def _loads(points: list[dict]) -> str:
    return " and ".join(f"{p['load_b']:g}" for p in points)


def _outcome(row, value: float, bound: float | None) -> str:
    if row.refused is not None and not pd.isna(row.refused):
        return f"{row.verdict}: {row.refused}"
    if row.verdict == NO_DIFFERENCE and within_bound(value, bound):
        return f"{row.verdict}: within the A/A control ({bound:.3f}×)"
    return row.verdict
