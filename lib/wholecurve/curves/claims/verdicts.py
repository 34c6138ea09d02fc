"""The words in which an audit speaks, and the rules that choose among them.

Four verdicts decide a claim. They speak of what is printed: that an arithmetic is confirmed says nothing
about whether its operands were measured well.
"""

from collections.abc import Iterable

from wholecurve.curves.claims.interval import Estimate, Interval

CONFIRMED = "confirmed"
CONSISTENT = "consistent within rounding"
CANNOT = "cannot be checked"
CONTRADICTED = "contradicted"
DECIDING = (CONFIRMED, CONSISTENT, CANNOT, CONTRADICTED)

# What a check says that decides nothing.
CLEAR, DISCLOSED, CAUTION = "clear", "disclosed", "caution"

MEANINGS = {
    CONFIRMED: "it follows from the other printed numbers; that says nothing about how well those were measured",
    CONSISTENT: "the rounding of the printed digits allows it, but as they stand they do not show it",
    CANNOT: "an operand or a condition is not in the text",
    CONTRADICTED: "no values that round to the printed digits allow it, or another sentence says the opposite",
    CLEAR: "nothing to object",
    DISCLOSED: "a limit that the text itself states, to its credit",
    CAUTION: "something that a reader must know beside the number",
}


def of_arithmetic(recomputed: Estimate, rounding: Interval, allowed: Interval) -> str:
    """The verdict on a printed number that other printed numbers give again.

    `rounding`: what rounds to the claimed digits; `allowed`: the same, widened where the text says "about".
    Confirmed: the value recomputed from the printed digits rounds to the claimed digits. Consistent within
    rounding: it rounds to others, but the interval of the operands meets `allowed`. Contradicted: it does not.
    """
    if recomputed.value in rounding:
        return CONFIRMED
    return CONSISTENT if recomputed.interval.overlaps(allowed) else CONTRADICTED


def noted(stated: object) -> str:
    """The word for a limit: disclosed where the text states it, else a caution."""
    return DISCLOSED if stated else CAUTION


def worst(verdicts: Iterable[str]) -> str:
    """The verdict of a claim: contradicted before cannot be checked before consistent before confirmed.

    Only deciding checks are given here: a caution about framing or runs never changes a verdict.
    """
    return max(verdicts, key=DECIDING.index)
