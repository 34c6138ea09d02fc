"""What an answer must match, as a request names it; `grammar` compiles it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from wholecurve.errors import UserError

KINDS = ("json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag")


@dataclass(frozen=True)
class GrammarSpec:
    """kind and text of a grammar. Build one with the functions of this class.

    text: a JSON schema, nothing, a regular expression, a grammar in the EBNF of llama.cpp, a JSON list of strings, a
    structural tag of xgrammar as JSON.
    """

    kind: Literal["json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag"]
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"kind of grammar is {self.kind!r}; it must be one of {', '.join(KINDS)}")
        if not isinstance(self.text, str):
            raise UserError(f"{self.kind} is {self.text!r}; it must be text")

    @classmethod
    def json_schema(cls, schema: dict | bool | str) -> "GrammarSpec":
        """JSON that a schema describes. schema: the schema, or its text."""
        return cls("json_schema", schema if isinstance(schema, str) else as_json("json_schema", schema))

    @classmethod
    def json_object(cls) -> "GrammarSpec":
        """Any JSON object."""
        return cls("json_object")

    @classmethod
    def regex(cls, pattern: str) -> "GrammarSpec":
        """Text that a regular expression matches as a whole."""
        return cls("regex", pattern)

    @classmethod
    def ebnf(cls, grammar: str) -> "GrammarSpec":
        """Text of a grammar in llama.cpp's EBNF whose first rule is `root`."""
        return cls("ebnf", grammar)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> "GrammarSpec":
        """One of several texts."""
        right = isinstance(choices, list | tuple) and choices and all(isinstance(c, str) and c for c in choices)
        if not right:
            raise UserError(f"choice is {choices!r}; it must be a list of one or more texts, none of them empty")
        return cls("choice", json.dumps(list(choices), ensure_ascii=False))

    @classmethod
    def structural_tag(cls, tag: dict | str) -> "GrammarSpec":
        """Text with tagged parts that have grammars of their own, as xgrammar describes them."""
        return cls("structural_tag", tag if isinstance(tag, str) else as_json("structural_tag", tag))


def as_json(kind: str, value: object) -> str:
    """JSON of a value. UserError for one that has none."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{kind} is {value!r}; it must be JSON ({error})") from None
