"""Formulas between printed numbers, against decimals worked apart; and the rule that makes a verdict of both."""

import itertools
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from claim_builders import PUBLISHED, nudged, number, numbers

from wholecurve.curves.claims.checks.arithmetic import arithmetic, derived, ends, not_published
from wholecurve.curves.claims.interval import Estimate, Interval
from wholecurve.curves.claims.verdicts import (
    CANNOT,
    CONFIRMED,
    CONSISTENT,
    CONTRADICTED,
    DECIDING,
    of_arithmetic,
    worst,
)
from wholecurve.errors import UserError
from wholecurve.readers.published import read_claims


def D(value):
    return Decimal(value.numerator) / Decimal(value.denominator)


def factor(value, unit):
    return value if unit == "×" else 1 + value / 100 if unit == "% more" else 1 - value / 100


# Written apart from the library's formulas: plain decimals, operands in the units in which they are printed.
ORACLE = {
    "ratio": lambda v, u: v[0] / v[1],
    "percent more": lambda v, u: (v[0] - v[1]) / v[1] * 100,
    "percent less": lambda v, u: (v[1] - v[0]) / v[1] * 100,
    "cost factor": lambda v, u: factor(v[0], u[0]) ** -1,
    "cost cut": lambda v, u: (factor(v[0], u[0]) - 1) / factor(v[0], u[0]) * 100,
    "capacity gain": lambda v, u: factor(v[0], u[0]) * 100 - 100,
    "product": lambda v, u: v[0] * v[1],
    "difference": lambda v, u: v[0] - v[1],
    "maximum": lambda v, u: max(v),
    "minimum": lambda v, u: min(v),
    "the same number": lambda v, u: v[0],
}


def half_width(n):
    if n.framing == "setting" and not n.approximate:
        return Decimal(0)
    return D(n.printed.last_digit) * (Decimal("1.5") if n.approximate else Decimal("0.5"))


def expected_verdict(claimed, formula, operands):
    """The documented rule, by trying every corner of the operands."""
    with localcontext() as context:
        context.prec = 50
        units = [n.unit for n in operands]
        centre = ORACLE[formula]([D(n.printed.value) for n in operands], units)
        corners = [
            ORACLE[formula]([D(n.printed.value) + s * half_width(n) for n, s in zip(operands, signs)], units)
            for signs in itertools.product((-1, 1), repeat=len(operands))
        ]
        value, unit = D(claimed.printed.value), D(claimed.printed.last_digit)
        exact = claimed.framing == "setting" and not claimed.approximate
        if abs(centre - value) <= (0 if exact else unit / 2):
            return CONFIRMED
        low, high = value - half_width(claimed), value + half_width(claimed)
        if claimed.bound == "under":
            low, high = value - unit * 3 / 2, value
        return CONSISTENT if min(corners) <= high and low <= max(corners) else CONTRADICTED


def published_arithmetics():
    for claim in read_claims(PUBLISHED).claims:
        for position, check in enumerate(claim.checks):
            if check.function is arithmetic:
                yield pytest.param(check.arguments, id=f"{claim.id}-{position}")


@pytest.mark.parametrize("given", list(published_arithmetics()))
def test_every_published_arithmetic_and_every_change_of_a_last_digit(given):
    """Each operand and the claimed number itself, one unit of the last printed digit up and down."""
    claimed, formula, of = given["claimed"], given["formula"], given["of"]
    assert arithmetic(**given).verdict == expected_verdict(claimed, formula, of)
    for position, units in itertools.product(range(len(of) + 1), (-1, 1)):
        changed = [claimed, *of]
        if changed[position].text.isalpha() or changed[position].printed.suffix == "K":
            continue
        changed[position] = nudged(changed[position], units)
        found = arithmetic(claimed=changed[0], formula=formula, of=tuple(changed[1:]))
        assert found.verdict == expected_verdict(changed[0], formula, changed[1:]), (changed[position].text, found)


@pytest.mark.parametrize(
    "formula, claimed, of, changed, after",
    [
        ("ratio", ("2.49×", "×"), [("41.9", "tok/s/user"), ("16.8", "tok/s/user")], 0, CONSISTENT),
        ("ratio", ("2.49×", "×"), [("41.9", "tok/s/user"), ("16.8", "tok/s/user")], 1, CONSISTENT),
        ("percent less", ("38%", "% less"), [("41.7s", "s"), ("67.7s", "s")], 1, CONFIRMED),
        ("percent less", ("46%", "% less"), [("0.86s", "s"), ("1.59s", "s")], 0, CONSISTENT),
        ("cost factor", ("0.73×", "×"), [("1.37×", "×")], 0, CONSISTENT),
        ("cost cut", ("55%", "% less"), [("2.2×", "×")], 0, CONTRADICTED),
        ("capacity gain", ("120%", "% more"), [("2.2×", "×")], 0, CONTRADICTED),
        ("percent more", ("31%", "% more"), [("10,525", "tok/s"), ("8,013", "tok/s")], 0, CONFIRMED),
        ("product", ("1,024", "requests"), [("256", "requests"), ("4", "GPUs")], 0, CONTRADICTED),
    ],
)
def test_one_unit_up_in_an_operand_changes_the_verdict_where_it_must(formula, claimed, of, changed, after):
    exact = {"framing": "setting"} if formula == "product" else {}
    operands = [number(*operand, **exact) for operand in of]
    target = number(*claimed, **exact)
    assert arithmetic(claimed=target, formula=formula, of=tuple(operands)).verdict == CONFIRMED
    operands[changed] = nudged(operands[changed], 1)
    assert arithmetic(claimed=target, formula=formula, of=tuple(operands)).verdict == after


