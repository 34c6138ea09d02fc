"""What a number leaves out: metrics, kinds of tokens, settings, assumptions."""

from fractions import Fraction

from wholecurve.curves.claims import verdicts
from wholecurve.curves.claims.formulas import FORMULAS
from wholecurve.curves.claims.interval import decimal_text
from wholecurve.curves.claims.nouns import Claim, Finding, Number, Published, Reference, Sentence, listed
from wholecurve.errors import UserError

Numbers = tuple[Number, ...]

# Each family of metrics with the words that name it in the column `metric`.
FAMILIES = {
    "throughput": ("throughput",),
    "speed per user": ("speed", "interactivity"),
    "TTFT": ("TTFT",),
    "completion time": ("completion", "E2E"),
}
TAILS = ("p90", "p99")


def missing_metrics(claim: Claim, published: Published, *, who: str, says: Sentence | None = None) -> Finding:
    """Which of throughput, speed, TTFT and completion time, and which tails, the document prints for `who`."""
    metrics = {n.metric for n in published.numbers.values() if n.document == claim.document and n.who == who}
    if not metrics:
        raise UserError(f"no number of document {claim.document!r} has who {who!r}")
    here, missing = [], []
    for family, words in FAMILIES.items():
        found = [metric for metric in metrics if any(word in metric for word in words)]
        tails = [tail for tail in TAILS if any(tail in metric for metric in found)]
        if found:
            here.append(family + (f" ({', '.join(tails)})" if tails else ""))
        if not found:
            missing.append(family)
        elif family != "throughput" and not tails:
            missing.append(f"tail of {family}")
    line = f"printed in this text: {', '.join(here) or 'none'}"
    if not missing:
        return Finding(verdicts.CLEAR, "all families, with tails", line, says)
    return Finding(verdicts.noted(says), f"not printed in this text: {', '.join(missing)}", line, says)


def token_accounting(*, numbers: Numbers, gpus: Number, sessions: Number, references: tuple[Reference, ...]) -> Finding:
    """'Tokens per second' without saying which: how fast a session would have to be if all were output."""
    count = sessions.printed.value
    line = "; ".join(
        f"{n.who}: {n.text} × {gpus.digits} GPUs / {count} sessions = "
        f"{(n.estimate * gpus.estimate / sessions.estimate).text(Fraction(1))} tok/s per session"
        for n in numbers
    )
    cited = "; ".join(f"{reference.says} ({reference.source})" for reference in references)
    finding = (
        f"which tokens are counted is not said. If it were output, even at {count} sessions, the most that the text "
        f"names, each session would receive thousands of tokens a second; a total counts input too, cached input "
        f"included, and no generation speed and no output can be read from it. Sources: {cited}"
    )
    return Finding(verdicts.CAUTION, finding, line, numbers[0].sentence)


def assumption(*, number: Number, says: Sentence | None = None) -> Finding:
    """A cost or capacity that follows from a multiplier only under conditions; `says` is where the text states
    them. Gain and cut are given together."""
    gain, cut = (
        decimal_text(FORMULAS[name].compute([number]).value, Fraction(1, 10)) for name in ("capacity gain", "cost cut")
    )
    stated = "which the text states" if says else "which the text does not state"
    finding = f"cost follows throughput at the same price and the same use of the hardware, {stated}"
    line = f"{number.text}: {gain} % more from the same hardware, {cut} % less cost for the same work"
    return Finding(verdicts.noted(says), finding, line, says or number.sentence)


def speculation(*, drafts: Number, acceptance: Number) -> Finding:
    """'k drafts at acceptance a' has two readings; tokens per step in both."""
    k, a = int(drafts.printed.value), acceptance.printed.value / 100
    conditional, marginal = sum(a**i for i in range(k + 1)), 1 + k * a
    line = (
        f"each draft given the one before: 1 + a + … + a^{k} = {float(conditional):.3f} tokens per step; "
        f"each alone: 1 + {k}a = {float(marginal):.2f}"
    )
    finding = "which reading is not said; it changes tokens per second, not a ratio between engines under the same one"
    return Finding(verdicts.CAUTION, finding, line, acceptance.sentence)


def remark(*, finding: str, says: Sentence | None = None, credit: bool = False, numbers: Numbers = ()) -> Finding:
    """A caution, or with `credit` a disclosure, in the auditor's own words: no rule stands behind it."""
    return Finding(verdicts.noted(credit), finding, listed(numbers) or None, says)
