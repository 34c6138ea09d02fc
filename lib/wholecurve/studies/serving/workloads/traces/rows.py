"""Rows of trace files, each with its place, from JSON lines, CSV or one JSON document; compressed with gzip or not."""

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from wholecurve.errors import UserError
from wholecurve.readers.record import Record


def open_text(path: Path) -> TextIO:
    """The file as text; UserError where it cannot be opened."""
    try:
        return (
            gzip.open(path, "rt", encoding="utf-8", newline="")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8", newline="")
        )
    except FileNotFoundError:
        raise UserError(f"{path}: no such trace file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def json_lines(path: Path) -> Iterator[Record]:
    """One record per line that is not blank; UserError names file and line where one is no JSON object."""
    with open_text(path) as file:
        for number, line in enumerate(_readable(path, file), start=1):
            if line.strip():
                yield Record(f"{path}, line {number}", parse_object(line, f"{path}, line {number}"))


def csv_rows(path: Path, needed: tuple[str, ...]) -> Iterator[Record]:
    """One record per row below the header; UserError where a needed column is not there."""
    with open_text(path) as file:
        reader = csv.DictReader(_readable(path, file), strict=True)
        try:
            if missing := [name for name in needed if name not in (reader.fieldnames or [])]:
                raise UserError(f"{path}, line 1: no column {missing[0]!r}; needed are {', '.join(needed)}")
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                if None in row or None in row.values():
                    raise UserError(f"{where}: not as many cells as the header has columns")
                yield Record(where, row)
        except csv.Error as error:
            raise UserError(f"{path}, line {reader.line_num}: not a CSV row ({error})") from None


def json_document(path: Path) -> Any:
    """The whole file as one JSON document."""
    with open_text(path) as file:
        text = "".join(_readable(path, file))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from None


def parse_object(text: str, where: str) -> dict:
    """A JSON object from text; UserError says where it is none."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON ({error.msg})") from None
    if not isinstance(document, dict):
        raise UserError(f"{where}: holds a JSON {type(document).__name__}; an object is needed")
    return document


def block_hashes(record: Record, name: str) -> tuple[int | str, ...]:
    """A list of hashes, whole numbers or texts; empty where the field is absent or null."""
    if not record.has(name):
        return ()
    hashes = record.raw(name)
    if not isinstance(hashes, list) or not all(type(part) in (int, str) for part in hashes):
        raise record.refuse(name, "a list of whole numbers or texts")
    return tuple(hashes)


def _readable(path: Path, file: TextIO) -> Iterator[str]:
    try:
        yield from file
    except (UnicodeDecodeError, EOFError, OSError) as error:
        raise UserError(f"{path}: not a text file, or not a whole one ({error})") from None
