"""From a text like `ngram:4` to a proposer."""

from dataclasses import dataclass
from typing import get_args

from wholecurve.engine.load import DTYPES, load_model
from wholecurve.engine.speculation.draft_model import DraftModelProposer
from wholecurve.engine.speculation.ngram import NgramProposer
from wholecurve.engine.speculation.proposer import Proposer
from wholecurve.engine.speculation.rates import Reading, expected_tokens
from wholecurve.engine.speculation.synthetic import SyntheticProposer
from wholecurve.errors import UserError
from wholecurve.models.resolve import resolve

FORMS = {
    "ngram": "ngram:DRAFTS or ngram:DRAFTS:LEAST-MOST",
    "draft": "draft:MODEL:DRAFTS",
    "synthetic": "synthetic:DRAFTS:ACCEPTANCE:READING or synthetic:DRAFTS:ACCEPTANCE:READING:SEED",
}


@dataclass(frozen=True)
class NgramSpec:
    """`ngram:4` or, with the least and most tokens that must match, `ngram:4:2-5`."""

    max_drafts: int
    min_match: int = 2
    max_match: int = 4

    def build(self, target, **_) -> Proposer:
        return NgramProposer(self.max_drafts, self.min_match, self.max_match)


@dataclass(frozen=True)
class DraftSpec:
    """`draft:smollm2-135m:4`: a model by any of the names that `resolve` knows."""

    model: str
    max_drafts: int

    def build(self, target, **cache_options) -> Proposer:
        """Loads the model in the target's dtype, on its device. UserError for another vocabulary."""
        dtype = next(name for name, dtype in DTYPES.items() if dtype == target.dtype)
        model = load_model(resolve(self.model), dtype, str(target.device))
        return DraftModelProposer(model, self.max_drafts, vocab_size=target.config.vocab_size, **cache_options)


@dataclass(frozen=True)
class SyntheticSpec:
    """`synthetic:3:0.75:conditional`: three drafts of which each stays with chance 0.75."""

    max_drafts: int
    acceptance: float
    reading: Reading
    seed: int = 0

    def build(self, target, **_) -> Proposer:
        ends = target.config.eos_token_ids
        return SyntheticProposer(self.max_drafts, self.acceptance, self.reading, self.seed, ends)


Spec = NgramSpec | DraftSpec | SyntheticSpec


def parse_speculation(text: str) -> Spec:
    """Read a text in one of the FORMS; nothing is loaded yet. UserError that names the part which is wrong.

    `.build(target, cache_tokens=…, block_size=…, max_batch_tokens=…)` then gives the proposer for a target model; the
    options are those of a draft model's own cache.
    """
    kind, *parts = text.split(":")
    if kind == "ngram" and len(parts) in (1, 2):
        return NgramSpec(_whole(text, "DRAFTS", parts[0]), *(_runs(text, parts[1]) if len(parts) == 2 else ()))
    if kind == "draft" and len(parts) >= 2:
        model = ":".join(parts[:-1])  # a path may hold colons
        if not model:
            raise UserError(f"speculation {text!r}: MODEL is empty; it must be a model's name or path")
        return DraftSpec(model, _whole(text, "DRAFTS", parts[-1]))
    if kind == "synthetic" and len(parts) in (3, 4):
        return _synthetic(text, *parts)
    if kind == "synthetic" and len(parts) == 2:
        drafts, acceptance = _whole(text, "DRAFTS", parts[0]), _share(text, parts[1])
        means = {reading: expected_tokens(drafts, acceptance, reading) for reading in get_args(Reading)}
        said = " or ".join(f"{reading} ({mean:.4g} tokens per step)" for reading, mean in means.items())
        raise UserError(f"speculation {text!r}: READING is missing; it must be {said}")
    expected = FORMS[kind] if kind in FORMS else ", ".join(FORMS.values())
    raise UserError(f"speculation {text!r}; it must be {expected}")


def _synthetic(text: str, drafts: str, acceptance: str, reading: str, seed: str = "0") -> SyntheticSpec:
    if reading not in get_args(Reading):
        raise UserError(f"speculation {text!r}: READING is {reading!r}; it must be {' or '.join(get_args(Reading))}")
    return SyntheticSpec(
        _whole(text, "DRAFTS", drafts), _share(text, acceptance), reading, _whole(text, "SEED", seed, least=0)
    )


def _whole(text: str, name: str, value: str, least: int = 1) -> int:
    if not (value.isascii() and value.isdecimal() and int(value) >= least):
        raise UserError(f"speculation {text!r}: {name} is {value!r}; it must be a whole number, {least} or more")
    return int(value)


def _runs(text: str, value: str) -> tuple[int, int]:
    least, dash, most = value.partition("-")
    if not dash:
        raise UserError(f"speculation {text!r}: LEAST-MOST is {value!r}; it must be two whole numbers like 2-4")
    runs = _whole(text, "LEAST", least), _whole(text, "MOST", most)
    if runs[0] > runs[1]:
        raise UserError(f"speculation {text!r}: LEAST is {least}; it must be at most MOST, {most}")
    return runs


def _share(text: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UserError(f"speculation {text!r}: ACCEPTANCE is {value!r}; it must be a number between 0 and 1")
    return share
