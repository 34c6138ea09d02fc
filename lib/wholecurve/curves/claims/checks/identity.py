"""Throughput, concurrency and speed are tied: what equal ratios mean, and what a broken product means."""

from fractions import Fraction

from wholecurve.curves.claims import verdicts
from wholecurve.curves.claims.interval import decimal_text
from wholecurve.curves.claims.nouns import Finding, Number, Sentence, listed
from wholecurve.errors import UserError

Numbers = tuple[Number, ...]

# Occupancy of a load that decodes nearly all the time: the median of 198 published serving points was 0.96.
DECODE_DOMINATES = 0.9
HUNDREDTH = Fraction(1, 100)


def identity(*, throughputs: Numbers, speeds: Numbers) -> Finding:
    """Throughput ratio and speed ratio at each load, side by side.

    Where all c requests generate all the time, throughput is c × speed on both sides, so that the two ratios
    are equal and show one measurement twice. Where they differ beyond rounding, occupancy differs.
    """
    if [n.operating_point for n in throughputs] != [n.operating_point for n in speeds]:
        raise UserError(f"throughputs ({listed(throughputs)}) and speeds ({listed(speeds)}) are not at the same loads")
    pairs = list(zip(throughputs, speeds))
    line = "; ".join(f"throughput {t.text} and speed {s.text} at {t.at}" for t, s in pairs)
    apart = [(t, s) for t, s in pairs if not t.multiplier.interval.overlaps(s.multiplier.interval)]
    if apart:
        t, s = apart[0]
        finding = (
            f"at {t.at} throughput is {decimal_text(t.multiplier.value, HUNDREDTH)}× {t.factor_text} and speed "
            f"{s.text} {s.factor_text}: neither can stand for the other, occupancy differs between the engines"
        )
        return Finding(verdicts.CONTRADICTED, finding, line, s.sentence)
    finding = (
        "the two ratios are equal at each load, as they must be where all requests generate all the time: "
        "one result shown twice, not two that agree"
    )
    return Finding(verdicts.CONFIRMED, finding, line, throughputs[0].sentence)


def product_identity(*, concurrency: Number, speeds: Numbers, throughputs: Numbers) -> Finding:
    """'Throughput is concurrency times per-user speed', tested on printed absolute numbers, side by side."""
    _same_count(speeds, throughputs)
    rows = [(s.who, concurrency.estimate * s.estimate, t, s) for s, t in zip(speeds, throughputs)]
    line = "; ".join(
        f"{who}: {concurrency.digits} × {s.text} = {product.text(t.printed.last_digit)}, printed {t.text}"
        for who, product, t, s in rows
    )
    broken = [row for row in rows if not row[1].interval.overlaps(row[2].interval)]
    if not broken:
        finding = "concurrency times speed gives the printed throughput within rounding"
        return Finding(verdicts.CONFIRMED, finding, line, throughputs[0].sentence)
    shares = ", ".join(f"{decimal_text(t.estimate.value / p.value, HUNDREDTH)} ({who})" for who, p, t, _ in broken)
    finding = f"the printed throughput is this share of concurrency times speed: {shares}"
    return Finding(verdicts.CONTRADICTED, finding, line, broken[0][2].sentence)


def occupancy(*, concurrency: Number, speeds: Numbers, throughputs: Numbers, says: Sentence | None = None) -> Finding:
    """Output throughput over concurrency × median speed, for each side. `says`: that the baseline is a composite.

    About 0.9 to 1 when decode dominates; lower when time goes to prefill, waiting or tools; above 1.05
    something is counted wrongly.
    """
    _same_count(speeds, throughputs)
    shares = [t.estimate / (concurrency.estimate * s.estimate) for s, t in zip(speeds, throughputs)]
    line = "; ".join(
        f"{s.who}: {t.text} / ({concurrency.digits} × {s.text}) = {share.text(HUNDREDTH)}"
        for s, t, share in zip(speeds, throughputs, shares)
    )
    quote = says or throughputs[0].sentence
    if min(float(share.value) for share in shares) >= DECODE_DOMINATES:
        return Finding(verdicts.CLEAR, "requests generate nearly all the time", line, quote)
    finding = (
        "below 0.9, requests are often not generating at the median speed (prefill, waiting, tools, ramp and drain, or "
        "a slow tail; which is not said), so a speed ratio is not a capacity ratio"
    )
    if says:
        finding += (
            "; the baseline's two values may come from two configurations: the faster one has at most the share shown, "
            "the one with more throughput at least that"
        )
    return Finding(verdicts.CAUTION, finding, line, quote)


def _same_count(speeds: Numbers, throughputs: Numbers) -> None:
    if len(speeds) != len(throughputs):
        raise UserError(f"{len(speeds)} speeds but {len(throughputs)} throughputs; one of each per side is needed")
