"""Profiles for the command line: several kernels with progress, as a document, and as tables in the terminal."""

import json
import sys

import pandas as pd
from rich.console import Console
from tqdm.auto import tqdm

from wholecurve.files import write_json, write_text
from wholecurve.profiling.laboratory import profile
from wholecurve.profiling.rows import HARNESS, MEASURED_CPU, MEASURED_GPU
from wholecurve.runs.provenance import collect

STATIC_TABLE = ("case", "launch", "target", "registers", "spill_bytes", "shared_bytes", "occupancy", "matrix", "copies")
COST_TABLE = ("case", "device", "bytes_min", "bytes_model", "flops", "bound_us", "bound_by")
MEASURED_TABLE = ("case", "form", "target", "median_us", "p10_us", "p90_us", "bound_us", "attained", "cache", "note")


def profile_kernels(names, case, targets, device=None, threads=()):
    """`laboratory.profile` of several kernels in one frame, with a progress bar where there are several.

    threads: numbers of threads that "cpu" is measured with, one after another; torch's own number where none is given.
    """
    frames, left_out, samples = [], [], []
    asked = [(name, count) for name in names for count in threads or (None,)]
    for name, count in tqdm(asked, unit="kernel", disable=len(asked) < 2, file=sys.stderr):
        found = profile(name, case, targets=targets, device=device, threads=count)
        frames.append(found)
        left_out += found.attrs["left_out"]
        samples += found.attrs["samples_us"]
    kept = [found.dropna(axis=1, how="all") for found in frames]
    joined = pd.concat(kept, ignore_index=True).reindex(columns=frames[0].columns)
    joined.attrs |= {"left_out": list(dict.fromkeys(left_out)), "samples_us": samples}
    return joined


def write_profile(path, found):
    """Rows as CSV; where something was measured, raw samples and provenance beside it as JSON. Returns the paths."""
    write_text(path, found.to_csv(index=False, lineterminator="\n"))
    measured = [samples for samples in found.attrs["samples_us"] if samples]
    if not measured:
        return [path]
    beside = path.with_suffix(".json")
    keys = json.loads(found[["kernel", "case", "form", "threads"]].to_json(orient="records"))
    samples = [key | {"samples_us": taken} for key, taken in zip(keys, found.attrs["samples_us"]) if taken]
    write_json(beside, {"provenance": collect(), "left_out": found.attrs["left_out"], "samples": samples})
    return [path, beside]


def profile_document(found):
    """A profile as one JSON document: `harness`, `rows` (absent fields are null; `samples_us` where measured) and
    `left_out`."""
    rows = json.loads(found.to_json(orient="records"))
    for row, samples in zip(rows, found.attrs["samples_us"]):
        row["samples_us"] = samples or None
    return {"harness": HARNESS, "rows": rows, "left_out": found.attrs["left_out"]}


def print_profile(console: Console, found):
    """One table per kernel and kind of row."""
    from wholecurve.terminal import print_frame

    for name, rows in found.groupby("kernel", sort=False):
        measured = rows["source"].isin([MEASURED_CPU, MEASURED_GPU])
        for part, title in ((rows[~measured], "compiled, not run"), (rows[measured], "measured")):
            if part.empty:
                continue
            columns = MEASURED_TABLE if title == "measured" else STATIC_TABLE
            print_frame(console, words(part[list(columns)]), f"{name}: {title}")
        costs = rows.drop_duplicates(["case", "device"])
        print_frame(console, words(costs[list(COST_TABLE)]), f"{name}: bytes, FLOPs and bounds (not measurements)")
    for sentence in found.attrs["left_out"]:
        console.print(f"[dim]left out: {sentence}[/]")


def words(part):
    """Every cell as text: whole numbers with separators, others with three digits, what is absent as a dash."""
    return part.map(cell)


def cell(value):
    """One cell of a table."""
    if value is None or value is pd.NA or value != value:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
