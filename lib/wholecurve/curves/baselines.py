"""One contender against several baselines, and the composite "best baseline per reading", named as what it is."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from wholecurve.curves.compare import Comparison, compare, plain
from wholecurve.curves.curve import Curve
from wholecurve.curves.interpolate import Axis, ParametricCurve
from wholecurve.curves.multipliers import match
from wholecurve.curves.readings import frame_of
from wholecurve.errors import UserError

BEST_COLUMNS = ("multiplier", "load", "speed", "throughput", "ratio", "best", "read", "refused")


@dataclass(frozen=True)
class BaselineComparison:
    """A over each of several baselines, and over the best of them at every reading.

    ``best`` has one row per reading: multiplier ("direct", "direct_speed", "same_speed", "same_throughput"), the load,
    speed or throughput that is held, ratio (the smallest of A over the baselines that could be read), the baseline
    that gives it, read (how many could be read), and in refused the reasons of the others. There is no interval:
    which baseline is best depends on the same noise.
    """

    comparisons: list[Comparison]
    best: pd.DataFrame

    @property
    def label(self) -> str:
        """What ``best`` is, to be printed wherever it is shown."""
        return f"the better of {len(self.comparisons)} baselines per reading: a composite, no one baseline achieves all"

    def to_document(self) -> dict:
        """JSON values: every comparison as its own document, and the labelled composite."""
        composite = {"label": self.label, "rows": plain(self.best.astype(object).to_dict("records"))}
        return {"comparisons": [one.to_document() for one in self.comparisons], "best_baseline": composite}


def compare_many(a: Curve, baselines: Sequence[Curve], **arguments) -> BaselineComparison:
    """`compare` A with every baseline, with the same further ``arguments``, and with the best one per reading.

    The composite is read at every load of A (direct), and at every measured speed and throughput of every baseline
    and every stated one. Raises UserError for fewer than two baselines or two of one name, and as `compare` does.
    """
    _check_names([baseline.name for baseline in baselines])
    comparisons = [compare(a, baseline, **arguments) for baseline in baselines]
    return best_baseline(comparisons, arguments.get("at_speed", ()), arguments.get("at_throughput", ()))


def best_baseline(
    comparisons: Sequence[Comparison], at_speed: Sequence[float] = (), at_throughput: Sequence[float] = ()
) -> BaselineComparison:
    """The composite over comparisons of one contender with several baselines; raises UserError as `compare_many`."""
    _check_names([one.b.name for one in comparisons])
    a, baselines = comparisons[0].a, [one.b for one in comparisons]
    rows = _direct(comparisons, "ratio") + _direct(comparisons, "speed_ratio")
    if a.has_speed:
        for axis, stated in (("speed", at_speed), ("throughput", at_throughput)):
            rows += _matched(a, baselines, axis, stated)
    return BaselineComparison(list(comparisons), frame_of(rows, BEST_COLUMNS))


def _check_names(names: Sequence[str]) -> None:
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError(f"the baselines are {', '.join(names) or 'none'}; two or more with different names are needed")


def best_baseline_table(comparison: BaselineComparison) -> pd.DataFrame:
    """One row per reading; the caption is ``comparison.label``."""
    held = {"direct": "load", "direct_speed": "load", "same_speed": "speed", "same_throughput": "throughput"}
    names = {"direct": "direct, throughput", "direct_speed": "direct, speed"}
    rows = []
    for row in comparison.best.itertuples():
        column = held[row.multiplier]
        rows.append(
            {
                "multiplier": names.get(row.multiplier, row.multiplier.replace("_", " ")),
                "held": f"{column} {getattr(row, column):.4g}",
                "A over the best baseline": "not measured" if row.best is None else f"{row.ratio:.2f}×",
                "best baseline": row.best or "",
                "read": f"{row.read} of {len(comparison.comparisons)}",
                "not read": row.refused or "",
            }
        )
    return pd.DataFrame(rows)


def _direct(comparisons: Sequence[Comparison], column: str) -> list[dict]:
    """One row per load of A."""
    multiplier = "direct" if column == "ratio" else "direct_speed"
    frames = [(one.b.name, one.direct[~one.direct["stated"]].set_index("load_a")) for one in comparisons]
    loads = sorted({load for _, frame in frames for load in frame.index.dropna()})
    rows = []
    for load in loads if column == "ratio" or comparisons[0].a.has_speed else []:
        found = {
            name: (frame.loc[load, column], frame.loc[load, "refused"]) for name, frame in frames if load in frame.index
        }
        rows.append({"multiplier": multiplier, "load": load} | _best(found))
    return rows


def _matched(a: Curve, baselines: Sequence[Curve], axis: Axis, stated: Sequence[float]) -> list[dict]:
    """One row per measured value of ``axis`` of any baseline, and per stated one, descending."""
    of_a = ParametricCurve.from_curve(a, f"A ({a.name})")
    curves = {one.name: ParametricCurve.from_curve(one, one.name) for one in baselines}
    targets = {float(value) for curve in curves.values() for value in curve.values[axis]} | set(map(float, stated))
    rows = []
    for target in sorted(targets, reverse=True):
        matches = {name: match(of_a, curve, axis, target) for name, curve in curves.items()}
        found = {name: (one.row()["estimate"], one.refused) for name, one in matches.items()}
        rows.append({"multiplier": f"same_{axis}", axis: target} | _best(found))
    return rows


def _best(found: dict[str, tuple[float | None, str | None]]) -> dict:
    """The smallest ratio among those that were read, and why the others were not."""
    read = {name: ratio for name, (ratio, reason) in found.items() if reason is None}
    reasons = "; ".join(f"{name}: {reason}" for name, (_, reason) in found.items() if reason is not None)
    best = min(read, key=read.get) if read else None
    return {"ratio": read.get(best), "best": best, "read": len(read), "refused": reasons or None}
