"""Published numbers as tidy frames for figures and tables."""

from collections.abc import Iterable

import pandas as pd

from wholecurve.curves.claims.checks.baseline import handicaps
from wholecurve.curves.claims.nouns import MULTIPLIER_UNITS, Number, Published
from wholecurve.errors import UserError

COMPARED = ("direct", "same speed", "same throughput", "self", "ratio")


def published_ratios(published: Published, document: str | None = None) -> pd.DataFrame:
    """One row per published multiplier at one load.

    Columns: id, document, who, against, metric, framing, approximate, n, model, hardware, precision, line,
    load_kind, load, and ratio with low and high, the interval of its printed digits. "21% more" is the ratio
    1.21 and "38% shorter" 0.62, so that a gain in a latency lies below 1. Numbers that only print another one
    again are left out.
    """
    rows = []
    for number in _first_prints(published, document):
        if _compares(number) and number.load:
            kind, load = number.load
            rows.append(_row(number) | {"load_kind": kind, "load": float(load)} | _span(number))
    columns = [*_ROW, "load_kind", "load", "ratio", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def framing_table(published: Published, document: str | None = None) -> pd.DataFrame:
    """One row per published comparison: who over whom, in which metric, by which framing.

    Columns: document, who, against, metric, framing, model, hardware, precision, n, operating_point, lowest and
    highest multiplier, printed (their digits), bound. All loads of one comparison are one row; `lowest` is empty
    (NaN) where only an upper end is printed.
    """
    groups: dict[tuple, list[Number]] = {}
    for number in _first_prints(published, document):
        if _compares(number):
            groups.setdefault(tuple(getattr(number, name) for name in _SHARED), []).append(number)
    rows = []
    for shared, numbers in groups.items():
        low, high = min(numbers, key=_factor), max(numbers, key=_factor)
        rows.append(
            dict(zip(_SHARED, shared))
            | {
                "n": _distinct(number.n for number in numbers),
                "operating_point": _distinct(number.operating_point for number in numbers),
                "lowest": None if high is low and high.bound == "up to" else _factor(low),
                "highest": _factor(high),
                "printed": high.text if low is high else f"{low.text}–{high.text}",
                "bound": high.bound,
            }
        )
    columns = [*_SHARED, "n", "operating_point", "lowest", "highest", "printed", "bound"]
    return pd.DataFrame(rows, columns=columns).astype({"lowest": float, "highest": float})


def baseline_handicap(published: Published, run: str, as_published: str) -> pd.DataFrame:
    """One row per load: ratio to the baseline as run, ratio to it as published, and what that says of the baseline.

    `run` and `as_published` are two values of the column `against`. Columns: load_kind, load, ratio_run,
    ratio_published, baseline_run_over_published with its low and high. Raises UserError when the two do not
    stand at the same loads.
    """
    sides = [_at_loads(published, against) for against in (run, as_published)]
    loads = {n.operating_point for n in sides[1]}
    of_run = tuple(n for n in sides[0] if n.operating_point in loads)
    rows = [
        {
            "load_kind": a.load[0],
            "load": float(a.load[1]),
            "ratio_run": _factor(a),
            "ratio_published": _factor(b),
            "baseline_run_over_published": float(share.value),
            "low": float(share.interval.low),
            "high": float(share.interval.high),
        }
        for a, b, share in handicaps(of_run, sides[1])
    ]
    return pd.DataFrame(rows).sort_values("load", ignore_index=True)


_ROW = (
    "id", "document", "who", "against", "metric", "framing", "approximate", "n", "model", "hardware", "precision",
    "line",
)  # fmt: skip
_SHARED = ("document", "who", "against", "metric", "framing", "model", "hardware", "precision")


def _compares(number: Number) -> bool:
    return number.framing in COMPARED and number.unit in MULTIPLIER_UNITS


def _at_loads(published: Published, against: str) -> tuple[Number, ...]:
    first = _first_prints(published, None)
    numbers = tuple(n for n in first if n.against == against and _compares(n) and n.load)
    if not numbers:
        raise UserError(f"no multiplier at a load is against {against!r}")
    return numbers


def _row(number: Number) -> dict:
    return {name: getattr(number, name) for name in _ROW}


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, texts)))


def _span(number: Number) -> dict:
    factor = number.multiplier
    return {"ratio": float(factor.value), "low": float(factor.interval.low), "high": float(factor.interval.high)}


def _factor(number: Number) -> float:
    return float(number.multiplier.value)


def _first_prints(published: Published, document: str | None) -> Iterable[Number]:
    if document is not None and document not in published.documents:
        raise UserError(f"there is no document {document!r}; there is {', '.join(published.documents)}")
    return [n for n in published.numbers.values() if not n.repeats and (document is None or n.document == document)]
