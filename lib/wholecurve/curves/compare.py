"""Two curves side by side: the three multipliers, their summary, and what a reader must be warned of."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from wholecurve.curves.checks import warnings_for
from wholecurve.curves.curve import Curve
from wholecurve.curves.interpolate import Axis, ParametricCurve
from wholecurve.curves.multipliers import NOT_MEASURED, matched_row, verdict
from wholecurve.curves.uncertainty import by_repeat, matched_log_ratios, paired_log_ratios, t_interval
from wholecurve.errors import UserError

DIRECT_COLUMNS = (
    "load_a",
    "load_b",
    "speed",
    "throughput",
    "ratio",
    "low",
    "high",
    "n",
    "speed_ratio",
    "speed_low",
    "speed_high",
    "floor",
    "refused",
    "verdict",
)
MATCHED_COLUMNS = (
    "load_a",
    "load_b",
    "speed",
    "throughput",
    "speed_a",
    "throughput_a",
    "estimate",
    "low",
    "high",
    "n",
    "repeats_outside",
    "bracket_low",
    "bracket_high",
    "floor",
    "stated",
    "refused",
    "verdict",
)
TEXT_COLUMNS = ("refused", "verdict")


@dataclass(frozen=True)
class Comparison:
    """Curve A over curve B. Ratios above 1 mean that A is ahead; speeds in tok/s/user, throughputs in
    tok/s/device.

    direct: one row per load of either curve, A over B at equal load, interval over paired repeats.
    same_speed, same_throughput: one row per measured point of B, then one per stated target (``stated``);
    the operating point of B, the matched one of A, estimate, interval, bracket, floor, or the reason in
    ``refused``. summary: per multiplier minimum, median and maximum with their operating points. warnings:
    sentences.
    """

    a: Curve
    b: Curve
    direct: pd.DataFrame
    same_speed: pd.DataFrame
    same_throughput: pd.DataFrame
    summary: dict
    warnings: list[str]

    def to_document(self) -> dict:
        """The comparison as JSON values: names under "a" and "b", frames as lists of rows, NaN as None."""
        frames = {
            name: _plain(getattr(self, name).to_dict("records")) for name in ("direct", "same_speed", "same_throughput")
        }
        return {
            "a": self.a.name,
            "b": self.b.name,
            **frames,
            "summary": _plain(self.summary),
            "warnings": list(self.warnings),
        }


def compare(
    a: Curve, b: Curve, at_speed: Sequence[float] = (), at_throughput: Sequence[float] = (), confidence: float = 0.95
) -> Comparison:
    """The multipliers of A over B: direct, at the same speed, at the same throughput.

    The matched ones are read at every measured point of B, and at the targets ``at_speed`` [tok/s/user] and
    ``at_throughput`` [tok/s/device], where both curves are interpolated. Repeats are paired by number;
    those that only one curve has are left out with a warning. Prefill curves have no speed and give
    ``direct`` only. Raises UserError where the curves share no repeat, differ in kind of load, or a target
    or the confidence makes no sense.
    """
    _check_arguments(a, b, at_speed, at_throughput, confidence)
    shared = set(a.repeats) & set(b.repeats)
    used_a, used_b = a.only_repeats(shared), b.only_repeats(shared)
    direct = _direct(used_a, used_b, confidence)
    if a.has_speed:
        matched = {
            axis: _matched(used_a, used_b, axis, targets, confidence)
            for axis, targets in (("speed", at_speed), ("throughput", at_throughput))
        }
    else:
        matched = {axis: _frame([], MATCHED_COLUMNS) for axis in ("speed", "throughput")}
    summary = {
        "direct": summarise(direct, "ratio"),
        "direct_speed": summarise(direct, "speed_ratio"),
        "same_speed": summarise(matched["speed"], "estimate"),
        "same_throughput": summarise(matched["throughput"], "estimate"),
        "overlap_speed": _overlap(used_a, used_b, "speed"),
        "overlap_throughput": _overlap(used_a, used_b, "throughput"),
        "confidence": confidence,
    }
    return Comparison(a, b, direct, matched["speed"], matched["throughput"], summary, warnings_for(a, b, matched))


def summarise(frame: pd.DataFrame, column: str) -> dict:
    """Minimum, median and maximum of a multiplier over B's measured points, each with its operating points.

    The median of an even number is the geometric mean of the middle two and carries both points. ``read``
    and ``refused`` count rows; ``verdicts`` counts what the rows with an answer say (of the throughput
    ratio in ``direct``).
    """
    rows = frame[~frame["stated"].astype(bool)] if "stated" in frame else frame
    known = rows[rows[column].notna()].sort_values(column, kind="stable")
    result = {
        "read": len(known),
        "refused": int(rows["refused"].notna().sum()),
        "min": None,
        "median": None,
        "max": None,
        "verdicts": known["verdict"].value_counts().to_dict(),
    }
    if len(known):
        middle = known.iloc[(len(known) - 1) // 2 : len(known) // 2 + 1]
        for name, picked in (("min", known.iloc[:1]), ("median", middle), ("max", known.iloc[-1:])):
            result[name] = {
                "value": float(np.exp(np.log(picked[column]).mean())),
                "points": picked[["load_a", "load_b", "speed", "throughput"]].to_dict("records"),
            }
    return result


def _check_arguments(a: Curve, b: Curve, at_speed, at_throughput, confidence: float) -> None:
    if a.load_kind != b.load_kind:
        raise UserError(
            f"{a.name} is measured over {a.load_kind}, {b.name} over {b.load_kind}; "
            "curves over the same kind of load can be compared"
        )
    if not set(a.repeats) & set(b.repeats):
        raise UserError(
            f"{a.name} has repeats {a.repeats}, {b.name} has {b.repeats}; repeats are paired "
            "by number, so the two need at least one in common"
        )
    if not 0 < confidence < 1:
        raise UserError(f"confidence is {confidence}; a number between 0 and 1 is needed, 0.95 for 95 %")
    for axis, targets in (("speed", at_speed), ("throughput", at_throughput)):
        if not a.has_speed and len(targets):
            raise UserError(f"a target {axis} was given, but prefill curves have no speed to match")
        for target in targets:
            if not 0 < target < math.inf:
                raise UserError(f"target {axis} is {target}; a finite number above 0 is needed")


def _direct(a: Curve, b: Curve, confidence: float) -> pd.DataFrame:
    loads_a, loads_b = set(a.points["load"]), set(b.points["load"])
    of_b = b.by_load().set_index("load")
    return _frame(
        [
            _direct_row(a, b, of_b, load, load in loads_a, load in loads_b, confidence)
            for load in sorted(loads_a | loads_b)
        ],
        DIRECT_COLUMNS,
    )


def _direct_row(a: Curve, b: Curve, of_b: pd.DataFrame, load: float, in_a: bool, in_b: bool, confidence: float) -> dict:
    row = {"load_a": load if in_a else None, "load_b": load if in_b else None, "n": 0, "verdict": NOT_MEASURED}
    if in_b:
        row |= {"speed": of_b.loc[load, "speed"], "throughput": of_b.loc[load, "throughput"]}
    logs = paired_log_ratios(a, b, load, "throughput")
    if not logs:
        without = "A (" + a.name + ")" if not in_a else "B (" + b.name + ")" if not in_b else None
        reason = (
            f"{without} was not measured at load {load:g}"
            if without
            else f"no repeat was measured at load {load:g} on both"
        )
        return row | {"refused": reason}
    ratio = math.exp(np.mean(logs))
    low, high = t_interval(logs, ratio, confidence)
    row |= {"ratio": ratio, "low": low, "high": high, "n": len(logs), "verdict": verdict(ratio, [(low, high)], logs)}
    if a.has_speed:
        speed_logs = paired_log_ratios(a, b, load, "speed")
        row["speed_ratio"] = math.exp(np.mean(speed_logs))
        row["speed_low"], row["speed_high"] = t_interval(speed_logs, row["speed_ratio"], confidence)
    return row


def _matched(a: Curve, b: Curve, axis: Axis, targets: Iterable[float], confidence: float) -> pd.DataFrame:
    name_a, name_b = f"A ({a.name})", f"B ({b.name})"
    mean_a, mean_b = ParametricCurve.from_curve(a, name_a), ParametricCurve.from_curve(b, name_b)
    repeats_a, repeats_b = by_repeat(a, name_a), by_repeat(b, name_b)
    rows = []
    for point in b.by_load().itertuples():
        row = matched_row(mean_a, mean_b, axis, getattr(point, axis))
        row |= {"load_b": point.load, "speed": point.speed, "throughput": point.throughput, "stated": False}
        rows.append(
            row | _with_repeats(row, matched_log_ratios(repeats_a, repeats_b, axis, load_b=point.load), confidence)
        )
    for target in targets:
        row = matched_row(mean_a, mean_b, axis, target) | {"stated": True}
        rows.append(row | _with_repeats(row, matched_log_ratios(repeats_a, repeats_b, axis, target=target), confidence))
    return _frame(rows, MATCHED_COLUMNS)


def _with_repeats(row: dict, repeats: tuple[list[float], int], confidence: float) -> dict:
    estimate = row["estimate"]
    if estimate is None:
        return {"low": None, "high": None, "n": 0, "repeats_outside": 0, "verdict": NOT_MEASURED}
    logs, outside = repeats
    low, high = t_interval(logs, estimate, confidence)
    spans = [(low, high), (row["bracket_low"], row["bracket_high"])]
    return {
        "low": low,
        "high": high,
        "n": len(logs),
        "repeats_outside": outside,
        "verdict": verdict(estimate, spans, logs),
    }


def _frame(rows: list[dict], columns: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(columns))
    for column in columns:
        if column in TEXT_COLUMNS:
            frame[column] = frame[column].astype(object).where(frame[column].notna(), None)
        elif column == "stated":
            frame[column] = frame[column].astype(bool)
        elif column in ("n", "repeats_outside"):
            frame[column] = frame[column].astype(int)
        else:
            frame[column] = frame[column].astype(float)
    return frame


def _overlap(a: Curve, b: Curve, axis: Axis) -> list[float] | None:
    """[lowest, highest] value of ``axis`` that both curves reach; None where they share nothing."""
    of_a, of_b = a.by_load()[axis], b.by_load()[axis]
    low, high = max(of_a.min(), of_b.min()), min(of_a.max(), of_b.max())
    return [float(low), float(high)] if low <= high else None


def _plain(value):
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
