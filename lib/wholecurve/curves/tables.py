"""Comparisons as tables for people: strings that keep a number, its interval and its operating point
together."""

import pandas as pd

from wholecurve.curves.compare import Comparison
from wholecurve.curves.cost import capacity_gain, cost_cut


def multiplier_text(
    value: float | None, low: float | None = None, high: float | None = None, n: int | None = None
) -> str:
    """'1.42× [1.38, 1.47]', or '1.42× (n = 1, no interval)', or 'not measured' without a value."""
    if value is None or pd.isna(value):
        return "not measured"
    if low is not None and not pd.isna(low):
        return f"{value:.2f}× [{low:.2f}, {high:.2f}]"
    return f"{value:.2f}×" if n is None else f"{value:.2f}× (n = {n}, no interval)"


def gain_text(multiplier: float) -> str:
    """'+120 % capacity, 54.5 % lower cost' for 2.2: capacity gain and cost cut, always both."""
    gain, cut = 100 * capacity_gain(multiplier), 100 * cost_cut(multiplier)
    return f"{gain:+.0f} % capacity, {abs(cut):.1f} % {'lower' if cut >= 0 else 'higher'} cost"


def direct_table(comparison: Comparison) -> pd.DataFrame:
    """One row per load: both direct ratios with intervals, B's operating point, verdict or reason."""
    rows = []
    for row in comparison.direct.itertuples():
        load = row.load_b if pd.notna(row.load_b) else row.load_a
        cells = {
            "load": f"{load:g}",
            "B's operating point": _point(row.speed, row.throughput),
            "throughput A/B": multiplier_text(row.ratio, row.low, row.high, row.n),
        }
        if comparison.a.has_speed:
            cells["speed A/B"] = multiplier_text(row.speed_ratio, row.speed_low, row.speed_high, row.n)
        rows.append(cells | {"verdict": _outcome(row)})
    return pd.DataFrame(rows)


def same_speed_table(comparison: Comparison) -> pd.DataFrame:
    """One row per speed: A's throughput over B's there, with bracket, floor and both operating points."""
    return _matched_table(comparison.same_speed)


def same_throughput_table(comparison: Comparison) -> pd.DataFrame:
    """One row per throughput: A's speed over B's there, with bracket, floor and both operating points."""
    return _matched_table(comparison.same_throughput)


def summary_table(comparison: Comparison) -> pd.DataFrame:
    """One row per multiplier: minimum, median, maximum with B's load, and how many rows were refused."""
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
        rows.append({"multiplier": name, **cells, "read": found["read"], "refused": found["refused"]})
    return pd.DataFrame(rows)


def _matched_table(frame: pd.DataFrame) -> pd.DataFrame:
    columns = [
        "load of B",
        "B's operating point",
        "matched load of A",
        "A's operating point",
        "A/B",
        "bracket",
        "at least",
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
                _outcome(row),
            )
        )
    return pd.DataFrame(rows, columns=columns)


def _point(speed: float, throughput: float) -> str:
    parts = [
        f"{value:.4g} {unit}"
        for value, unit in ((speed, "tok/s/user"), (throughput, "tok/s/device"))
        if not pd.isna(value)
    ]
    return ", ".join(parts)


def _loads(points: list[dict]) -> str:
    return " and ".join(f"{p['load_b']:g}" for p in points)


def _outcome(row) -> str:
    return row.verdict if row.refused is None or pd.isna(row.refused) else f"{row.verdict}: {row.refused}"
