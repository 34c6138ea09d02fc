"""What one file gave: its points in canonical metrics, and every word about what was converted, left out or dropped."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from wholecurve.curves.gates.one_curve import REQUESTS_FOR
from wholecurve.errors import UserError
from wholecurve.readers.record import Record, describe

KEY = ["contender", "workload", "load_kind", "load"]


@dataclass
class Notes:
    """Sentences that a reader collects while it reads; the same sentence is kept once, with the places it holds for."""

    converted: dict[str, list[str]] = field(default_factory=dict)
    not_converted: dict[str, list[str]] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    def convert(self, sentence: str, where: str = "") -> None:
        """Say what was converted into a canonical metric, and how."""
        self.converted.setdefault(sentence, []).append(where)

    def leave_out(self, sentence: str, where: str = "") -> None:
        """Say which field could not be converted, and why."""
        self.not_converted.setdefault(sentence, []).append(where)

    def drop(self, sentence: str) -> None:
        """Say which row, object or line gave no point, and why."""
        self.dropped.append(sentence)


@dataclass(frozen=True)
class Found:
    """One file, read: ``format`` names the tool, ``points`` has one row per point (columns as in a run's points)."""

    path: Path
    format: str
    points: pd.DataFrame
    notes: Notes

    def to_document(self) -> dict:
        """JSON values: path, format, how many points, and the sentences."""
        return {
            "path": str(self.path),
            "format": self.format,
            "points": len(self.points),
            "converted": list(self.notes.converted),
            "not_converted": [with_places(s, places) for s, places in self.notes.not_converted.items()],
            "dropped": list(self.notes.dropped),
        }


def collect(path: Path, format: str, records: Iterable[Record], notes: Notes, to_point: Callable) -> Found:
    """Turn every record into one point, or into a list of points, with ``to_point(record, notes)``.

    A record that raises UserError is dropped and named. Repeats are numbered. Raises UserError when nothing is left:
    the only reason, or the first one and how many others there are.
    """
    points = []
    for record in records:
        try:
            made = to_point(record, notes)
        except UserError as error:
            notes.drop(str(error))
        else:
            points += made if isinstance(made, list) else [made]
    return found(path, format, points, notes)


def listed_records(where: str, noun: str, rows: list, notes: Notes) -> list[Record]:
    """The objects of a list as records, "WHERE, NOUN 3"; an entry that is no object is dropped and named."""
    records = []
    for number, row in enumerate(rows, 1):
        place = f"{where}, {noun} {number}"
        if isinstance(row, dict):
            records.append(Record(place, row))
        else:
            notes.drop(f"{place}: is {describe(row)}; an object is needed")
    return records


def found(path: Path, format: str, points: list[dict], notes: Notes) -> Found:
    """The points of one file with their repeats numbered; UserError when there are none."""
    if not points:
        if not notes.dropped:
            raise UserError(f"{path}: {format}, but it holds no results; at least one measured point is needed")
        first, others = notes.dropped[0], len(notes.dropped) - 1
        raise UserError(first + (f" (and {others} more rows with no point)" if others else ""))
    return Found(path, format, number_repeats(pd.DataFrame(points), notes), notes)


def number_repeats(points: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    """Number the points of one contender, workload and load 1, 2, … in the order of the file, and say so.

    A reader that knows the repeat sets column ``repeat`` itself; where all of these differ they are kept.
    """
    if "repeat" in points and points["repeat"].notna().all() and not points.duplicated([*KEY, "repeat"]).any():
        return points.astype({"repeat": int})
    numbered = points.assign(repeat=points.groupby(KEY, dropna=False).cumcount() + 1)
    most = int(numbered["repeat"].max())
    if most > 1:
        notes.convert(f"points of one contender and load are repeats, numbered in the order of the file (up to {most})")
    return numbered


def keep_percentiles(point: dict, notes: Notes, where: str) -> dict:
    """The point without percentiles that too few completed requests carry (p90: 30, p99: 300); each is named."""
    completed = point.get("n_completed")
    kept = dict(point)
    for name in point:
        needed = next((n for part, n in REQUESTS_FOR.items() if f"_{part}_" in name), None)
        if needed and kept[name] is not None and completed is not None and completed < needed:
            del kept[name]
            notes.leave_out(f"{name}: fewer than {needed} completed requests", where)
    return kept


def with_places(sentence: str, places: Sequence[str]) -> str:
    """The sentence with the first places that it holds for, and how many more there are."""
    named = [place for place in dict.fromkeys(places) if place]
    if not named:
        return sentence
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return f"{sentence} ({', '.join(named[:3])}{more})"
