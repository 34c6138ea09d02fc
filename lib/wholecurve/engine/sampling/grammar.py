"""Grammars compiled for a tokenizer, and where a request stands in its own. xgrammar does the work."""

import json
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wholecurve.engine.sampling.grammar_spec import GrammarSpec
from wholecurve.engine.sampling.schema import prepared_schema
from wholecurve.errors import UserError

CACHE_BYTES = 256 * 2**20  # of compiled grammars that are kept
MOST_CHARACTERS, MOST_NESTING = 2**18, 64  # of a grammar's text: compiling is more than linear in the nesting
MOST_WHITESPACE = 32  # in a row between the parts of JSON: models that may go on with it for ever sometimes do


class Grammars:
    """Compiles grammars for one tokenizer; a grammar that comes again is not compiled again.

    A JSON schema with many parts takes up to a second, on the thread that asks.
    """

    def __init__(self, tokenizer, vocab_size: int, end_token_ids: Sequence[int]):
        """tokenizer: of transformers. vocab_size: columns of the model's logits. end_token_ids: those of the model;
        without any, the tokenizer's.
        """
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._end_token_ids = list(end_token_ids)
        self._compiler = None

    def matcher(self, spec: GrammarSpec) -> "Matcher":
        """A matcher at the beginning of an answer. UserError for a grammar that is wrong."""
        check_size(spec)
        try:
            import xgrammar
        except ImportError:
            raise UserError(f"{spec.kind}: grammars need the package xgrammar, which is not installed") from None
        if self._compiler is None:
            self._compiler = self._build_compiler()
        try:
            matcher = Matcher(xgrammar.GrammarMatcher(compiled(self._compiler, spec)))
        except RuntimeError as error:
            raise UserError(f"{spec.kind} cannot be used: {one_line(error)}") from None
        bits = torch.zeros(xgrammar.get_bitmask_shape(1, self._vocab_size), dtype=torch.int32)
        matcher.fill(bits, 0)
        if not bits.any():
            raise UserError(f"{spec.kind} cannot be used: no text matches it")
        return matcher

    def _build_compiler(self):
        import xgrammar

        ends = self._end_token_ids
        if not ends and self._tokenizer.eos_token_id is None:
            raise UserError("grammar: neither model nor tokenizer has an end token, so no answer could end")
        info = xgrammar.TokenizerInfo.from_huggingface(
            self._tokenizer, vocab_size=self._vocab_size, stop_token_ids=ends or [self._tokenizer.eos_token_id]
        )
        return xgrammar.GrammarCompiler(info, cache_limit_bytes=CACHE_BYTES)


def compiled(compiler, spec: GrammarSpec):
    """What xgrammar makes of a grammar. RuntimeError and UserError for one that is wrong."""
    match spec.kind:
        case "json_schema":
            return compile_schema(compiler, prepared_schema(parsed(spec)))
        case "json_object":
            return compile_schema(compiler, {"type": "object"})
        case "regex":
            return compiler.compile_regex(spec.text)
        case "ebnf":
            return compiler.compile_grammar(spec.text)
        case "choice":
            return compiler.compile_grammar(choice_grammar(parsed(spec)))
        case "structural_tag":
            return compiler.compile_structural_tag(json.dumps(with_prepared_schemas(parsed(spec))))


def compile_schema(compiler, schema: Any):
    """A schema as JSON Schema means it: what it does not speak of is open, unlike in xgrammar's strict mode."""
    text = json.dumps(schema, ensure_ascii=False)
    return compiler.compile_json_schema(text, strict_mode=False, max_whitespace_cnt=MOST_WHITESPACE)


def with_prepared_schemas(part: Any, where: str = "#") -> Any:
    """A part of a structural tag with every JSON schema in it prepared."""
    if isinstance(part, list):
        return [with_prepared_schemas(entry, f"{where}/{i}") for i, entry in enumerate(part)]
    if not isinstance(part, dict):
        return part
    prepare = {"json_schema": prepared_schema}
    return {key: prepare.get(key, with_prepared_schemas)(value, f"{where}/{key}") for key, value in part.items()}


def parsed(spec: GrammarSpec) -> Any:
    """The JSON in a grammar's text."""
    try:
        return json.loads(spec.text)
    except ValueError as error:
        raise UserError(f"{spec.kind} cannot be used: it is not JSON ({error})") from None


def check_size(spec: GrammarSpec) -> None:
    """UserError for a text that is too long or too deeply nested to be compiled in a bounded time."""
    if len(spec.text) > MOST_CHARACTERS:
        raise UserError(f"{spec.kind} has {len(spec.text)} characters; it must have at most {MOST_CHARACTERS}")
    depth = 0
    outside = re.sub(r"\\." if spec.kind == "regex" else r'"(?:[^"\\]|\\.)*"', "", spec.text)
    for bracket in re.findall(r"[(\[{}\])]", outside):
        depth += 1 if bracket in "([{" else -1
        if depth > MOST_NESTING:
            raise UserError(f"{spec.kind} is nested too deeply; at most {MOST_NESTING} brackets may be open")


class Matcher:
    """Where one request stands in its grammar. Drafts are walked for a step and forgotten after it."""

    def __init__(self, matcher):
        self._matcher = matcher
        self._walked: list[int] = []  # drafts that the matcher has accepted beyond the committed tokens

    @property
    def is_terminated(self) -> bool:
        """Whether the end token has been committed."""
        return self._matcher.is_terminated()

    def fill(self, bits: Tensor, row: int, drafts: Sequence[int] = ()) -> None:
        """Write which tokens may come after these drafts to a row of bits [rows, V / 32] int32; all of them after an
        end or after a draft that is not allowed.
        """
        if not self._walk(list(drafts)) or self._matcher.is_terminated():
            bits[row] = -1
        else:
            self._matcher.fill_next_token_bitmask(bits, row)

    def _walk(self, drafts: list[int]) -> bool:
        """Bring the matcher to the end of the drafts; False where one is not allowed."""
        if drafts[: len(self._walked)] != self._walked:
            self.forget_drafts()
        for token in drafts[len(self._walked) :]:
            if not self._matcher.accept_token(token):
                return False
            self._walked.append(token)
        return True

    def forget_drafts(self) -> None:
        """Go back to the committed tokens."""
        if self._walked:
            self._matcher.rollback(len(self._walked))
            self._walked = []

    def commit(self, token_ids: Sequence[int]) -> None:
        """Go on by tokens that are certain. RuntimeError for one that the grammar does not allow."""
        self.forget_drafts()
        for token in token_ids:
            if not self._matcher.accept_token(token):
                raise RuntimeError(f"token {token} was sampled, and the grammar does not allow it")


def choice_grammar(choices: Sequence[str]) -> str:
    """EBNF of one of several texts."""
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def one_line(error: Exception) -> str:
    """The message of xgrammar in a line: without time and place in its source, and without the text that it quotes."""
    text = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", " ".join(str(error).split()))
    text = re.sub(r"^Check failed: \(.*?\) is false: ", "", text)
    return text.split(" The JSON string is:")[0][:300]
