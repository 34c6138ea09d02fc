"""Checks of sentences about several numbers: ahead at every point, larger, changes, grows."""

from itertools import combinations, pairwise
from math import sqrt

from wholecurve.curves.claims import verdicts
from wholecurve.curves.claims.nouns import Finding, Number, listed
from wholecurve.errors import UserError

Numbers = tuple[Number, ...]
SIDES = {"below": -1, "equal": 0, "above": 1}
DIRECTIONS = {"rises": 1, "falls": -1}


def every_point(*, of: Numbers) -> Finding:
    """'Ahead at every point': all multipliers above 1, beyond their rounding."""
    lowest = min(of, key=lambda number: number.multiplier.interval.low)
    line = f"{listed(of)}; the smallest, {lowest.text}, is {lowest.factor_text}"
    below = [number for number in of if number.multiplier.interval.high < 1]
    maybe = [number for number in of if 1 in number.multiplier.interval]
    if below:
        return Finding(verdicts.CONTRADICTED, f"{listed(below)}: below 1", line, below[0].sentence)
    if maybe:
        return Finding(verdicts.CONSISTENT, f"{listed(maybe)}: may be 1 within rounding", line, maybe[0].sentence)
    metrics = ", ".join(dict.fromkeys(number.metric for number in of if number.metric))
    return Finding(verdicts.CONFIRMED, f"all {len(of)} above 1 ({metrics})", line, lowest.sentence)


def against_one(*, number: Number, stands: str) -> Finding:
    """'Parity', 'a deficit', 'a lead': does a multiplier stand equal to, below or above 1?

    Equal is confirmed when the printed digits read 1, below and above when the interval lies there entirely.
    """
    if stands not in SIDES:
        raise UserError(f"stands is {stands!r}; one of {', '.join(SIDES)} is needed")
    factor, sign = number.multiplier, SIDES[stands]
    side = (factor.value > 1) - (factor.value < 1)
    if side == sign and (sign == 0 or 1 not in factor.interval):
        verdict, finding = verdicts.CONFIRMED, f"{number.text} stands {stands} {'to ' if sign == 0 else ''}1"
    elif 1 in factor.interval:
        verdict, finding = verdicts.CONSISTENT, f"{number.text} is as near to 1 as its digits can tell"
    else:
        verdict, finding = verdicts.CONTRADICTED, f"{number.text} does not stand {stands} {'to ' if sign == 0 else ''}1"
    return Finding(verdict, finding, f"{number.text}, which is {number.factor_text}", number.sentence)


def changes(*, first: Number, second: Number) -> Finding:
    """'Changes with load': two multipliers that cannot be one value."""
    line = " and ".join(f"{n.text} {n.factor_text} at {n.at}" for n in (first, second))
    if first.multiplier.interval.overlaps(second.multiplier.interval):
        return Finding(verdicts.CONTRADICTED, "the two may be one value", line, second.sentence)
    return Finding(verdicts.CONFIRMED, "they differ beyond rounding", line, second.sentence)


def larger(*, larger: Numbers, smaller: Numbers) -> Finding:
    """'The larger ones': every multiplier of the one list above every one of the other, as printed."""
    low = min(larger, key=lambda number: number.multiplier.value)
    high = max(smaller, key=lambda number: number.multiplier.value)
    line = (
        f"smallest of {listed(larger)}: {low.text} {low.factor_text}; "
        f"largest of {listed(smaller)}: {high.text} {high.factor_text}"
    )
    verdict, finding = verdicts.CONTRADICTED, f"{low.text} is below {high.text}"
    if low.multiplier.interval.overlaps(high.multiplier.interval):
        verdict, finding = verdicts.CONSISTENT, "the nearest two may be equal within rounding"
    elif low.multiplier.value > high.multiplier.value:
        verdict, finding = verdicts.CONFIRMED, f"as printed numbers, {low.text} is above {high.text}"
    return Finding(verdict, finding, line, low.sentence)


def trend(*, series: Numbers, direction: str, claimed: str = "overall") -> Finding:
    """'Grows with load': rises and falls beyond rounding, all pairs (Kendall's tau-b), and the two ends.

    `claimed` "every step" is confirmed when each step goes in the direction beyond rounding, and contradicted
    when one goes against it beyond rounding. "overall" is confirmed when the ends differ in the direction
    beyond rounding and more pairs go with it than against it; it is contradicted when the ends differ against
    it, or no more pairs go with it than against it. Between the two lies consistent within rounding.
    """
    if direction not in DIRECTIONS or claimed not in ("overall", "every step"):
        raise UserError(f"direction is {direction!r}, claimed {claimed!r}; rises or falls, overall or every step")
    if len(series) < 3 or any(number.load is None for number in series):
        raise UserError("series needs three numbers or more, each with one load in operating_point")
    series = tuple(sorted(series, key=lambda number: number.load[1]))
    moves = [DIRECTIONS[direction] * _move(a, b) for a, b in pairwise(series)]
    pairs = [DIRECTIONS[direction] * _move(a, b) for a, b in combinations(series, 2)]
    ends = DIRECTIONS[direction] * _move(series[0], series[-1])
    sign = min(moves) if claimed == "every step" else -1 if sum(pairs) <= 0 else ends
    verdict = {1: verdicts.CONFIRMED, 0: verdicts.CONSISTENT, -1: verdicts.CONTRADICTED}[sign]
    return Finding(verdict, _trend_words(series), _trend_line(series), series[-1].sentence)


def kendall_tau_b(values: list) -> float:
    """Rank correlation of a series with its order, corrected for ties (Kendall 1945): −1 falls, 1 rises."""
    signs = _signs(values)
    untied = len(signs) - signs.count(0)
    return sum(signs) / sqrt(untied * len(signs)) if untied else 0.0


def _signs(values: list) -> list[int]:
    return [(b > a) - (b < a) for a, b in combinations(values, 2)]


def _move(a: Number, b: Number) -> int:
    """1 when b lies above a beyond rounding, −1 below, 0 when they may be equal."""
    if a.multiplier.interval.overlaps(b.multiplier.interval):
        return 0
    return 1 if b.multiplier.value > a.multiplier.value else -1


def _trend_words(series: Numbers) -> str:
    whole = {1: "it rises from end to end", 0: "its ends may be equal", -1: "it falls from end to end"}
    steps = [_move(a, b) for a, b in pairwise(series)]
    return (
        f"against {series[0].against or 'its baseline'} {whole[_move(series[0], series[-1])]}; "
        f"{steps.count(1)} up and {steps.count(-1)} down of {len(steps)} steps, beyond rounding"
    )


def _trend_line(series: Numbers) -> str:
    values = [number.multiplier.value for number in series]
    signs = _signs(values)
    points = " → ".join(f"{number.text} at {number.load_text}" for number in series)
    tau = f"{kendall_tau_b(values):.2f}".replace("-", "−")
    return f"{points}; of {len(signs)} pairs {signs.count(1)} rise and {signs.count(-1)} fall (Kendall tau-b {tau})"
