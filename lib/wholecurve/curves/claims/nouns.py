"""What a file of published claims holds: documents, numbers, sentences, claims. Filled by `readers.published`."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from wholecurve.curves.claims.interval import Estimate, Interval, decimal_text, interval_text
from wholecurve.curves.claims.printed import Printed

FRAMINGS = (
    "direct", "same speed", "same throughput", "self", "ratio", "absolute", "cost", "capacity", "setting", "remark",
)  # fmt: skip
BOUNDS = ("", "up to", "range low", "range high", "under")
MULTIPLIER_UNITS = ("×", "% more", "% less")


@dataclass(frozen=True)
class Document:
    """One published text. `file` is the name of its stored copy, which `line` and `column` of quotes count in."""

    id: str
    file: str = ""
    publisher: str = ""
    author: str = ""
    title: str = ""
    date: str = ""
    kind: str = ""
    url: str = ""


@dataclass(frozen=True)
class Sentence:
    """Words of a document, with the line that they stand in."""

    document: str
    line: int
    quote: str

    def to_document(self) -> dict:
        return {"document": self.document, "line": self.line, "text": self.quote}


@dataclass(frozen=True)
class Reference:
    """What someone outside the audited documents says, in a short quotation or in our words, and where."""

    source: str
    says: str


@dataclass(frozen=True)
class Number:
    """One printed number. Empty text means that the document does not say.

    who, against: the engine that the number is of, and the baseline of a multiplier · framing: what was held
    equal (see FRAMINGS; a "setting" was chosen, not measured, so it is exact) · bound: "up to", an end of a
    range, or "under" for "nearly" · precision and n: "BF16 / FP8" for who / against, one value for both · line,
    column: where `quote` starts, from 1 · repeats: id of the number that this one prints again.
    """

    id: str
    document: str
    printed: Printed
    unit: str
    line: int
    quote: str
    who: str = ""
    against: str = ""
    metric: str = ""
    framing: str = ""
    bound: str = ""
    operating_point: str = ""
    hardware: str = ""
    model: str = ""
    precision: str = ""
    n: str = ""
    approximate: bool = False
    column: int | None = None
    repeats: str = ""

    @property
    def text(self) -> str:
        return self.printed.text

    @property
    def sentence(self) -> Sentence:
        return Sentence(self.document, self.line, self.quote)

    @property
    def rounding(self) -> Interval:
        """What rounds to the printed digits; a setting is exact."""
        exact = self.framing == "setting" and not self.approximate
        return Interval.exact(self.printed.value) if exact else self.printed.rounding()

    @property
    def interval(self) -> Interval:
        """What the number can stand for: `rounding`, wider where the text says that it is approximate."""
        if self.bound == "under":
            return self.printed.under()
        return self.printed.approximate() if self.approximate else self.rounding

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.printed.value, self.interval)

    @property
    def multiplier(self) -> Estimate:
        """The number as a factor: '1.37×' is 1.37, '21% more' is 1.21, '38% less' is 0.62."""
        if self.unit == "×":
            return self.estimate
        hundredths = self.estimate / Estimate.exact(100)
        return Estimate.exact(1) + hundredths if self.unit == "% more" else Estimate.exact(1) - hundredths

    @property
    def multiplier_step(self) -> Fraction:
        """A tenth of the last printed digit, in units of `multiplier`."""
        return self.printed.last_digit / (10 if self.unit == "×" else 1000)

    @property
    def load(self) -> tuple[str, Fraction] | None:
        """('concurrency', 128) from the operating point 'concurrency=128'; None where it is not one load."""
        found = re.fullmatch(r"(\w+)=(\d+(?:\.\d+)?)(?: [\w/]+)?", self.operating_point)
        return (found[1], Fraction(found[2])) if found else None

    @property
    def digits(self) -> str:
        """As printed, but a word such as 'four' as its digits."""
        return decimal_text(self.printed.value, Fraction(1)) if self.text.isalpha() else self.text

    @property
    def factor_text(self) -> str:
        """The interval of `multiplier`: '[1.205, 1.215]' for 21%."""
        return interval_text(self.multiplier.interval, self.multiplier_step)

    @property
    def at(self) -> str:
        """The operating point as people write it: 'step tokens 65,536'."""
        words = self.operating_point.replace("_", " ").replace("=", " ").replace("gpu", "GPU")
        if self.load is None:
            return words or "an unstated load"
        kind, unit = self.load[0].replace("_", " ").replace("gpu", "GPU"), self.operating_point.partition(" ")[2]
        return f"{kind} {self.load_text} {unit}".rstrip()

    @property
    def load_text(self) -> str:
        """The load as people write it, '65,536'; the whole operating point where it is not one load."""
        if self.load is None:
            return self.at
        value = self.load[1]
        return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):g}"

    def sides(self, field: str) -> tuple[str, str]:
        """`precision` or `n` of who and of against."""
        left, _, right = getattr(self, field).partition(" / ")
        return left, right or left

    def offset(self) -> int:
        """Where in `quote` the digits start, from 0; -1 when they are not there."""
        edge = r"\b" if self.text.isalpha() else ""
        found = re.search(rf"(?<![\d.,]){edge}{re.escape(self.text)}{edge}(?!\d|[.,]\d)", self.quote)
        return found.start() if found else -1


def listed(numbers: Iterable[Number]) -> str:
    """'1.12×, 1.11×': the numbers as printed."""
    return ", ".join(number.text for number in numbers)


@dataclass(frozen=True)
class Finding:
    """What one check of a claim found. `quote` is the sentence that it rests on; the audit sets `name`."""

    verdict: str
    finding: str
    arithmetic: str | None = None
    quote: Sentence | None = None
    name: str = ""

    def to_document(self) -> dict:
        quote = self.quote.to_document() if self.quote else None
        return {
            "name": self.name,
            "verdict": self.verdict,
            "finding": self.finding,
            "arithmetic": self.arithmetic,
            "quote": quote,
        }


@dataclass(frozen=True)
class Check:
    """A check that a claim asks for: the function and its arguments, ids already replaced by numbers."""

    name: str
    function: Callable[..., Finding]
    arguments: Mapping[str, object]


@dataclass(frozen=True)
class Claim:
    """A sentence of a document that is audited. `text` is its own words, from `line` to `last_line`; an ellipsis
    stands for what is left out."""

    id: str
    document: str
    line: int
    last_line: int
    text: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Published:
    """Documents, their numbers and the claims about them, by id and in the order of the file."""

    documents: Mapping[str, Document]
    numbers: Mapping[str, Number]
    claims: tuple[Claim, ...]
