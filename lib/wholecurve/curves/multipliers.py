"""Same-speed and same-throughput multipliers at one operating point, and every reason to refuse one."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from wholecurve.curves.interpolate import SAME, Axis, ParametricCurve, Solution, is_flat, other_axis

# Below this |d log held / d log read| an error in the held axis comes out more than ten times as large.
SLOPE_LIMIT = 0.1

UNITS = {"speed": "tok/s/user", "throughput": "tok/s/device"}

# Between the reasons of both sides; a reason itself may have any other sign in it.
BETWEEN_REASONS = " | "
MIN_REPEATS = 3  # fewer say nothing about their own spread
AHEAD_A, AHEAD_B, UNDECIDED = "A ahead", "B ahead", "undecided"
NO_DIFFERENCE, NOT_MEASURED = "no difference shown", "not measured"

MATCH_FIELDS = (
    "load_a",
    "load_b",
    "speed",
    "throughput",
    "speed_a",
    "throughput_a",
    "estimate",
    "linear",
    "log_log",
    "bracket_low",
    "bracket_high",
    "floor",
    "sensitivity",
    "refused",
)


class Refused(Exception):
    """A reading that the rules forbid; the text is the reason, with its numbers."""


@dataclass(frozen=True)
class Reading:
    """One curve read where ``axis`` equals a target.

    load: the load there · value: the other axis, by the estimate (PCHIP) · linear, log_log: the same by straight
    lines · measured: on a measured point, so that nothing was interpolated · sensitivity: |d log value / d log
    target|, None for a single point · neighbours: the measured loads next to it (one for a single point).
    """

    load: float
    value: float
    linear: float
    log_log: float
    measured: bool
    sensitivity: float | None
    neighbours: tuple[float, ...]


@dataclass(frozen=True)
class Match:
    """Curve A over curve B where both have ``target`` on ``axis``; a reading is None where it was refused.

    floor uses measured points only: the best point of A with at least the target, over B's measured point, or over
    the better of B's two neighbours where B itself is interpolated. It needs no reading, so it is kept wherever
    the target lies inside both ranges.
    """

    axis: Axis
    target: float
    of_a: Reading | None
    of_b: Reading | None
    floor: float | None
    refused: str | None

    def row(self) -> dict:
        """Multiplier, bracket (the span of the estimate, the plain linear and the log-log multiplier), floor,
        sensitivity of A, operating points; all but target and floor are None where a reading was refused."""
        other, row = other_axis(self.axis), dict.fromkeys(MATCH_FIELDS)
        row |= {self.axis: self.target, "floor": self.floor, "refused": self.refused}
        if self.refused is not None:
            return row
        of_a, of_b = self.of_a, self.of_b
        ratios = [of_a.value / of_b.value, of_a.linear / of_b.linear, of_a.log_log / of_b.log_log]
        row |= dict(zip(("estimate", "linear", "log_log"), ratios, strict=True))
        row |= {
            "load_a": of_a.load,
            "load_b": of_b.load if of_b.measured else None,
            other: of_b.value,
            f"{self.axis}_a": self.target,
            f"{other}_a": of_a.value,
            "bracket_low": min(ratios),
            "bracket_high": max(ratios),
            "sensitivity": of_a.sensitivity,
        }
        return row


def read(curve: ParametricCurve, axis: Axis, target: float, slope_rule: bool = True) -> Reading:
    """Read ``curve`` where ``axis`` equals ``target``.

    Raises Refused when the target lies outside the measured range (nothing is extrapolated), when it is met
    at several loads or along a flat stretch, and, with ``slope_rule``, where |d log axis / d log other| is
    below 0.1.
    """
    solutions = curve.solve(axis, target)
    if not solutions:
        raise Refused(_out_of_range(curve, axis, target))
    if len(solutions) > 1:
        raise Refused(_ambiguous(curve, axis, target, solutions))
    solution, other = solutions[0], other_axis(axis)
    if slope_rule:
        _check_slope(curve, axis, solution)
    linear, log_log = (curve.straight(axis, target, solution, logarithmic) for logarithmic in (False, True))
    held, moved = curve.slope(axis, solution), curve.slope(other, solution)
    return Reading(
        solution.load,
        curve.at(other, solution),
        linear,
        log_log,
        solution.knot is not None,
        abs(moved / held) if held else None,
        tuple(curve.loads[solution.interval : solution.interval + 2].tolist()),
    )


def match(a: ParametricCurve, b: ParametricCurve, axis: Axis, target: float) -> Match:
    """A over B with ``axis`` held at ``target``: "speed" gives the same-speed multiplier, "throughput" the
    same-throughput one. When either curve may not be read, ``refused`` says why."""
    readings, reasons = [], []
    for curve in (a, b):
        try:
            readings.append(read(curve, axis, target))
        except Refused as refusal:
            readings.append(None)
            reasons.append(str(refusal))
    reachable = a.solve(axis, target) and b.solve(axis, target)
    floor = _floor(a, b, axis, target) if reachable else None
    return Match(axis, target, *readings, floor, BETWEEN_REASONS.join(reasons) or None)


def verdict(
    estimate: float | None,
    interval: tuple[float | None, float | None],
    bracket: tuple[float | None, float | None] = (None, None),
    log_ratios: Sequence[float] = (),
    bound: float | None = None,
) -> str:
    """Who is ahead.

    An interval or bracket that contains 1 shows no difference, and nor do two repeats that point both ways, nor an
    estimate within ``bound``, the factor by which an A/A control differs from itself. Without an interval (fewer
    than three repeats) nothing is decided: the ratio stands, the verdict is "undecided". Without an estimate,
    nothing was measured.
    """
    if estimate is None:
        return NOT_MEASURED
    contains_one = any(low is not None and low <= 1 + SAME and high >= 1 - SAME for low, high in (interval, bracket))
    both_ways = len(log_ratios) == 2 and min(log_ratios) <= 0 <= max(log_ratios)
    if contains_one or both_ways or abs(estimate - 1) <= SAME or within_bound(estimate, bound):
        return NO_DIFFERENCE
    if interval[0] is None:
        return UNDECIDED
    return AHEAD_A if estimate > 1 else AHEAD_B


def within_bound(estimate: float, bound: float | None) -> bool:
    """True when a multiplier is no further from 1 than an A/A control, by a factor of ``bound``, was."""
    return bound is not None and max(estimate, 1 / estimate) <= bound * (1 + SAME)


def _floor(a: ParametricCurve, b: ParametricCurve, axis: Axis, target: float) -> float:
    other = other_axis(axis)
    enough = a.values[axis] >= target * (1 - SAME)
    # Of several solutions of B the best is taken, so that the floor stays a floor.
    reach = max(_reach(b, other, solution) for solution in b.solve(axis, target))
    return float(a.values[other][enough].max() / reach)


def _reach(curve: ParametricCurve, other: Axis, solution: Solution) -> float:
    values = curve.values[other]
    if solution.knot is not None:
        return float(values[solution.knot])
    return float(values[solution.interval : solution.interval + 2].max())


def _check_slope(curve: ParametricCurve, axis: Axis, solution: Solution) -> None:
    other = other_axis(axis)
    held, moved = curve.slope(axis, solution), curve.slope(other, solution)
    if held is None or (held != 0 and abs(held) >= SLOPE_LIMIT * abs(moved)):
        return
    ratio = abs(held / moved) if moved else 0.0
    raise Refused(
        f"{axis} of {curve.name} hardly moves around load {solution.load:.4g}: "
        f"|d log {axis} / d log {other}| = {ratio:.2g}, below {SLOPE_LIMIT}, so that "
        f"the {other} read there would be arbitrary"
    )


def _out_of_range(curve: ParametricCurve, axis: Axis, target: float) -> str:
    values = curve.values[axis]
    above = target > values.max()
    edge = int(values.argmax() if above else values.argmin())
    most, more = ("highest", "above") if above else ("lowest", "below")
    return (
        f"{target:.4g} {UNITS[axis]} is {more} everything measured of {curve.name}, whose {most} "
        f"{axis} is {values[edge]:.4g} (load {curve.loads[edge]:g}); not extrapolated"
    )


def _ambiguous(curve: ParametricCurve, axis: Axis, target: float, solutions: list[Solution]) -> str:
    loads = " and ".join(f"{s.load:.4g}" for s in solutions)
    flat = any(is_flat(first, second) for first, second in pairwise(solutions))
    how = f"along a flat stretch, loads {loads}" if flat else f"at more than one load: {loads}"
    return f"{curve.name} has {target:.4g} {UNITS[axis]} {how}; no one load is the match"
