"""Results of InferenceX (formerly InferenceMAX): aggregate files, dashboard rows, agentic rows, experiments' summaries.

Its rows hold seconds and per-GPU numbers; ``*_intvty`` is 1/TPOT. Field names and denominators are those of its
result processing (utils/process_result.py, later infx.results.fixed_sequence; utils/agentic/aggregation).
"""

import json
from collections import defaultdict

from wholecurve.errors import UserError
from wholecurve.readers.contenders import distinguish
from wholecurve.readers.content import Content
from wholecurve.readers.found import Found, Notes, collect, found, listed_records
from wholecurve.readers.inferencex import configuration
from wholecurve.readers.inferencex.fields import has
from wholecurve.readers.inferencex.rows import to_point
from wholecurve.readers.inferencex.summary import is_summary, summary_rows
from wholecurve.readers.inferencex.summary import to_point as summary_point
from wholecurve.readers.record import Record

FORMAT = "InferenceX"
_MARKS = ("tput_per_gpu", "output_tput_per_gpu", "median_intvty", "mean_intvty")


def recognises(content: Content) -> bool:
    """True for rows with throughput per GPU or interactivity, flat or nested, and for experiments' summaries."""
    return is_summary(content.value) or any(_is_row(record) for record in _rows(content, Notes()))


def read(content: Content, notes: Notes) -> Found:
    """The points of a file. A row that gives none is dropped and named; UserError when none does."""
    if is_summary(content.value):
        metadata = Record(f"{content.path}, metadata", content.value["metadata"])
        rows = summary_rows(str(content.path), content.value, notes)
        return collect(content.path, FORMAT, rows, notes, lambda row, notes: summary_point(row, metadata, notes))
    read, points = [], []
    for record in _without_copies(_rows(content, notes), notes):
        try:
            points.append(to_point(record, notes))
        except UserError as error:
            notes.drop(str(error))
        else:
            read.append(record)
    _name(points, read)
    return found(content.path, FORMAT, points, notes)


def _is_row(record: Record) -> bool:
    return any(has(record, mark) for mark in _MARKS)


def _rows(content: Content, notes: Notes) -> list[Record]:
    """The file's rows; a manual sweep keeps them in "benchmarks"."""
    value = content.value
    if not isinstance(value, dict) or not isinstance(value.get("benchmarks"), list):
        return content.records
    return listed_records(str(content.path), "benchmark", value["benchmarks"], notes)


def _without_copies(records: list[Record], notes: Notes) -> list[Record]:
    """Rows that repeat an earlier one in every field are the same measurement, not a second one."""
    first: dict[str, Record] = {}
    for record in records:
        known = first.setdefault(json.dumps(record.fields, sort_keys=True, default=str), record)
        if known is not record:
            notes.drop(f"{record.where}: equal to {known.where} in every field; it counts once")
    return list(first.values())


def _name(points: list[dict], records: list[Record]) -> None:
    """Give each point its contender and configuration; the date tells runs apart only where nothing else does."""
    bases, parts = [configuration.base_name(r) for r in records], [configuration.parts(r) for r in records]
    names, dates = distinguish(bases, parts), defaultdict(set)
    for name, point, record in zip(names, points, records):
        dates[name, point["workload"], point["load"]].add(configuration.date(record))
    several = {name for (name, _, _), days in dates.items() if len(days) > 1}
    dated = [
        part | {"date": configuration.date(record)} if name in several else part
        for name, part, record in zip(names, parts, records)
    ]
    for point, name, part in zip(points, distinguish(bases, dated), dated):
        point["contender"] = name
        if described := ", ".join(filter(None, part.values())):
            point["configuration"] = described
