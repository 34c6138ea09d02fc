"""What result files of any tool say, in canonical metrics: curves, warnings, what was converted and what was not."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape

from wholecurve.curves.gates.one_curve import check_curve, unchecked_gates
from wholecurve.errors import UserError
from wholecurve.readers import Collection, Found, Source
from wholecurve.readers.found import with_places
from wholecurve.terminal import print_frame

FILES_NAMED = 12
# Column of the points, heading, and digits; what no point has is left out of the table.
_COLUMNS = (
    ("decode_speed_tok_per_s", "speed tok/s/user", 4),
    ("decode_speed_p90_tok_per_s", "p90 speed (slow side)", 4),
    ("per_device", "throughput tok/s/{device}", 5),
    ("input_per_device", "input tok/s/{device}", 5),
    ("logical_per_device", "logical tok/s/{device}", 5),
    *(
        (f"{name}_{part}_ms", f"{name.upper()} {part} ms", 4)
        for name, parts in (("ttft", "p50 p90"), ("tpot", "p50 p90"), ("itl", "p50"))
        for part in parts.split()
    ),
    *((f"e2e_{part}_ms", f"E2E {part} ms", 5) for part in ("p50", "p90")),
    ("n_completed", "completed", 6),
    ("n_failed", "failed", 6),
)
_PER_DEVICE = {
    "per_device": "output_throughput_tok_per_s",
    "input_per_device": "input_throughput_tok_per_s",
    "logical_per_device": "logical_throughput_tok_per_s",
}


@dataclass(frozen=True)
class ShownCurve:
    """One contender on one workload: its point rows, named warnings, and the checks that could not look."""

    contender: str
    workload: str
    points: pd.DataFrame
    warnings: list[str]
    unchecked: list[str]

    def to_document(self) -> dict:
        """JSON values; what a point does not have is absent from it."""
        rows = json.loads(self.points.to_json(orient="records", double_precision=15))
        return {
            "contender": self.contender,
            "workload": self.workload,
            "points": [{name: value for name, value in row.items() if value is not None} for row in rows],
            "warnings": self.warnings,
            "not_checked": self.unchecked,
        }


def shown_curves(points: pd.DataFrame) -> list[ShownCurve]:
    """Every curve in a frame of points, with what the gates find on it."""
    curves = []
    for (contender, workload), rows in points.groupby(["contender", "workload"], sort=False):
        rows = rows.sort_values(["load", "repeat"]).reset_index(drop=True)
        source = Source(contender, contender, rows)
        warnings, unchecked = source.incomplete(workload), []
        try:
            curve = source.curve(workload)
        except UserError as error:
            warnings = [f"no-curve: {error}"]
        else:
            warnings = [*warnings, *check_curve(contender, curve)]
            unchecked = unchecked_gates(curve)
        curves.append(ShownCurve(contender, workload, rows, [str(warning) for warning in warnings], unchecked))
    return curves


def curve_warnings(points: pd.DataFrame) -> list[dict]:
    """What the gates find on every curve, without its points."""
    documents = [curve.to_document() for curve in shown_curves(points)] if len(points) else []
    return [{name: value for name, value in one.items() if name != "points"} for one in documents]


def files_document(collection: Collection) -> dict:
    """What `wholecurve show PATH… --json` prints for result files."""
    points, notes = collection.points()
    return {
        "files": [one.to_document() for one in collection.found],
        "refused": collection.refused,
        "not_looked_at": collection.not_looked_at,
        "put_together": list(notes.converted),
        "curves": [curve.to_document() for curve in shown_curves(points)] if len(points) else [],
    }


def print_files(console: Console, collection: Collection) -> None:
    """The same for a person."""
    _print_found(console, collection.found)
    points, notes = collection.points()
    for curve in shown_curves(points) if len(points) else []:
        _print_curve(console, curve)
    _print_notes(console, collection, list(notes.converted))


def curve_table(points: pd.DataFrame) -> pd.DataFrame:
    """One row per load: median over repeats with (lowest–highest), of every metric that some point has."""
    per_device = {name: points[column] / points["devices"] for name, column in _PER_DEVICE.items() if column in points}
    points = points.assign(**per_device)
    device = {"gpu": "GPU", "cpu": "machine", "server": "server"}[points["device_kind"].iloc[0]]
    head = {"concurrency": "concurrency", "request_rate": "requests/s", "step_tokens": "tokens per step"}
    rows = []
    for load, at in points.groupby("load"):
        row = {head[points["load_kind"].iloc[0]]: f"{load:g}", "n": str(len(at))}
        for column, title, digits in _COLUMNS:
            if column in points and pd.to_numeric(points[column], errors="coerce").notna().any():
                row[title.format(device=device)] = _median(at[column], digits)
        rows.append(row)
    return pd.DataFrame(rows)


def _median(values: pd.Series, digits: int) -> str:
    known = pd.to_numeric(values, errors="coerce").dropna()
    if known.empty:
        return "–"
    middle, low, high = (_digits(value, digits) for value in (known.median(), known.min(), known.max()))
    return middle if low == high else f"{middle} ({low}–{high})"


def _digits(value: float, digits: int) -> str:
    """So many significant digits, without an exponent."""
    decimals = max(0, digits - 1 - int(np.floor(np.log10(abs(value))))) if value else 0
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _print_found(console: Console, found: Sequence[Found]) -> None:
    if len(found) > FILES_NAMED:
        for name, count in Counter(one.format for one in found).items():
            console.print(f"[bold]{count} files[/]  {escape(name)}")
        return
    for one in found:
        n = len(one.points)
        console.print(f"[bold]{escape(str(one.path))}[/]  {escape(one.format)}, {n} point{'s' if n > 1 else ''}")


def _print_curve(console: Console, curve: ShownCurve) -> None:
    first = curve.points.iloc[0]
    stated = [str(first[name]) for name in ("model", "precision", "hardware") if pd.notna(first.get(name))]
    devices = "" if first["device_kind"] == "server" else f"{first['devices']:g} {first['device_kind'].upper()}"
    about = ", ".join(part for part in (*stated, devices, str(first["source"])) if part)
    print_frame(console, curve_table(curve.points), f"{curve.contender}: {curve.workload}")
    console.print(f"  [dim]{escape(about)}; window: {escape(str(first['window']))}[/]")
    for warning in curve.warnings:
        console.print(f"  [yellow]warning:[/] {escape(warning)}")
    if curve.unchecked:
        console.print(f"  [dim]not checked, the file lacks what it needs: {', '.join(curve.unchecked)}[/]")


def _print_notes(console: Console, collection: Collection, together: list[str]) -> None:
    converted = Counter(sentence for one in collection.found for sentence in one.notes.converted)
    converted.update(together)
    said = [f"{s} ({count} files)" if count > 1 else s for s, count in converted.items()]
    left_out: dict[str, list[str]] = {}
    for one in collection.found:
        for sentence, places in one.notes.not_converted.items():
            left_out.setdefault(sentence, []).extend(places)
    not_said = [with_places(sentence, places) for sentence, places in left_out.items()]
    dropped = [sentence for one in collection.found for sentence in one.notes.dropped]
    for title, sentences in (("Converted", said), ("Not converted", not_said), ("Dropped", dropped)):
        if sentences:
            console.print(f"\n[bold]{title}[/]")
        for sentence in sentences:
            console.print(f"  {escape(sentence)}")
    if collection.not_looked_at:
        console.print(f"\n{collection.not_looked_at} files of other kinds were not looked at")
