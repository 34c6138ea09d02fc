"""Damage to a result file, and what must still hold: it is refused, or every number is one of the whole file's.

For the tests of all readers. ``read`` is a function of a path that returns a Found, such as ``recognise.read_file``.
"""

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import strategies as st

from wholecurve.errors import UserError

# Counts and shares that may be 0; every other number of a point is above 0 or absent.
MAY_BE_ZERO = {"n_failed", "cache_hit_rate", "cached_input_tokens", "client_lag_ms"}
# Numbered by the reader in the order of the file: a row less before them moves them.
NOT_COMPARED = {"repeat"}
DROP = object()
VALUES = {
    "dropped": DROP,
    "null": None,
    "0": 0,
    "-0.0": -0.0,
    "negative": -1,
    "NaN": math.nan,
    "infinite": math.inf,
    "minus infinite": -math.inf,
    "text": "OOM",
    "empty text": "",
    "list": [],
    "object": {},
    "true": True,
    "huge": 1e300,
    "beyond a float": 10**400,
}


@dataclass(frozen=True)
class Mutation:
    """A document with one field changed: ``field`` as ("metrics", "median"), ``change`` is a key of VALUES."""

    field: tuple
    change: str
    document: object

    def write(self, path: Path) -> Path:
        """Write it as JSON; several documents under "lines" of ``document_of_lines`` become JSON Lines."""
        lines = self.document.get("lines") if isinstance(self.document, dict) and "lines" in self.document else None
        path.write_text("\n".join(map(json.dumps, lines)) + "\n" if lines else json.dumps(self.document, indent=1))
        return path


def document_of_lines(path: Path) -> dict:
    """A JSON Lines file as one document {"lines": [...]}, to be mutated and written again."""
    return {"lines": [json.loads(line) for line in path.read_text().splitlines() if line.strip()]}


def truncations(path: Path, step: int = 100) -> Iterator[bytes]:
    """The file's beginning, cut after every ``step`` bytes, from 0 bytes up to one short of the whole."""
    data = path.read_bytes()
    for length in [*range(0, len(data), step), len(data) - 1]:
        yield data[:length]


def mutations(document: object, changes: Iterable[str] = tuple(VALUES)) -> st.SearchStrategy[Mutation]:
    """Strategy: the document with any one field at any depth dropped or set to a value that does not belong there."""
    fields = [field for field in fields_of(document) if field != ("lines",)]
    return st.builds(lambda f, c: mutate(document, f, c), st.sampled_from(fields), st.sampled_from(tuple(changes)))


def mutate(document: object, field: tuple, change: str) -> Mutation:
    """One mutation by name: for a fixed example."""
    changed = copy.deepcopy(document)
    inner = changed
    for key in field[:-1]:
        inner = inner[key]
    if VALUES[change] is DROP:
        del inner[field[-1]]
    else:
        inner[field[-1]] = VALUES[change]
    return Mutation(field, change, changed)


def assert_sound(
    read: Callable[[Path], object], path: Path, expected_points: pd.DataFrame, may_differ: Iterable[str] = ()
) -> pd.DataFrame | None:
    """The damaged file is refused with UserError (returns None), or each of its points is one of ``expected_points``.

    Every number is finite and above 0, and equal to that of one and the same expected point; what a point lacks is
    fine. ``may_differ`` names columns that the mutated field itself sets and nothing else in the file can confirm.
    """
    try:
        points = read(path).points
    except UserError as error:
        assert "\n" not in str(error) and str(path) in str(error), f"one line that names the file is needed: {error}"
        return None
    expected = [_numbers(row) for row in expected_points.to_dict("records")]
    for row in points.to_dict("records"):
        numbers = _numbers(row)
        for name, value in numbers.items():
            assert math.isfinite(value), f"{name} is {value}"
            assert value > 0 or (value == 0 and name in MAY_BE_ZERO), f"{name} is {value}"
        compared = {name: value for name, value in numbers.items() if name not in {*NOT_COMPARED, *may_differ}}
        assert any(_within(compared, other) for other in expected), _nearest(compared, expected)
    return points


def _numbers(row: dict) -> dict[str, float]:
    """The numbers of a point; a NaN stands for absent, because a frame has no other way to say it."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    }


def _within(some: dict[str, float], whole: dict[str, float]) -> bool:
    return not _differing(some, whole)


def _differing(some: dict[str, float], whole: dict[str, float]) -> dict:
    return {
        name: (value, whole.get(name))
        for name, value in some.items()
        if name not in whole or value != pytest.approx(whole[name], rel=1e-9)
    }


def _nearest(some: dict[str, float], expected: list[dict[str, float]]) -> str:
    closest = min((_differing(some, other) for other in expected), key=len)
    return f"numbers that the whole file does not give (got, expected): {closest}"


def fields_of(value: object, at: tuple = ()) -> Iterator[tuple]:
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from fields_of(item, (*at, key))
