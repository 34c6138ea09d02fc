"""What a multiplier is against: a handicapped, composite, other or own baseline."""

from wholecurve.curves.claims import verdicts
from wholecurve.curves.claims.interval import Estimate
from wholecurve.curves.claims.nouns import Finding, Number, Sentence, listed
from wholecurve.errors import UserError

Numbers = tuple[Number, ...]


def handicaps(run: Numbers, as_published: Numbers) -> list[tuple[Number, Number, Estimate]]:
    """(ratio to the baseline as run, ratio to it as published, baseline as run over as published), by load.

    A/published ÷ A/run = run/published, if A is the same measurement in both.
    """
    of_run = {number.operating_point: number for number in run}
    of_published = {number.operating_point: number for number in as_published}
    if set(of_run) != set(of_published) or len(of_run) != len(run):
        raise UserError(f"run ({listed(run)}) and as_published ({listed(as_published)}) need the same loads, each once")
    return [(of_run[at], other, other.multiplier / of_run[at].multiplier) for at, other in of_published.items()]


def baseline_handicap(*, run: Numbers, as_published: Numbers, says: Sentence | None = None) -> Finding:
    """How much of a multiplier is a baseline that ran slower than its makers publish, at every load."""
    rows = handicaps(run, as_published)
    step = min(number.printed.last_digit for number in (*run, *as_published))
    line = "baseline as run over as published: " + "; ".join(
        f"{b.text.rstrip('×x')} / {a.text.rstrip('×x')} = {share.text(step)} at {a.load_text}" for a, b, share in rows
    )
    a, b, share = max(rows, key=lambda row: row[0].multiplier.value)
    slower = (Estimate.exact(1) / share).text(step).split(" ")[0]
    finding = (
        f"at {a.at} the baseline reached {share.text(step)} of the rate that its makers publish: {a.text} is {b.text} "
        f"over the published baseline times {slower}× for the slower one. Other machines, and reading off a figure "
        f"where the text says so, are in that share too"
    )
    return Finding(verdicts.noted(says), finding, line, says or b.sentence)


def composite_baseline(*, numbers: Numbers, says: Sentence) -> Finding:
    """The better of several configurations, metric by metric. `says` is where the text tells so."""
    finding = (
        "no single configuration of the baseline reaches all these values. It favours the baseline: against any one "
        "of its configurations each ratio is at least as large"
    )
    return Finding(verdicts.DISCLOSED, finding, listed(numbers), says)


def baseline_choice(*, number: Number, other: Number) -> Finding:
    """The same model family over another baseline: how far the choice of baseline may move a multiplier."""
    apart = (number.multiplier / other.multiplier).text(number.multiplier_step * 10)
    finding = (
        f"over {other.against}, {other.text} is printed as the best for {other.model}: how large a gain looks depends "
        f"on the baseline. Whether model size, machine and metric are the same is not said"
    )
    line = f"{number.text} over {number.against} ({number.model}), {other.text} over {other.against}: {apart}× apart"
    return Finding(verdicts.CAUTION, finding, line, other.sentence)


def self_baseline(*, numbers: Numbers, says: Sentence | None = None) -> Finding:
    """A multiplier of an engine over itself: it says nothing about two engines."""
    if other := [number for number in numbers if number.framing != "self"]:
        raise UserError(f"number {other[0].id!r} has framing {other[0].framing!r}; 'self' is needed")
    finding = f"{listed(numbers)}: an engine against its own earlier run, not against another engine"
    return Finding(verdicts.noted(says), finding, None, says or numbers[0].sentence)
