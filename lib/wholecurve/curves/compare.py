"""Two curves side by side: the three multipliers, their summary, and what a reader must be warned of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from wholecurve.curves.bootstrap import RESAMPLES, SEED, Requests, Resampler
from wholecurve.curves.curve import Curve
from wholecurve.curves.gates.pair import warnings_for
from wholecurve.curves.readings import MATCHED_COLUMNS, MatchedReader, direct_rows, frame_of
from wholecurve.curves.summaries import MULTIPLIERS, bounds_of, control_summary, overlap, summarise
from wholecurve.errors import UserError

# Fewer resamples beyond an end of the interval would let the end wander.
_BEYOND_AN_END = 10


@dataclass(frozen=True)
class Comparison:
    """Curve A over curve B. Ratios above 1 mean that A is ahead; speeds in tok/s/user, throughputs in
    tok/s/device.

    direct: one row per load of either curve, A over B at equal load, t interval over paired repeats.
    same_speed, same_throughput: one row per measured point of B, then one per stated target (``stated``; of a refused
    concurrency, ``load_b`` is what was asked for);
    the operating point of B, the matched one of A, estimate, bootstrap interval over runs, bracket and its methods
    (``linear``, ``log_log``), floor, ``sensitivity`` |d log read / d log held| of A, or the reason in ``refused``.
    An end of an interval that is 0 or infinite is open: A's reading there lies beyond what was measured;
    ``outside_share`` is the share of resamples that left the overlap, ``repeats_outside`` counts the repeats whose
    own curve misses the target. summary: per multiplier minimum, median and maximum with their operating points, and
    what the control says. warnings: sentences.
    """

    a: Curve
    b: Curve
    direct: pd.DataFrame
    same_speed: pd.DataFrame
    same_throughput: pd.DataFrame
    summary: dict
    warnings: list[str]

    def to_document(self) -> dict:
        """The comparison as JSON values: names under "a" and "b", frames as lists of rows; NaN and inf are None."""
        frames = {
            name: plain(getattr(self, name).to_dict("records")) for name in ("direct", "same_speed", "same_throughput")
        }
        return {
            "a": self.a.name,
            "b": self.b.name,
            **frames,
            "summary": plain(self.summary),
            "warnings": list(self.warnings),
        }


def compare(
    a: Curve,
    b: Curve,
    at_speed: Sequence[float] = (),
    at_throughput: Sequence[float] = (),
    confidence: float = 0.95,
    *,
    at_concurrency: Sequence[float] = (),
    control: Comparison | None = None,
    requests_a: Requests | None = None,
    requests_b: Requests | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Comparison:
    """The multipliers of A over B: direct, at the same speed, at the same throughput.

    The matched ones are read at every measured point of B, at the targets ``at_speed`` [tok/s/user] and
    ``at_throughput`` [tok/s/device], where both curves are interpolated, and at B's points at ``at_concurrency``, which
    adds direct rows too. Repeats are paired by number; those that only one curve has are left out with a warning.
    Prefill curves have no speed and give ``direct`` only. ``control`` compares one contender with itself: what lies no
    further from 1 than that is "no difference shown". ``requests_a`` and ``requests_b`` add the second level of the
    bootstrap. Raises UserError where the curves share no repeat, differ in kind of load, or an argument makes no sense.
    """
    targets = {"speed": at_speed, "throughput": at_throughput, "concurrency": at_concurrency}
    _check_curves(a, b, control)
    _check_numbers(a, targets, confidence, resamples)
    shared = sorted(set(a.repeats) & set(b.repeats))
    used_a, used_b = a.only_repeats(shared), b.only_repeats(shared)
    of_control = None if control is None else control_summary(control)
    bounds = bounds_of(of_control)
    frames = {"direct": direct_rows(used_a, used_b, at_concurrency, confidence, bounds)}
    if a.has_speed:
        resampler = Resampler(shared, resamples, seed)
        reader = MatchedReader(used_a, used_b, confidence, bounds, resampler, (requests_a, requests_b))
        for axis in ("speed", "throughput"):
            frames[f"same_{axis}"] = reader.rows(axis, targets[axis], at_concurrency)
    else:
        frames |= {f"same_{axis}": frame_of([], MATCHED_COLUMNS) for axis in ("speed", "throughput")}
    summary = {name: summarise(frames[frame], column) for name, (frame, column) in MULTIPLIERS.items()}
    summary |= {f"overlap_{axis}": overlap(used_a, used_b, axis) for axis in ("speed", "throughput")}
    summary |= {"confidence": confidence, "resamples": resamples, "seed": seed, "control": of_control}
    matched = {axis: frames[f"same_{axis}"] for axis in ("speed", "throughput")}
    return Comparison(a, b, **frames, summary=summary, warnings=warnings_for(a, b, matched))


def fewest_resamples(confidence: float = 0.95) -> int:
    """How many resamples an interval needs at least; enough where only the ratios of a comparison are wanted."""
    return math.ceil(2 * _BEYOND_AN_END / (1 - confidence))


def _check_curves(a: Curve, b: Curve, control: Comparison | None) -> None:
    for curve in (a, b):
        if not isinstance(curve, Curve):
            raise UserError(
                f"{getattr(curve, 'name', curve)} is not one configuration's curve; a frontier over configurations is "
                "another object and is compared by compare_frontiers"
            )
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
    if control is not None and control.a.load_kind != a.load_kind:
        raise UserError(
            f"the control is measured over {control.a.load_kind}, {a.name} over {a.load_kind}; it bounds the noise of "
            "curves over the same kind of load"
        )


def _check_numbers(a: Curve, targets: dict[str, Sequence[float]], confidence: float, resamples: int) -> None:
    if not 0 < confidence < 1:
        raise UserError(f"confidence is {confidence}; a number between 0 and 1 is needed, 0.95 for 95 %")
    needed = fewest_resamples(confidence)
    if resamples < needed:
        raise UserError(f"resamples is {resamples}; at confidence {confidence:g} at least {needed} are needed")
    for axis, values in targets.items():
        if not a.has_speed and len(values):
            raise UserError(f"a target {axis} was given, but prefill curves have no speed to match")
        for target in values:
            if not 0 < target < math.inf:
                raise UserError(f"target {axis} is {target}; a finite number above 0 is needed")
    if len(targets["concurrency"]) and a.load_kind != "concurrency":
        raise UserError(f"a concurrency was given, but {a.name} is measured over {a.load_kind}")


def plain(value):
    """JSON values of nested dicts, lists and numpy numbers; NaN and infinite numbers become None."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
