"""Files of text as every reader takes them: in UTF-8, with whole lines, and the cells of a CSV file by line number."""

import csv
import io
from pathlib import Path

from wholecurve.errors import UserError


def read_text(path: Path, needed: str) -> str:
    """The text of a file; UserError where it cannot be read or is no UTF-8, saying what is ``needed`` in its place."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text in UTF-8 (byte {error.start}); {needed} is needed") from None


def csv_lines(path: Path, text: str) -> list[tuple[int, list[str]]]:
    """(number of its first line in the file, cells without outer blanks) of every row that is not blank, names first.

    Raises UserError for text that is no CSV and for text without any cell.
    """
    rows, first = [], 1
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                rows.append((first, stripped))
            first = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {first}: not valid CSV ({error}); the line is cut off or misquoted") from None
    if not rows:
        raise UserError(f"{path}: the file is empty; a line of column names and one line per row are needed")
    return rows


def check_last_line(path: Path, text: str) -> None:
    """UserError for a file that stops in the middle of a line: its last number may have lost digits."""
    if not text.endswith(("\n", "\r")):
        line = text.count("\n") + 1
        raise UserError(
            f"{path}, line {line}: the last line has no line end, so its last value may be cut off; "
            "end the line if the file is complete"
        )
