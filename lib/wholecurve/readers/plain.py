"""A plain table of points, CSV or Parquet: the format for numbers that come from anywhere.

Columns: contender, concurrency, decode_speed_tok_per_s (one user), output_throughput_tok_per_s (all devices
together), gpus (empty for a CPU machine); repeat may be left out, which means 1, and so may workload, which
means "decode". Optional: model, precision and hardware (compared between both sides of a multiplier), n_completed and
n_failed (requests), power_w_per_device, and latencies that carry percentile and unit in the name, as ttft_p50_ms or
e2e_p90_s, for ttft, tpot and e2e.
"""

import math
import re
from pathlib import Path

import pandas as pd

from wholecurve.errors import UserError
from wholecurve.readers.text_files import check_last_line, csv_lines, read_text

REQUIRED = ("contender", "concurrency", "decode_speed_tok_per_s", "output_throughput_tok_per_s", "gpus")
CONDITIONS = ("model", "precision", "hardware")
COUNTS = ("n_completed", "n_failed")
OPTIONAL = ("repeat", "workload", *CONDITIONS, *COUNTS, "power_w_per_device")
LATENCY = re.compile(r"(ttft|tpot|e2e)_(p50|p90|p99)_(ms|s)")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE)

# Decode speed is 1/median(TPOT) by definition; a file in which the two are this far apart has a wrong unit.
SPEED_DISAGREES = 1.5

# Where a row stands in its file ("line 7"), and its cells as text, "" for an empty one.
Row = tuple[str, dict[str, str]]


def read_plain(path: str | Path) -> pd.DataFrame:
    """The frame of points in a CSV file, or in a Parquet file where pyarrow is installed.

    Latencies come out in ms; ``window`` is "full", because the file does not say otherwise. Raises
    UserError, naming file, line (row for Parquet) and field, for a missing, unknown or doubled column, a
    cell that is not a finite number above 0, a point that occurs twice, a line that breaks off, a TPOT that
    contradicts the decode speed, or no rows.
    """
    path = Path(path)
    columns, rows = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    _check_columns(path, columns)
    points, seen = [], {}
    for where, cells in rows:
        point = _point(f"{path}, {where}", cells)
        key = tuple(point[k] for k in ("contender", "workload", "load", "repeat"))
        if key in seen:
            raise UserError(
                f"{path}, {where}: contender {key[0]!r}, workload {key[1]!r}, concurrency "
                f"{key[2]}, repeat "
                f"{key[3]} was already given in {seen[key]}; number repeats apart in column "
                "repeat"
            )
        seen[key] = where
        points.append(point)
    if not points:
        raise UserError(f"{path}: only column names, no rows; one row per point is needed")
    return pd.DataFrame(points)


def _csv(path: Path) -> tuple[list[str], list[Row]]:
    text = read_text(path, "a CSV file")
    (first, columns), *lines = csv_lines(path, text)
    rows = []
    for number, cells in lines:
        if len(cells) != len(columns):
            raise UserError(
                f"{path}, line {number}: {len(cells)} cells, but line {first} names {len(columns)} "
                "columns; the line is cut off or has a comma too many"
            )
        rows.append((f"line {number}", dict(zip(columns, cells))))
    check_last_line(path, text)
    return columns, rows


def _parquet(path: Path) -> tuple[list[str], list[Row]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path}: reading Parquet needs pyarrow (pip install pyarrow), or save it as CSV") from error
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: cannot be read as Parquet ({error})") from error
    rows = [
        (f"row {number}", {k: "" if v is None else str(v) for k, v in row.items()})
        for number, row in enumerate(table.to_pylist(), start=1)
    ]
    return list(table.column_names), rows


def _check_columns(path: Path, columns: list[str]) -> None:
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise UserError(f"{path}: column {', '.join(missing)} is missing; it has {', '.join(columns)}")
    if len(set(columns)) < len(columns):
        twice = sorted({name for name in columns if columns.count(name) > 1})
        raise UserError(f"{path}: column {', '.join(twice)} occurs twice")
    unknown = [name for name in columns if name not in REQUIRED + OPTIONAL and not LATENCY.fullmatch(name)]
    if unknown:
        raise UserError(
            f"{path}: column {', '.join(unknown)} is unknown; known are "
            f"{', '.join(REQUIRED + OPTIONAL)} and "
            "latencies with percentile and unit in the name, such as ttft_p50_ms or e2e_p90_s"
        )
    targets = [_latency_column(name) for name in columns if LATENCY.fullmatch(name)]
    if len(set(targets)) < len(targets):
        raise UserError(f"{path}: a latency is given in ms and in s at once; one unit is needed")


def _point(where: str, cells: dict[str, str]) -> dict:
    if not cells["contender"]:
        raise UserError(f"{where}: contender is empty; a name is needed")
    gpus = _whole(where, "gpus", cells["gpus"]) if cells["gpus"] else None
    kind = "cpu" if gpus is None else "gpu"
    point = {
        "contender": cells["contender"],
        "workload": cells.get("workload") or "decode",
        "load_kind": "concurrency",
        "load": _whole(where, "concurrency", cells["concurrency"]),
        "repeat": _whole(where, "repeat", cells["repeat"]) if "repeat" in cells else 1,
        "devices": gpus or 1,
        "device_kind": kind,
        "source": f"measured ({kind})",
        "decode_speed_tok_per_s": _positive(where, "decode_speed_tok_per_s", cells["decode_speed_tok_per_s"]),
        "output_throughput_tok_per_s": _positive(
            where, "output_throughput_tok_per_s", cells["output_throughput_tok_per_s"]
        ),
        "window": "full",
    }
    point |= {name: cells[name] for name in filter(cells.get, CONDITIONS)}
    for name in filter(cells.get, COUNTS):
        point[name] = _whole(where, name, cells[name], least=0)
    if cells.get("power_w_per_device"):
        point["power_w_per_device"] = _positive(where, "power_w_per_device", cells["power_w_per_device"])
    for name in filter(LATENCY.fullmatch, cells):
        # An empty latency was not measured; only the two axes of the curve must be there.
        value = _positive(where, name, cells[name]) if cells[name] else math.nan
        point[_latency_column(name)] = value if name.endswith("_ms") else 1000 * value
    _check_unit(where, point)
    return point


def _latency_column(name: str) -> str:
    return "{}_{}_ms".format(*LATENCY.fullmatch(name).groups())


def _check_unit(where: str, point: dict) -> None:
    tpot, speed = point.get("tpot_p50_ms", math.nan), point["decode_speed_tok_per_s"]
    off = speed * tpot / 1000
    if off > SPEED_DISAGREES or off < 1 / SPEED_DISAGREES:
        raise UserError(
            f"{where}: a median TPOT of {tpot:g} ms means {1000 / tpot:.4g} tok/s/user, but "
            f"decode_speed_tok_per_s is {speed:g}; one of them has another unit or definition"
        )


def _positive(where: str, field: str, text: str) -> float:
    if not NUMBER.fullmatch(text):
        raise UserError(f"{where}: {field} is {text!r}; a plain number above 0 is needed")
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise UserError(
            f"{where}: {field} is {text}; a finite number above 0 is needed (leave out a point that was not measured)"
        )
    return value


def _whole(where: str, field: str, text: str, least: int = 1) -> int:
    value = 0.0 if least == 0 and text == "0" else _positive(where, field, text)
    if value != int(value):
        raise UserError(f"{where}: {field} is {text}; a whole number from {least} up is needed")
    return int(value)
