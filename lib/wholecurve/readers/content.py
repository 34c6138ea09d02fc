"""The content of a file before anyone knows whose it is: JSON, several JSON objects, CSV, YAML or plain text."""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from wholecurve.errors import UserError
from wholecurve.readers.record import Record, describe
from wholecurve.readers.text_files import check_last_line, csv_lines, read_text

Kind = Literal["json", "jsonl", "csv", "yaml", "text"]
# Larger files are raw data of another kind (traces, weights), and reading them would take the machine's memory.
LARGEST_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Content:
    """A file, parsed.

    ``value`` is the JSON or YAML document; for "jsonl" and "csv" it is None and ``records`` has the rows.
    ``skipped`` names what was passed over: lines that are no JSON objects, as log lines or one that breaks off.
    """

    path: Path
    kind: Kind
    text: str
    value: object = None
    rows: tuple[Record, ...] = ()
    skipped: tuple[str, ...] = ()

    @cached_property
    def records(self) -> list[Record]:
        """The rows: of JSON Lines or CSV, or the objects of a JSON list, or the one object."""
        if self.rows:
            return list(self.rows)
        if isinstance(self.value, dict):
            return [Record(str(self.path), self.value)]
        if isinstance(self.value, list):
            return [
                Record(f"{self.path}, row {i}", row) for i, row in enumerate(self.value, 1) if isinstance(row, dict)
            ]
        return []

    @property
    def first(self) -> Record:
        """The first record, or an empty one: what a reader looks at to recognise its format."""
        return self.records[0] if self.records else Record(str(self.path), {})


def read_content(path: Path) -> Content:
    """Parse a file by what it holds, not by its name. UserError for one that is empty, unreadable or cut off."""
    text = _text(path)
    if not text.strip():
        raise UserError(f"{path}: the file is empty; a result file is needed")
    if text.lstrip()[0] in "[{":
        return _json(path, text)
    if path.suffix in (".yaml", ".yml"):
        return _yaml(path, text)
    if path.suffix == ".csv":
        return Content(path, "csv", text, rows=_csv(path, text))
    return _after_log(path, text)


def _text(path: Path) -> str:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if size > LARGEST_BYTES:
        raise UserError(f"{path}: larger than {LARGEST_BYTES >> 20} MiB; a result file is smaller")
    return read_text(path, "a result file")


def _json(path: Path, text: str) -> Content:
    try:
        value = _loads(text)
    except (ValueError, RecursionError) as error:
        problem = error
    else:
        return Content(path, "json", text, value=value, skipped=_no_objects(path, value))
    several = _json_objects(path, text) if text.lstrip()[0] == "{" else None
    if several and several.rows:
        return several
    reason = f"line {problem.lineno}, {problem.msg}" if isinstance(problem, json.JSONDecodeError) else str(problem)
    raise UserError(f"{path}: not valid JSON ({reason}); the file is cut off or damaged") from None


def _no_objects(path: Path, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    wrong = [(i, row) for i, row in enumerate(value, 1) if not isinstance(row, dict)]
    return tuple(f"{path}, row {i}: is {describe(row)}; an object is needed" for i, row in wrong)


def _json_objects(path: Path, text: str) -> Content:
    """Objects one after another: one on each line (JSON Lines), or each over several lines (appended results)."""
    first_line = text.lstrip().splitlines()[0]
    try:
        _loads(first_line)
    except (ValueError, RecursionError):
        return _appended_objects(path, text)
    return _json_lines(path, text)


def _appended_objects(path: Path, text: str) -> Content:
    rows, skipped, at, decoder = [], [], 0, json.JSONDecoder(object_pairs_hook=_unique)
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            line = text.count("\n", 0, at) + 1
            skipped.append(_cut(path, line, len(rows)))
            break
        if isinstance(value, dict):
            rows.append(Record(f"{path}, object {len(rows) + 1}", value))
        else:
            skipped.append(f"{path}, after object {len(rows)}: {describe(value)}; an object is needed")
    return Content(path, "jsonl", text, rows=tuple(rows), skipped=tuple(skipped))


def _after_log(path: Path, text: str) -> Content:
    """A result that log lines precede (a tool's output that was sent to a file), else plain text."""
    lines = text.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if line[0] in "[{"), None)
    if start is not None:
        try:
            content = _json(path, "\n" * start + "".join(lines[start:]))
        except UserError:
            content = None
        if content:
            return replace(content, skipped=(f"{path}: {start} log lines before the result", *content.skipped))
    return Content(path, "text", text)


def _cut(path: Path, line: int, before: int) -> str:
    return f"{path}, line {line}: no valid JSON from here on; {before} objects before it were read, the rest is cut off"


def _json_lines(path: Path, text: str) -> Content:
    rows, skipped = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = _loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            rows.append(Record(where, value))
        else:
            skipped.append(f"{where}: no JSON object ({line.strip()[:40]!r}); skipped")
    return Content(path, "jsonl", text, rows=tuple(rows), skipped=tuple(skipped))


def _csv(path: Path, text: str) -> tuple[Record, ...]:
    (first, names), *lines = csv_lines(path, text)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{path}: column {', '.join(twice)} occurs twice")
    for number, cells in lines:
        if len(cells) != len(names):
            raise UserError(f"{path}, line {number}: {len(cells)} cells, but line {first} names {len(names)} columns")
    check_last_line(path, text)
    return tuple(Record(f"{path}, line {number}", dict(zip(names, cells))) for number, cells in lines)


def _yaml(path: Path, text: str) -> Content:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    check_last_line(path, text)
    try:
        value = yaml.load(text, Loader=loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{where}: not valid YAML; the file is cut off or damaged") from None
    return Content(path, "yaml", text, value=value)


def _loads(text: str) -> object:
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, object]]) -> dict:
    """A JSON object whose field occurs twice has no one value: it is refused, not decided."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice!r} occurs twice in one object")
    return made
