"""A table of what devices cost and draw: one row per device × tier × date, CSV.

Columns: device (one word, as "h200"), tier (as "neocloud"), usd_per_gpu_hour, all_in_kw_per_gpu (a GPU with its share
of host and network; either of the two may be empty where it is not known), source, date (YYYY-MM-DD, of the source),
note (may be empty).
"""

import datetime
import math
import re
from pathlib import Path

import pandas as pd

from wholecurve.errors import UserError
from wholecurve.readers.text_files import check_last_line, csv_lines, read_text

COLUMNS = ("device", "tier", "usd_per_gpu_hour", "all_in_kw_per_gpu", "source", "date", "note")
NUMBERS = ("usd_per_gpu_hour", "all_in_kw_per_gpu")

# No accelerator of 2026 draws this much with everything around it; more means that watts were written.
MOST_KW = 50


def read_rates(path: str | Path) -> pd.DataFrame:
    """The rows of a file of rates, with an empty number as NaN.

    Raises UserError, naming file, line and field, for a file that is no CSV, a missing, unknown or doubled column, a
    line that breaks off, an empty device, tier, source or date, a number that is zero, negative, infinite or NaN, watts
    in place of kilowatts, a row without any number, a date that is none, or a device, tier and date given twice.
    """
    path = Path(path)
    rows, seen = [], {}
    for where, cells in _lines(path):
        row = _row(where, cells)
        key = (row["device"].lower(), row["tier"], row["date"])
        if key in seen:
            raise UserError(
                f"{where}: device {row['device']!r}, tier {row['tier']!r}, date {row['date']} was already given in "
                f"{seen[key]}; a newer rate needs its own date"
            )
        seen[key] = where.rpartition(", ")[2]
        rows.append(row)
    if not rows:
        raise UserError(f"{path}: only column names, no rows; one row per device and tier is needed")
    return pd.DataFrame(rows, columns=COLUMNS)


def _lines(path: Path) -> list[tuple[str, dict[str, str]]]:
    """("FILE, line N", cells by column) of every line that is not blank."""
    text = read_text(path, "a CSV file")
    (_, columns), *lines = csv_lines(path, text)
    _check_columns(path, columns)
    for number, cells in lines:
        if len(cells) != len(columns):
            raise UserError(
                f"{path}, line {number}: {len(cells)} cells for {len(columns)} columns; it is cut off or misquoted"
            )
    check_last_line(path, text)
    return [(f"{path}, line {number}", dict(zip(columns, cells))) for number, cells in lines]


def _check_columns(path: Path, columns: list[str]) -> None:
    for problem, names in (
        ("missing", [name for name in COLUMNS if name not in columns]),
        ("unknown", [name for name in columns if name not in COLUMNS]),
        ("given twice", sorted({name for name in columns if columns.count(name) > 1})),
    ):
        if names:
            raise UserError(f"{path}: column {', '.join(names)} is {problem}; the columns are {', '.join(COLUMNS)}")


def _row(where: str, cells: dict[str, str]) -> dict:
    for field in ("device", "tier", "source", "date"):
        if not cells[field]:
            raise UserError(f"{where}: {field} is empty; every rate says what it is of and where it comes from")
    if not re.fullmatch(r"[A-Za-z0-9]+", cells["device"]):
        raise UserError(f"{where}: device is {cells['device']!r}; one word of letters and digits is needed, as h200")
    _check_date(where, cells["date"])
    numbers = {field: _number(where, field, cells[field]) for field in NUMBERS}
    if all(math.isnan(value) for value in numbers.values()):
        raise UserError(f"{where}: usd_per_gpu_hour and all_in_kw_per_gpu are both empty; such a row says nothing")
    if numbers["all_in_kw_per_gpu"] > MOST_KW:
        raise UserError(
            f"{where}: all_in_kw_per_gpu is {numbers['all_in_kw_per_gpu']:g}; kilowatts are needed, this reads as watts"
        )
    return cells | numbers


def _number(where: str, field: str, text: str) -> float:
    if not text:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{where}: {field} is {text!r}; a plain number above 0 is needed, or nothing") from None
    if value == 0:
        raise UserError(f"{where}: {field} is 0; leave it empty where it is not known, 0 would read as free")
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{where}: {field} is {text}; a finite number above 0 is needed, or nothing")
    return value


def _check_date(where: str, text: str) -> None:
    try:
        valid = datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        valid = False
    if not valid:
        raise UserError(f"{where}: date is {text!r}; a day written YYYY-MM-DD is needed")
