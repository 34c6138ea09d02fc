"""The formulas that published numbers derive from one another, each over printed numbers and their intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wholecurve.curves.claims.interval import Estimate, decimal_text, largest, smallest
from wholecurve.curves.claims.nouns import MULTIPLIER_UNITS, Number, listed

SAME = "the same number"
ONE, HUNDRED = Estimate.exact(1), Estimate.exact(100)


@dataclass(frozen=True)
class Formula:
    """`compute` takes numbers and gives the estimate; `write` gives the same as text, in printed digits.

    units: what the result may be claimed in, () for the operands' own unit · operands: how many it takes, None
    for any number from one · of: "values" in one unit, or "multipliers" (×, % more or % less).
    """

    compute: Callable[[Sequence[Number]], Estimate]
    write: Callable[[Sequence[Number]], str]
    units: tuple[str, ...]
    operands: int | None
    of: str = "values"


def factor_text(number: Number) -> str:
    """A multiplier as the factor that formulas take: '21%' more is written 1.21."""
    if number.unit == "×":
        return number.text.rstrip("×x")
    return decimal_text(number.multiplier.value, number.printed.last_digit / 100)


FORMULAS = {
    "ratio": Formula(
        lambda n: n[0].estimate / n[1].estimate, lambda n: f"{n[0].digits} / {n[1].digits}", ("×",), 2
    ),
    "percent more": Formula(
        lambda n: HUNDRED * (n[0].estimate / n[1].estimate - ONE),
        lambda n: f"100 × ({n[0].digits} / {n[1].digits} − 1)", ("% more",), 2,
    ),
    "percent less": Formula(
        lambda n: HUNDRED * (ONE - n[0].estimate / n[1].estimate),
        lambda n: f"100 × (1 − {n[0].digits} / {n[1].digits})", ("% less",), 2,
    ),
    "cost factor": Formula(
        lambda n: ONE / n[0].multiplier, lambda n: f"1 / {factor_text(n[0])}", ("×",), 1, "multipliers"
    ),
    "cost cut": Formula(
        lambda n: HUNDRED * (ONE - ONE / n[0].multiplier),
        lambda n: f"100 × (1 − 1 / {factor_text(n[0])})", ("% less",), 1, "multipliers",
    ),
    "capacity gain": Formula(
        lambda n: HUNDRED * (n[0].multiplier - ONE),
        lambda n: f"100 × ({factor_text(n[0])} − 1)", ("% more",), 1, "multipliers",
    ),
    "product": Formula(
        lambda n: n[0].estimate * n[1].estimate, lambda n: f"{n[0].digits} × {n[1].digits}", (), 2
    ),
    "difference": Formula(
        lambda n: n[0].estimate - n[1].estimate, lambda n: f"{n[0].digits} − {n[1].digits}", (), 2
    ),
    "maximum": Formula(lambda n: largest([x.estimate for x in n]), lambda n: f"max({listed(n)})", (), None),
    "minimum": Formula(lambda n: smallest([x.estimate for x in n]), lambda n: f"min({listed(n)})", (), None),
    SAME: Formula(lambda n: n[0].estimate, lambda n: n[0].text, (), 1),
}  # fmt: skip


def misfit(name: str, unit: str, numbers: Sequence[Number]) -> str | None:
    """Why formula `name` cannot give a number in `unit` from `numbers`, or None: its operands, units, a 0 below."""
    if name not in FORMULAS:
        return f"formula {name!r} is unknown; known are {', '.join(FORMULAS)}"
    formula, units = FORMULAS[name], {number.unit for number in numbers}
    if formula.operands not in (None, len(numbers)):
        return f"formula {name!r} takes {formula.operands} numbers, {len(numbers)} are given"
    if formula.of == "multipliers" and (wrong := units - set(MULTIPLIER_UNITS)):
        return f"formula {name!r} takes a multiplier, not a number in {min(wrong)!r}"
    if formula.of == "values" and name != "product" and len(units) > 1:
        return f"formula {name!r} takes numbers in one unit, these are in {', '.join(sorted(units))}"
    gives = formula.units or (units if name != "product" else {unit})
    if unit not in gives:
        return f"formula {name!r} gives {', '.join(gives)}, but the claimed number is in {unit!r}"
    try:
        formula.compute(numbers)
    except ZeroDivisionError:
        return f"formula {name!r} divides by a printed number that may be 0"
    return None
