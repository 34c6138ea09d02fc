"""Which contender leads where: per measure and load, the one that is asked about against the best of the others."""

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from wholecurve.curves.multipliers import MIN_REPEATS, NO_DIFFERENCE, NOT_MEASURED, UNDECIDED
from wholecurve.curves.uncertainty import t_interval
from wholecurve.figures.serving import SERVING_PANELS, Measure, measure_of

COLUMNS = ("measure", "load", "ours", "best other", "its median", "ahead", "interval", "repeats ahead", "says")


def lead_table(
    points: pd.DataFrame,
    ours: str,
    left_out: Iterable[str] = (),
    measures: Sequence[str] = SERVING_PANELS,
    confidence: float = 0.95,
) -> pd.DataFrame:
    """One row per measure and load: the median of `ours`, the best other contender's, and how far ours is ahead.

    `ahead` is above 1 where ours is better: its value over the other's where more is better, the other's over its own
    where less is. The interval is a t interval over log ratios paired by repeat; below three repeats there is none and
    nothing is decided. Where it contains 1 no difference is shown. `left_out`: controls, and other configurations of
    the same engine. The best other contender may change from row to row, so this is a composite, as hard on `ours` as
    it can be.
    """
    rows = []
    others = points[~points["contender"].isin([ours, *left_out])]
    for name in measures:
        measure = measure_of(name)
        for load in sorted(points["load"].unique()):
            mine = _by_repeat(points, measure, ours, load)
            rows.append({"measure": name, "load": f"{load:g}", **_row(mine, others, measure, load, ours, confidence)})
    return pd.DataFrame(rows, columns=COLUMNS)


def lead_sentences(table: pd.DataFrame) -> list[str]:
    """'TTFT: A leads at 1, 2; B leads at 4; no difference shown at 8', one sentence per measure of a `lead_table`."""
    sentences = []
    for name, rows in table.groupby("measure", sort=False):
        parts = [f"{says} at {', '.join(group['load'])}" for says, group in rows.groupby("says", sort=False)]
        sentences.append(f"{name}: {'; '.join(parts)}")
    return sentences


def _by_repeat(points: pd.DataFrame, measure: Measure, name: str, load: float) -> pd.Series:
    rows = points[(points["contender"] == name) & (points["load"] == load)]
    return measure.of(rows).set_axis(rows["repeat"]).dropna()


def _row(
    mine: pd.Series, others: pd.DataFrame, measure: Measure, load: float, ours: str, confidence: float
) -> dict[str, str]:
    found = {name: _by_repeat(others, measure, name, load) for name in dict.fromkeys(others["contender"])}
    medians = {name: values.median() for name, values in found.items() if len(values)}
    best = (max if measure.higher_is_better else min)(medians, key=medians.get) if medians else None
    row = {"ours": _text(mine.median()) if len(mine) else "–", "best other": best or "–"}
    row["its median"] = _text(medians[best]) if best else "–"
    if best is None or mine.empty:
        return row | {"ahead": "–", "interval": "–", "repeats ahead": "–", "says": NOT_MEASURED}
    sign = 1 if measure.higher_is_better else -1
    both = sorted(set(mine.index) & set(found[best].index))
    logs = [sign * math.log(mine[repeat] / found[best][repeat]) for repeat in both]
    ahead = (mine.median() / medians[best]) ** sign
    low, high = t_interval(logs, ahead, confidence)
    says = UNDECIDED if low is None else f"{ours} leads" if low > 1 else f"{best} leads" if high < 1 else NO_DIFFERENCE
    return row | {
        "ahead": f"{ahead:.2f}×",
        "interval": f"n < {MIN_REPEATS}" if low is None else f"{_end(low)}–{_end(high)}",
        "repeats ahead": f"{sum(log > 0 for log in logs)} of {len(logs)}",
        "says": says,
    }


def _end(value: float) -> str:
    # An end beside 1 must show on which side it lies, or the verdict seems to contradict it.
    return f"{value:.4f}" if f"{value:.2f}" == "1.00" else f"{value:.2f}"


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