def test_the_verdict_says_whether_rounding_could_matter():
    safe = arithmetic(
        claimed=number("21%", "% more"), formula="percent more", of=numbers("2,095", "1,731", unit="tok/s")
    )
    assert safe.finding == "21% follows, for every value that the printed digits allow"
    assert safe.arithmetic == "100 × (2,095 / 1,731 − 1) = 21.0 [20.9, 21.1]; claimed 21%, which is [20.5, 21.5]"
    near = arithmetic(claimed=number("2.49×"), formula="ratio", of=numbers("41.9", "16.8", unit="tok/s/user"))
    assert near.finding == "2.49× follows from the digits as printed"
    assert near.arithmetic == "41.9 / 16.8 = 2.494 [2.483, 2.505]; claimed 2.49×, which is [2.485, 2.495]"
    off = arithmetic(claimed=number("2.51×"), formula="ratio", of=numbers("41.8", "16.7", unit="tok/s/user"))
    assert off.finding == "the digits as printed give 2.50; 2.51× is possible within rounding"
    wrong = arithmetic(claimed=number("2.53×"), formula="ratio", of=numbers("41.8", "16.7", unit="tok/s/user"))
    assert wrong.verdict == CONTRADICTED
    assert wrong.finding == "the digits as printed give 2.50, and no rounding of them gives 2.53×"


def test_about_widens_what_is_consistent_but_not_what_is_confirmed():
    operand = numbers("1.40×")
    assert arithmetic(claimed=number("0.73×"), formula="cost factor", of=operand).verdict == CONTRADICTED
    about = arithmetic(claimed=number("0.73×", approximate=True), formula="cost factor", of=numbers("1.40×"))
    assert about.verdict == CONSISTENT and "claimed about 0.73×" in about.arithmetic


def test_the_rule_at_its_edges():
    rounding, allowed = Interval(Fraction(5, 2), Fraction(7, 2)), Interval(Fraction(3, 2), Fraction(9, 2))

    def verdict(value, low, high):
        return of_arithmetic(Estimate(Fraction(value), Interval(Fraction(low), Fraction(high))), rounding, allowed)

    assert verdict("2.5", 2, 3) == verdict("3.5", 3, 4) == CONFIRMED
    assert verdict("3.51", 3, 4) == CONSISTENT
    assert verdict("4.6", "4.5", 5) == CONSISTENT
    assert verdict("4.6", "4.51", 5) == CONTRADICTED


def test_the_worst_verdict_decides_a_claim():
    for first, second in itertools.combinations(range(len(DECIDING)), 2):
        assert worst([DECIDING[first], DECIDING[second], DECIDING[first]]) == DECIDING[second]
    assert DECIDING == (CONFIRMED, CONSISTENT, CANNOT, CONTRADICTED)


def test_a_range_is_checked_at_both_ends():
    of = numbers("1.12×", "1.09×", "1.10×")
    assert ends(low=number("1.09×"), high=number("1.12×"), of=of).verdict == CONFIRMED
    assert ends(low=number("1.08×"), high=number("1.12×"), of=of).verdict == CONSISTENT
    assert ends(low=number("1.09×"), high=number("1.14×"), of=of).verdict == CONTRADICTED
    assert ends(low=number("1.05×"), high=number("1.12×"), of=of).verdict == CONTRADICTED


def test_a_derived_number_decides_nothing_and_an_unpublished_one_cannot_be_checked():
    found = derived(formula="ratio", of=numbers("10.6", "0.78", unit="s"))
    assert found.verdict not in DECIDING
    assert found.arithmetic == "10.6 / 0.78 = 13.59 [13.43, 13.75]"
    assert not_published(missing="the load").verdict == CANNOT


@pytest.mark.parametrize(
    "given, says",
    [
        ({"formula": "sum", "of": numbers("1", "2")}, "'sum' is unknown; known are ratio"),
        ({"formula": "ratio", "of": numbers("1")}, "takes 2 numbers, 1 are given"),
        ({"formula": "ratio", "of": (number("1", "s"), number("2", "tok/s"))}, "one unit, these are in s, tok/s"),
        ({"formula": "percent more", "of": numbers("1", "2")}, "gives % more, but the claimed number is in '×'"),
        ({"formula": "cost cut", "of": numbers("1", unit="s")}, "takes a multiplier, not a number in 's'"),
        ({"formula": "maximum", "of": numbers("1", unit="s")}, "gives s, but the claimed number is in '×'"),
        ({"formula": "ratio", "of": numbers("1", "0", unit="s")}, "divides by a printed number that may be 0"),
        ({"formula": "ratio", "of": numbers("1", "0.0", unit="s")}, "may be 0"),
        ({"formula": "cost factor", "of": numbers("100%", unit="% less")}, "may be 0"),
    ],
)
def test_a_formula_that_does_not_fit_is_refused(given, says):
    with pytest.raises(UserError, match=says):
        arithmetic(claimed=number("1.0×"), **given)
    if given["formula"] not in ("percent more", "maximum"):
        with pytest.raises(UserError, match=says):
            derived(**given)


def test_words_are_written_as_digits():
    found = arithmetic(
        claimed=number("32", "requests", framing="setting"),
        formula="product",
        of=(number("8", "requests/GPU", framing="setting"), number("four", "GPUs", framing="setting")),
    )
    assert found.arithmetic == "8 × 4 = 32; claimed 32"
