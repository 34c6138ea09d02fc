"""Checks that recompute one printed number from others."""

from wholecurve.curves.claims import verdicts
from wholecurve.curves.claims.formulas import FORMULAS, SAME, misfit
from wholecurve.curves.claims.interval import Estimate, interval_text
from wholecurve.curves.claims.nouns import Finding, Number
from wholecurve.errors import UserError

Numbers = tuple[Number, ...]


def arithmetic(*, claimed: Number, formula: str, of: Numbers) -> Finding:
    """One printed number against a formula of others (see `formulas.FORMULAS`), with the intervals of the digits."""
    if reason := misfit(formula, claimed.unit, of):
        raise UserError(reason)
    recomputed = FORMULAS[formula].compute(of)
    verdict = verdicts.of_arithmetic(recomputed, claimed.rounding, claimed.interval)
    step = claimed.printed.last_digit / 10
    if not FORMULAS[formula].units:
        step = min(step, *(number.printed.last_digit for number in of))
    line = f"{FORMULAS[formula].write(of)} = {recomputed.text(step)}; {_claimed(claimed)}"
    return Finding(verdict, _sentence(verdict, formula, claimed, recomputed), line, claimed.sentence)


def ends(*, low: Number, high: Number, of: Numbers) -> Finding:
    """A printed range against the smallest and the largest of the numbers that it summarises."""
    parts = [
        arithmetic(claimed=low, formula="minimum", of=of),
        arithmetic(claimed=high, formula="maximum", of=of),
    ]
    verdict = verdicts.worst(part.verdict for part in parts)
    finding = {
        verdicts.CONFIRMED: f"{low.text} and {high.text} are the smallest and the largest of the {len(of)} printed",
        verdicts.CONSISTENT: "the ends fit the numbers within rounding",
        verdicts.CONTRADICTED: "an end of the range is not the smallest or the largest of the numbers printed",
    }[verdict]
    return Finding(verdict, finding, "; ".join(part.arithmetic for part in parts), low.sentence)


def derived(*, formula: str, of: Numbers) -> Finding:
    """A multiplier that the text does not claim, but that its numbers give. Decides nothing."""
    units = FORMULAS[formula].units if formula in FORMULAS else ()
    if reason := misfit(formula, units[0] if units else of[0].unit, of):
        raise UserError(reason)
    step = min(number.printed.last_digit for number in of)
    line = f"{FORMULAS[formula].write(of)} = {FORMULAS[formula].compute(of).text(step)}"
    return Finding(verdicts.CLEAR, "not claimed in the text, but its numbers give it", line, of[0].sentence)


def not_published(*, missing: str) -> Finding:
    """What the claim needs and the text does not print. `missing` names it."""
    return Finding(verdicts.CANNOT, f"the text does not give {missing}")


def _sentence(verdict: str, formula: str, claimed: Number, recomputed: Estimate) -> str:
    as_printed = recomputed.text(claimed.printed.last_digit).split(" ")[0]
    if verdict == verdicts.CONFIRMED:
        if formula == SAME:
            return f"{claimed.text} agrees with the other print of it"
        if recomputed.interval.within(claimed.rounding):
            return f"{claimed.text} follows, for every value that the printed digits allow"
        return f"{claimed.text} follows from the digits as printed"
    if verdict == verdicts.CONSISTENT:
        return f"the digits as printed give {as_printed}; {claimed.text} is possible within rounding"
    return f"the digits as printed give {as_printed}, and no rounding of them gives {claimed.text}"


def _claimed(number: Number) -> str:
    if number.interval.low == number.interval.high:
        return f"claimed {number.digits}"
    word = "under " if number.bound == "under" else "about " if number.approximate else ""
    return f"claimed {word}{number.text}, which is {interval_text(number.interval, number.printed.last_digit / 10)}"
