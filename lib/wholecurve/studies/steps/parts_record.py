"""Steps taken apart, on disk: a cell per load and number of threads, and `rows.csv`, a row per part of each.

Cells hold raw samples only. Bounds are worked out from them and from all ceilings of the record, which are measured
before the first cell and after the last. Loads no torch.
"""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd

from wholecurve.errors import UserError
from wholecurve.files import read_json, write_json, write_text
from wholecurve.models.bounds import Ceilings
from wholecurve.runs.provenance import hardware
from wholecurve.studies.replay import is_measuring, project_root
from wholecurve.studies.steps.part_work import OUTSIDE, PARTS
from wholecurve.studies.steps.record import StepRecord, as_csv
from wholecurve.studies.steps.work import StepWork, bound_fields

HARNESS = 1  # changes when how a step is taken apart changes; part of the plan
STEP, TIMED = "step", "native with timers"
COLUMNS = (
    *("kind", "model", "source", "device", "dtype", "threads", "requests", "new_tokens", "cached_tokens"),
    *("form", "part", "median_ms", "p10_ms", "p90_ms", "n_samples"),
    *("read_bytes", "flops", "bound_ms", "bound_by", "attained", "note"),
)
SHARED = COLUMNS[:9]


class PartsRecord(StepRecord):
    """The cells of one plan. Without a folder they are kept in memory."""

    @classmethod
    def open(cls, folder: Path) -> "PartsRecord":
        """A record that exists; UserError for a folder that is none, or that holds another kind of step study."""
        record = super().open(folder)
        if record.plan.get("kind") != "parts":
            raise UserError(f"{folder}: holds a {record.plan.get('kind')} step study; steps taken apart are wanted")
        return record

    def add(self, cell: str, row: dict) -> None:
        """Keep a cell, and bring the table up to date."""
        if self.folder is None:
            self._cells[cell] = row
            return
        write_json(self.folder / "cells" / f"{cell}.json", row)
        self.write_table()

    def write_table(self) -> None:
        """Write `rows.csv` from the cells and ceilings that there are."""
        if self.folder is not None:
            write_text(self.folder / "rows.csv", as_csv(self.part_rows(), COLUMNS))

    def rows(self) -> list[dict]:
        """All cells, by kind, threads and load."""
        cells = list(self._cells.values())
        if self.folder is not None:
            cells = [read_json(path) for path in (self.folder / "cells").glob("*.json")]
        return sorted(cells, key=lambda cell: (cell["kind"], cell["threads"], cell["new_tokens"]))

    def best_ceilings(self) -> dict[int, Ceilings]:
        """By number of threads: the best of all kinds and measurements."""
        found: dict[int, Ceilings] = {}
        for row in self.ceiling_rows():
            former = found.get(row["threads"], Ceilings(0.0, 0.0))
            found[row["threads"]] = Ceilings(
                max(former.read_bytes_per_s, row["value"] if row["unit"] == "byte/s" else 0.0),
                max(former.gemm_flops_per_s, row["value"] if row["unit"] == "FLOP/s" else 0.0),
            )
        return found

    def ceiling_rows(self) -> list[dict]:
        """Every measured ceiling: threads, unit, kind, when (before or after the cells), value."""
        rows = []
        for when, measured in (self.read("ceilings") or {}).items():
            for one in measured:
                for unit, field in (("byte/s", "read_bytes_per_s"), ("FLOP/s", "gemm_flops_per_s")):
                    shared = {"threads": one["threads"], "unit": unit, "when": when}
                    rows += [shared | {"kind": kind, "value": value} for kind, value in one[field].items()]
        return rows

    def part_rows(self) -> list[dict]:
        """A row per part of each cell, as in `rows.csv`; more than all of a ceiling is an error and said."""
        ceilings = self.best_ceilings()
        return [row for cell in self.rows() for row in rows_of_cell(cell, ceilings.get(cell["threads"]))]

    def frame(self) -> pd.DataFrame:
        """The table as a frame."""
        return pd.DataFrame(self.part_rows(), columns=list(COLUMNS))

    def document(self) -> dict:
        """Everything as one JSON document, raw samples included."""
        names = ("step", "provenance", "ceilings")
        return {name: self.read(name) for name in names} | {"cells": self.rows(), "rows": self.part_rows()}


def rows_of_cell(cell: dict, ceilings: Ceilings | None) -> list[dict]:
    """Rows of the native form's parts, of what its timers leave out, and of the whole steps of both forms.

    A part's sample is the mean of the threads. The bound of a whole step is the sum of the bounds of its parts, as if
    no part's arithmetic went on while another part reads.
    """
    shared = {name: cell[name] for name in SHARED}
    if cell.get("note"):
        return [shared | {"form": "native", "part": STEP, "note": cell["note"]}]
    work = {part: StepWork(*cell["work"][part]) for part in PARTS}
    parts = {part: np.mean(cell["parts_ms"][part], axis=1) for part in PARTS}
    rows = []
    for part in PARTS:
        has_work = bool(work[part].read_bytes or work[part].flops)
        rows.append(time_row("native", part, parts[part], work[part] if has_work else None, ceilings))
    steps = cell["steps_ms"]
    outside = np.asarray(steps[TIMED]) - sum(parts.values())
    rows.append(time_row("native", OUTSIDE, outside, None, None))
    rows.append(time_row(TIMED, STEP, steps[TIMED], None, None))
    total = StepWork(sum(one.read_bytes for one in work.values()), sum(one.flops for one in work.values()))
    bound_ms = None if ceilings is None else sum(row["bound_ms"] or 0.0 for row in rows)
    for form in ("native", "torch"):
        row = time_row(form, STEP, steps[form], total, None)
        rows.append(row | step_bound(bound_ms, row["median_ms"]))
    return [shared | row for row in rows]


def time_row(form: str, part: str, samples_ms, work: StepWork | None, ceilings: Ceilings | None) -> dict:
    """The columns of a part's samples, bytes, FLOPs and bound."""
    p10, median, p90 = (float(value) for value in np.percentile(samples_ms, (10, 50, 90)))
    times = {"form": form, "part": part, "median_ms": median, "p10_ms": p10, "p90_ms": p90}
    times["n_samples"] = len(samples_ms)
    return dict.fromkeys(COLUMNS[9:]) | times | (bound_fields(work, ceilings, median) if work else {})


def step_bound(bound_ms: float | None, median_ms: float) -> dict:
    """The columns of the bound of a whole step."""
    if bound_ms is None:
        return {}
    fields = {"bound_ms": bound_ms, "bound_by": "sum of the parts", "attained": bound_ms / median_ms}
    if fields["attained"] > 1:
        fields["note"] = f"error: {fields['attained']:.0%} of the bounds of the parts together"
    return fields


def open_parts(recorded: str = "parts") -> PartsRecord:
    """The record `data/steps/<recorded>`; with MEASURE=1 one that is measured now on this machine, and resumed."""
    root = project_root() / "data" / "steps"
    if not is_measuring():
        return PartsRecord.open(root / recorded)
    from wholecurve.studies.steps.model import DTYPES, CheckpointSource
    from wholecurve.studies.steps.parts import PartsOptions, parts_study

    machine = hashlib.sha256(hardware()["fingerprint"].encode()).hexdigest()[:8]
    plan = PartsRecord.open(root / recorded).plan
    source = CheckpointSource(plan["model"], DTYPES[plan["dtype"]])
    return parts_study(source, PartsOptions(), root / f"measured-{recorded}-{machine}")
