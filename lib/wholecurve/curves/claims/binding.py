"""From a check as a claims file writes it to the function and arguments that carry it out."""

import inspect
import types
from collections.abc import Mapping
from functools import cache
from typing import Union, get_args, get_origin, get_type_hints

from wholecurve.curves.claims.checks import CHECKS
from wholecurve.curves.claims.nouns import Check, Claim, Document, Number, Published, Reference, Sentence
from wholecurve.errors import UserError

# Given to a check by the audit, not by the file.
INJECTED = {"claim": Claim, "published": Published}


class Binder:
    """Replaces number ids by numbers and {line, quote} by sentences, for the checks of one claims file."""

    def __init__(self, documents: Mapping[str, Document], numbers: Mapping[str, Number]):
        self._documents, self._numbers = documents, numbers

    def bind(self, where: str, document: str, name: str, given: object) -> Check:
        """The check `name` with arguments `given`, of a claim in `document`.

        Raises UserError, beginning with `where`, for an unknown check, a missing or unknown field, an
        unknown id or a value of the wrong kind.
        """
        if name not in CHECKS:
            raise UserError(f"{where}: check {name!r} is unknown; known are {', '.join(CHECKS)}")
        where = f"{where}, check {name!r}"
        if not isinstance(given, Mapping):
            raise UserError(f"{where}: fields and their values are needed, not {given!r}")
        fields, needed = _fields(name)
        if unknown := [field for field in given if field not in fields]:
            raise UserError(f"{where}: field {unknown[0]!r} is unknown; known are {', '.join(fields) or 'none'}")
        if missing := [field for field in needed if field not in given]:
            raise UserError(f"{where}: field {missing[0]!r} is missing")
        arguments = {
            field: self._value(f"{where}, field {field!r}", document, fields[field], value)
            for field, value in given.items()
        }
        return Check(name, CHECKS[name], arguments)

    def _value(self, where: str, document: str, kind: object, value: object) -> object:
        if get_origin(kind) in (Union, types.UnionType):
            kind = next(option for option in get_args(kind) if option is not type(None))
        if get_origin(kind) is tuple:
            if not isinstance(value, list) or not value:
                raise UserError(f"{where}: a list of one or more is needed, not {value!r}")
            return tuple(self._value(where, document, get_args(kind)[0], item) for item in value)
        if kind is Number:
            return self._number(where, value)
        if kind is Sentence:
            return self.sentence(where, document, value)
        if kind is Reference:
            return Reference(*texts(where, value, ("source", "says")))
        if type(value) is not kind:
            raise UserError(f"{where}: is {value!r}; {'true or false' if kind is bool else 'text'} is needed")
        return value

    def _number(self, where: str, value: object) -> Number:
        if not isinstance(value, str) or value not in self._numbers:
            raise UserError(f"{where}: there is no number {value!r}; ids are those of the numbers file")
        return self._numbers[value]

    def sentence(self, where: str, document: str, value: object) -> Sentence:
        """{line, quote} or, for another document than the claim's, {document, line, quote}."""
        if not isinstance(value, Mapping) or not {"line", "quote"} <= set(value) <= {"line", "quote", "document"}:
            raise UserError(f"{where}: is {value!r}; line and quote are needed, and document where it is another one")
        source = value.get("document", document)
        if source not in self._documents:
            raise UserError(f"{where}: there is no document {source!r}; there is {', '.join(self._documents)}")
        (quote,) = texts(where, {"quote": value["quote"]}, ("quote",))
        return Sentence(source, line_number(where, value["line"]), quote)


def texts(where: str, value: object, names: tuple[str, ...]) -> list[str]:
    """The named texts of a mapping that has exactly these; UserError where one is missing, empty or no text."""
    if not isinstance(value, Mapping) or set(value) != set(names):
        raise UserError(f"{where}: is {value!r}; {' and '.join(names)} are needed")
    for name in names:
        if not isinstance(value[name], str) or not value[name].strip():
            raise UserError(f"{where}: {name} is {value[name]!r}; text is needed")
    return [value[name] for name in names]


def line_number(where: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise UserError(f"{where}: line is {value!r}; a whole number from 1 up is needed")
    return value


@cache
def _fields(name: str) -> tuple[dict[str, object], list[str]]:
    """The fields of a check with their kinds, and the names of those that must be given."""
    hints = get_type_hints(CHECKS[name])
    parameters = {k: p for k, p in inspect.signature(CHECKS[name]).parameters.items() if k not in INJECTED}
    needed = [k for k, p in parameters.items() if p.default is inspect.Parameter.empty]
    return {k: hints[k] for k in parameters}, needed
