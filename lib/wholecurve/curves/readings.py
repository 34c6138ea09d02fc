"""Rows of a comparison: the direct ratios, and the multipliers matched by speed or by throughput."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from wholecurve.curves.bootstrap import Requests, Resampler, percentile_interval
from wholecurve.curves.curve import Curve
from wholecurve.curves.interpolate import Axis, ParametricCurve, other_axis
from wholecurve.curves.multipliers import MIN_REPEATS, NOT_MEASURED, Match, match, verdict
from wholecurve.curves.uncertainty import by_repeat, matched_log_ratios, paired_log_ratios, t_interval

DIRECT_COLUMNS = (
    *("load_a", "load_b", "speed", "throughput", "ratio", "low", "high", "n"),
    *("speed_ratio", "speed_low", "speed_high", "floor", "stated", "refused", "verdict", "speed_verdict"),
)
MATCHED_COLUMNS = (
    *("load_a", "load_b", "speed", "throughput", "speed_a", "throughput_a", "estimate", "low", "high", "n"),
    *("repeats_outside", "outside_share", "linear", "log_log", "bracket_low", "bracket_high", "floor"),
    *("sensitivity", "stated", "refused", "verdict"),
)
_TEXT = (
    "refused",
    "verdict",
    "speed_verdict",
    "multiplier",
    "best",
    "configuration_b",
    "between_a",
    "floor_configuration_a",
)
_COUNTS = ("n", "n_b", "read", "repeats_outside")


@dataclass(frozen=True)
class Bounds:
    """How far the same contender measured twice lies from itself, as a factor >= 1 per multiplier; None: unknown."""

    direct: float | None = None
    direct_speed: float | None = None
    same_speed: float | None = None
    same_throughput: float | None = None


def direct_rows(a: Curve, b: Curve, at: Sequence[float], confidence: float, bounds: Bounds) -> pd.DataFrame:
    """One row per load of either curve, then one per load in ``at`` (``stated``), measured or refused."""
    loads = sorted(set(a.points["load"]) | set(b.points["load"]))
    of_b = b.by_load().set_index("load")
    rows = [_direct_row(a, b, of_b, load, confidence, bounds) | {"stated": False} for load in loads]
    rows += [_direct_row(a, b, of_b, load, confidence, bounds) | {"stated": True, "load_b": load} for load in at]
    return frame_of(rows, DIRECT_COLUMNS)


def _direct_row(a: Curve, b: Curve, of_b: pd.DataFrame, load: float, confidence: float, bounds: Bounds) -> dict:
    in_a, in_b = ((curve.points["load"] == load).any() for curve in (a, b))
    row = {"load_a": load if in_a else None, "load_b": load if in_b else None, "n": 0, "verdict": NOT_MEASURED}
    if in_b:
        row |= {"speed": of_b.loc[load, "speed"], "throughput": of_b.loc[load, "throughput"]}
    logs = paired_log_ratios(a, b, load, "throughput")
    if not logs:
        without = [f"{side} ({c.name})" for side, c, there in (("A", a, in_a), ("B", b, in_b)) if not there]
        reasons = [f"{who} was not measured at load {load:g}" for who in without]
        return row | {"refused": "; ".join(reasons) or f"no repeat was measured at load {load:g} on both"}
    ratio = math.exp(np.mean(logs))
    low, high = t_interval(logs, ratio, confidence)
    says = verdict(ratio, (low, high), log_ratios=logs, bound=bounds.direct)
    row |= {"ratio": ratio, "low": low, "high": high, "n": len(logs), "verdict": says}
    if a.has_speed:
        logs = paired_log_ratios(a, b, load, "speed")
        ratio = math.exp(np.mean(logs))
        low, high = t_interval(logs, ratio, confidence)
        says = verdict(ratio, (low, high), log_ratios=logs, bound=bounds.direct_speed)
        row |= {"speed_ratio": ratio, "speed_low": low, "speed_high": high, "speed_verdict": says}
    return row


class MatchedReader:
    """Reads both matched multipliers of A over B; one set of resamples serves all readings."""

    def __init__(
        self,
        a: Curve,
        b: Curve,
        confidence: float,
        bounds: Bounds,
        resampler: Resampler,
        requests: tuple[Requests | None, Requests | None] = (None, None),
    ):
        self._confidence, self._bounds = confidence, bounds
        names, means = (f"A ({a.name})", f"B ({b.name})"), (a.by_load(), b.by_load())
        self._name_b, self._points_b = names[1], means[1]
        self._a, self._b = (
            ParametricCurve(name, rows["load"], rows["speed"], rows["throughput"])
            for name, rows in zip(names, means, strict=True)
        )
        self._repeats = tuple(by_repeat(c, name) for c, name in zip((a, b), names, strict=True))
        self._runs = tuple(dict(zip(rows["load"], rows["repeats"], strict=True)) for rows in means)
        self._resampled = None
        if min(max(runs.values()) for runs in self._runs) >= MIN_REPEATS:
            self._resampled = tuple(resampler.curves(c, r) for c, r in zip((a, b), requests, strict=True))

    def rows(self, axis: Axis, targets: Iterable[float], at: Iterable[float]) -> pd.DataFrame:
        """One row per measured point of B; then, ``stated``, one per target value and one per load of B in ``at``."""
        rows = [self._at_point(axis, point) | {"stated": False} for point in self._points_b.itertuples()]
        for target in targets:
            found = match(self._a, self._b, axis, target)
            rows.append(found.row() | self._spread(found, None) | {"stated": True})
        for load in at:
            there = self._points_b[self._points_b["load"] == load]
            row = self._at_point(axis, next(there.itertuples())) if len(there) else self._unmeasured(load)
            rows.append(row | {"stated": True})
        return frame_of(rows, MATCHED_COLUMNS)

    def _at_point(self, axis: Axis, point) -> dict:
        found = match(self._a, self._b, axis, getattr(point, axis))
        row = found.row() | {"load_b": point.load, "speed": point.speed, "throughput": point.throughput}
        return row | self._spread(found, point.load)

    def _unmeasured(self, load: float) -> dict:
        reason = f"{self._name_b} was not measured at load {load:g}; a speed or a throughput can be read between points"
        return {"load_b": load, "n": 0, "repeats_outside": 0, "refused": reason, "verdict": NOT_MEASURED}

    def _spread(self, found: Match, load_b: float | None) -> dict:
        """Interval, runs behind it, and verdict; ``load_b`` is B's measured point, None where B is interpolated."""
        if found.refused is not None:
            return {"n": 0, "repeats_outside": 0, "verdict": NOT_MEASURED}
        row, axis = found.row(), found.axis
        where = {"target": found.target} if load_b is None else {"load_b": load_b}
        logs, outside = matched_log_ratios(*self._repeats, axis, **where)
        at_b = found.of_b.neighbours if load_b is None else (load_b,)
        n = int(min(runs[load] for runs, at in zip(self._runs, (found.of_a.neighbours, at_b)) for load in at))
        low = high = share = None
        if n >= MIN_REPEATS:
            resampled = self._resample(found, load_b)
            low, high, share = percentile_interval(resampled, row["estimate"], self._confidence)
        bracket, bound = (row["bracket_low"], row["bracket_high"]), getattr(self._bounds, f"same_{axis}")
        says = verdict(row["estimate"], (low, high), bracket, logs, bound)
        spread = {"low": low, "high": high, "n": n, "repeats_outside": outside, "outside_share": share}
        return spread | {"verdict": says}

    def _resample(self, found: Match, load_b: float | None) -> np.ndarray:
        """The multiplier's logarithm in every resample; at a measured point of B its operating point moves along."""
        of_a, of_b = self._resampled
        axis, other = found.axis, other_axis(found.axis)
        if load_b is None:
            held = math.log(found.target)
            base = of_b.read(axis, held, math.log(found.of_b.load))
        else:
            at = int(np.flatnonzero(self._b.loads == load_b)[0])
            held, base = of_b.logs[axis][:, at], of_b.logs[other][:, at]
        with np.errstate(invalid="ignore"):  # both beyond the same end: not a number, counted as such
            return of_a.read(axis, held, math.log(found.of_a.load)) - base


def frame_of(rows: list[dict], columns: Sequence[str]) -> pd.DataFrame:
    """The rows as a frame with these columns, each of one type; what a row lacks is None or NaN."""
    frame = pd.DataFrame(rows, columns=list(columns))
    for column in columns:
        if column in _TEXT:
            frame[column] = frame[column].astype(object).where(frame[column].notna(), None)
        elif column == "stated":
            frame[column] = frame[column].astype(bool)
        elif column in _COUNTS:
            frame[column] = frame[column].astype(int)
        else:
            frame[column] = frame[column].astype(float)
    return frame
