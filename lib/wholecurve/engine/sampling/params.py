"""How a request wants its tokens chosen, checked field by field."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from wholecurve.engine.sampling.grammar_spec import GrammarSpec
from wholecurve.errors import UserError


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled. UserError for a field that is out of range, with what would be right.

    max_new_tokens: most tokens of the answer, the one that ends it included. min_new_tokens: so many first tokens are
    none that end it, and their text is not searched for stop strings. temperature: 0 is greedy. top_p: 1 keeps every
    token, 0 the best one. top_k: 0 or −1 keep every token. min_p: a token needs at least this share of the best one's
    probability. seed: None draws one. ignore_eos: the model's end tokens are tokens like others. stop_token_ids, stop:
    tokens and strings that end the answer, a single string is taken too; include_stop: the text keeps the string that
    ended it. repetition_penalty (1 is none), presence_penalty and frequency_penalty (0 is none): as in
    `wholecurve.kernels.sampling.sampling`. logit_bias: token id to what is added to its logit, −inf forbids it; kept as
    pairs in order of token id. logprobs: None for none, else how many alternatives are given beside the chosen token.
    grammar: what the whole answer must match; the end token is allowed where it does, and ends the answer even with
    ignore_eos.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] | None = None
    logprobs: int | None = None
    grammar: GrammarSpec | None = None
    include_stop: bool = False

    def __post_init__(self) -> None:
        check_whole("max_new_tokens", self.max_new_tokens, 1)
        check_whole("min_new_tokens", self.min_new_tokens, 0)
        if self.min_new_tokens > self.max_new_tokens:
            raise UserError(
                f"min_new_tokens is {self.min_new_tokens}; it must be at most max_new_tokens, {self.max_new_tokens}"
            )
        check_temperature(self.temperature)
        check_between("top_p", self.top_p, 0, 1)
        check_whole("top_k", self.top_k, -1)
        check_between("min_p", self.min_p, 0, 1)
        if self.seed is not None:
            check_seed(self.seed)
        for name in ("ignore_eos", "include_stop"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} is {getattr(self, name)!r}; it must be true or false")
        object.__setattr__(self, "stop_token_ids", checked_ids(self.stop_token_ids))
        object.__setattr__(self, "stop", checked_strings(self.stop))
        check_between("repetition_penalty", self.repetition_penalty, 0.01, 100)
        check_between("presence_penalty", self.presence_penalty, -100, 100)
        check_between("frequency_penalty", self.frequency_penalty, -100, 100)
        object.__setattr__(self, "logit_bias", checked_bias(self.logit_bias))
        if self.logprobs is not None:
            check_whole("logprobs", self.logprobs, 0)
        if self.grammar is not None:
            self._check_grammar()

    def _check_grammar(self) -> None:
        if not isinstance(self.grammar, GrammarSpec):
            raise UserError(f"grammar is {self.grammar!r}; it must be a GrammarSpec")
        if self.min_new_tokens:
            raise UserError(
                f"min_new_tokens is {self.min_new_tokens}; it must be 0 with a grammar, whose answers can only end"
            )


def is_number(value: object) -> bool:
    """Whether a value is an int or a float, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Whether a value is an int, and not true or false."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_whole(name: str, value: object, least: int) -> None:
    """UserError unless a value is a whole number of `least` or more."""
    if not is_whole(value) or value < least:
        raise UserError(f"{name} is {value!r}; it must be a whole number, {least} or more")


def check_between(name: str, value: object, low: float, high: float) -> None:
    """UserError unless a value is a number within these bounds."""
    if not is_number(value) or not low <= value <= high:
        raise UserError(f"{name} is {value!r}; it must be a number between {low} and {high}")


def check_temperature(value: object) -> None:
    """UserError unless a value is a number that is finite and not negative."""
    if not is_number(value) or not 0 <= value < math.inf:
        raise UserError(f"temperature is {value!r}; it must be a finite number, 0 (greedy) or more")


def check_seed(value: object) -> None:
    """UserError unless a value fits in 64 unsigned bits."""
    if not is_whole(value) or not 0 <= value < 2**64:
        raise UserError(f"seed is {value!r}; it must be a whole number between 0 and 2**64 - 1")


def checked_ids(value: object) -> tuple[int, ...]:
    """stop_token_ids as a tuple. UserError unless they are whole numbers of 0 or more."""
    if not isinstance(value, list | tuple) or not all(is_whole(token) and token >= 0 for token in value):
        raise UserError(f"stop_token_ids is {value!r}; it must be a list of token ids, whole numbers of 0 or more")
    return tuple(value)


def checked_strings(value: object) -> tuple[str, ...]:
    """stop as a tuple. UserError unless it is a string or several, none of them empty."""
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(isinstance(text, str) and text for text in strings):
        raise UserError(f"stop is {value!r}; it must be a string or a list of strings, none of them empty")
    return tuple(strings)


def checked_bias(value: object) -> tuple[tuple[int, float], ...] | None:
    """logit_bias as pairs in order of token id, None for none.

    UserError unless it maps token ids to numbers below +inf, each id once.
    """
    if value is None:
        return None
    pairs = value.items() if isinstance(value, Mapping) else value
    right = isinstance(value, Mapping | tuple) and all(
        isinstance(pair, tuple)
        and len(pair) == 2
        and is_whole(pair[0])
        and pair[0] >= 0
        and is_number(pair[1])
        and pair[1] < math.inf
        for pair in pairs
    )
    if not right or len({token for token, _ in pairs}) < len(pairs):
        raise UserError(
            f"logit_bias is {value!r}; it must map token ids, whole numbers of 0 or more, to numbers below +inf"
        )
    return tuple(sorted((token, float(bias)) for token, bias in pairs)) or None
