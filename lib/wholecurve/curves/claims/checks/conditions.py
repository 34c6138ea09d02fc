"""Under which conditions a number stands: framing, operating point, runs, precision, equal terms."""

from wholecurve.curves.claims import verdicts
from wholecurve.curves.claims.nouns import Finding, Number, Sentence, listed
from wholecurve.errors import UserError

Numbers = tuple[Number, ...]

FRAMING_WORDS = {
    "direct": "direct: both engines at the same load, nothing interpolated",
    "same speed": "same speed: throughput at equal speed per user, read between measured points",
    "same throughput": "same throughput: speed per user at equal throughput, read between measured points",
    "self": "self: one engine against itself",
    "ratio": "what was held equal is not said",
    "cost": "cost: derived from a throughput multiplier, not measured",
    "capacity": "capacity: derived from a throughput multiplier, not measured",
}
INTERPOLATED = ("same speed", "same throughput")
BITS = {"FP32": 32, "BF16": 16, "FP16": 16, "FP8": 8, "INT8": 8, "MXFP4": 4, "NVFP4": 4, "FP4": 4, "INT4": 4}
FEWEST_RUNS = 3
TERMS = ("framing", "against", "metric", "model", "hardware", "precision", "operating_point")


def framing(*, number: Number, lower: Number | None = None, says: Sentence | None = None) -> Finding:
    """What the multiplier holds equal, whether it is interpolated, and whether it is only an upper end.

    `lower`: the other end of its range, where the text prints it; `says`: where the text names its framing.
    """
    if number.framing not in FRAMING_WORDS:
        raise UserError(f"number {number.id!r} has framing {number.framing!r}, which compares nothing")
    words = [FRAMING_WORDS[number.framing]]
    upper_end = number.bound in ("up to", "range high")
    if upper_end:
        other = f"the lower is {lower.text}" if lower else "lower end and middle are not printed"
        words.append(f"{number.text} is an upper end, {other}")
    unsaid = number.framing == "ratio" or (upper_end and not lower) or (number.framing in INTERPOLATED and not says)
    verdict = verdicts.CAUTION if unsaid else verdicts.DISCLOSED if says or lower else verdicts.CLEAR
    return Finding(verdict, "; ".join(words), None, says or number.sentence)


def operating_point(*, numbers: Numbers) -> Finding:
    """Is it said at which load, speed or throughput the numbers stand?"""
    if without := [number for number in numbers if not number.operating_point]:
        finding = f"where on the curve is not said for {listed(without)}"
        return Finding(verdicts.CAUTION, finding, None, without[0].sentence)
    return Finding(verdicts.CLEAR, f"stated: {_points(numbers)}", None, numbers[0].sentence)


def _points(numbers: Numbers) -> str:
    """'step tokens 4,096, 8,192; concurrency 4 and 8': loads of one kind together."""
    kinds: dict[str, list[str]] = {}
    for number in numbers:
        kind, _, value = number.at.partition(number.load_text) if number.load else (number.at, "", "")
        kinds.setdefault(kind.strip(), []).append(f"{number.load_text}{value}" if number.load else "")
    return "; ".join(f"{kind} {', '.join(dict.fromkeys(values))}".rstrip() for kind, values in kinds.items())


def runs(*, numbers: Numbers, says: Sentence | None = None) -> Finding:
    """How many runs stand behind the numbers, on both sides."""
    quote, counts = says or numbers[0].sentence, list(dict.fromkeys(number.n for number in numbers))
    if not all(counts):
        return Finding(verdicts.CAUTION, "how many runs stand behind it is not said", None, quote)
    line = "; ".join(f"n = {n.replace(' / ', ' against ')}" for n in counts)
    sides = [side for number in numbers for side in number.sides("n")]
    if all(side.isdigit() and int(side) >= FEWEST_RUNS for side in sides):
        return Finding(verdicts.CLEAR, "three runs or more on each side", line, quote)
    words = ["fewer than three runs give no interval, so nothing says how much of the ratio is noise"]
    if any(len(set(number.sides("n"))) > 1 for number in numbers):
        words.append("the sides differ in how many runs")
    return Finding(verdicts.noted(says), "; ".join(words), line, quote)


def precision(*, number: Number, says: Sentence | None = None) -> Finding:
    """Do both sides compute in the same precision, and if not, whom does it favour?"""
    quote, (ours, theirs) = says or number.sentence, number.sides("precision")
    if ours not in BITS or theirs not in BITS:
        finding = f"{ours or 'unstated'} against {theirs or 'unstated'}"
        return Finding(verdicts.CAUTION, finding, None, quote)
    line = f"{ours} ({BITS[ours]} bits a weight) against {theirs} ({BITS[theirs]})"
    if BITS[ours] == BITS[theirs]:
        return Finding(verdicts.CLEAR, "the same on both sides", line, quote)
    if BITS[ours] < BITS[theirs]:
        finding = f"the lower precision of {number.who} is part of the multiplier"
        return Finding(verdicts.CAUTION, finding, line, quote)
    finding = (
        f"not one checkpoint, but it runs against {number.who}, which moves more bytes for each weight: in this "
        f"respect the multiplier is conservative"
    )
    return Finding(verdicts.noted(says), finding, line, quote)


def cross_model(*, numbers: Numbers, fields: tuple[str, ...], says: Sentence | None = None) -> Finding:
    """'On equal terms': are these fields of the numbers equal? One that differs contradicts it.

    Fields are columns of a number, see TERMS. Where the text leaves a field open for some number and none
    differs, it cannot be checked.
    """
    if unknown := [field for field in fields if field not in TERMS]:
        raise UserError(f"fields names {unknown[0]!r}; known are {', '.join(TERMS)}")
    differing, unstated, line = [], [], []
    for field in fields:
        name = {"against": "baseline"}.get(field, field.replace("_", " "))
        values = list(dict.fromkeys(getattr(number, field) for number in numbers))
        line.append(f"{name}: {' | '.join(value or 'unstated' for value in values)}")
        if len(set(filter(None, values))) > 1:
            differing.append(name)
        elif "" in values:
            unstated.append(name)
    text, quote = "; ".join(line), says or numbers[0].sentence
    if differing:
        return Finding(verdicts.CONTRADICTED, f"the terms differ in {', '.join(differing)}", text, quote)
    if unstated:
        return Finding(verdicts.CANNOT, f"not said for all: {', '.join(unstated)}", text, quote)
    return Finding(verdicts.CONFIRMED, "the same in every field compared", text, quote)
