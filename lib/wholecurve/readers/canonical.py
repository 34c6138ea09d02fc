"""A table whose columns are those of point rows already: numbers that were brought into canonical form before.

Needed: contender, workload, load_kind, load, devices, device_kind and source; every other column of a point row may be
there, and further ones are kept as text.
"""

import re

from wholecurve.readers.content import Content
from wholecurve.readers.found import Found, Notes, collect
from wholecurve.readers.record import Record

FORMAT = "table of canonical points"
TEXTS = ("contender", "workload", "load_kind", "device_kind", "source")
KINDS = {
    "load_kind": ("concurrency", "sessions", "request_rate", "step_tokens"),
    "device_kind": ("gpu", "cpu", "server"),
}
COUNTS = ("devices", "repeat", "n_completed", "n_failed")
NUMBER = re.compile(
    r".*_(tok_per_s|ms|s|tokens|share)|load|power_w_per_device|achieved_concurrency|occupancy|cache_hit_rate"
)
# Of these a zero says something; of every other number it says that it was not measured.
MAY_BE_ZERO = ("cache_hit_rate", "client_lag_ms")


def recognises(content: Content) -> bool:
    """A CSV table with the columns of point rows."""
    return content.kind == "csv" and {*TEXTS, "load", "devices"} <= set(content.first.fields)


def read(content: Content, notes: Notes) -> Found:
    """The rows as they are, checked; an empty cell is absent."""
    return collect(content.path, FORMAT, content.records, notes, _point)


def _point(record: Record, notes: Notes) -> dict:
    filled = Record(record.where, {name: cell for name, cell in record.fields.items() if cell != "" and name})
    point = {}
    for name in filled.fields:
        if name in COUNTS:
            point[name] = filled.count(name, least=0 if name == "n_failed" else 1)
        elif NUMBER.fullmatch(name) and not (name in MAY_BE_ZERO and filled.number(name) == 0):
            point[name] = filled.positive(name)
        else:
            point[name] = 0.0 if name in MAY_BE_ZERO else filled.text(name)
    for name in TEXTS:
        filled.text(name)
    for name, kinds in KINDS.items():
        if point[name] not in kinds:
            raise filled.refuse(name, f"one of {', '.join(kinds)}")
    for name in ("load", "devices"):
        filled.positive(name)
    return point
