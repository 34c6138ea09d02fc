"""A step study on disk: `step.json`, `provenance.json`, `cells/*.json`, and two tables made of the cells.

`points.csv` is the plain format that `wholecurve compare` reads (decode only), `rows.csv` has every column. A cell
exists when its file does and is written whole, so a killed study goes on after its last cell.
"""

import csv
import hashlib
import io
import json
from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.files import read_json, write_json, write_text
from wholecurve.runs.provenance import collect, hardware

HARNESS = 1  # changes when how a step is measured changes; part of the plan

COLUMNS = (
    *("kind", "contender", "model", "source", "device", "dtype", "form", "threads", "repeat"),
    *("requests", "new_tokens", "chunk_tokens", "cached_tokens", "cached_contexts", "cache_fill"),
    *("drafts", "acceptance", "reading", "tokens_per_step", "tokens_per_step_measured"),
    *("step_median_ms", "step_p10_ms", "step_p90_ms", "n_samples", "warm_up_steps", "method"),
    *("decode_speed_tok_per_s", "output_throughput_tok_per_s", "input_throughput_tok_per_s"),
    *("read_bytes", "flops", "bound_ms", "bound_by", "attained", "note"),
)
PLAIN = ("contender", "workload", "concurrency", "repeat", "decode_speed_tok_per_s", "output_throughput_tok_per_s")
PLAIN += ("gpus", "model", "precision", "hardware")

# what the numbers of a study mean, said beside every table
MEANING = {
    "decode": (
        "Per-user speed is E / step and throughput is c · E / step, so at equal c the two ratios of any two contenders "
        "are equal by construction: these are steps, without scheduler, server or prefill."
    ),
    "prefill": (
        "Throughput counts the new tokens of a step; its cached tokens are stated, and their number is counted in "
        "every batch before it is timed. These are steps, without scheduler or server."
    ),
}


class StepRecord:
    """The cells of one plan. Without a folder they are kept in memory."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self._cells: dict[str, dict] = {}
        self._documents: dict[str, dict] = {}

    @classmethod
    def open(cls, folder: Path) -> "StepRecord":
        """A record that exists; UserError for a folder that is none."""
        if not (folder / "step.json").is_file():
            raise UserError(f"{folder}: not a step study (it has no step.json)")
        return cls(folder)

    def begin(self, plan: dict) -> None:
        """Start a record with this plan, or go on with one that has it; UserError for another plan or machine."""
        digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:16]
        former = self.plan
        if former is None:
            self.write("provenance", collect())
            self.write("step", {**plan, "plan_hash": digest})
            return
        if former["plan_hash"] != digest:
            changed = sorted(name for name in {*plan, *former} - {"plan_hash"} if plan.get(name) != former.get(name))
            raise UserError(
                f"{self.folder}: holds a step study with another {', '.join(changed)}; choose another --out"
            )
        then, now = self.read("provenance")["hardware"]["fingerprint"], hardware()["fingerprint"]
        if then != now:
            raise UserError(f"{self.folder}: was begun on another machine ({then}); this is {now}")

    @property
    def plan(self) -> dict | None:
        """What the study measures, None before it began."""
        return self.read("step")

    def read(self, name: str) -> dict | None:
        """One of the documents, None where it is missing."""
        if self.folder is None:
            return self._documents.get(name)
        path = self.folder / f"{name}.json"
        return read_json(path) if path.exists() else None

    def write(self, name: str, document: dict) -> None:
        """Add or replace one of the documents."""
        if self.folder is None:
            self._documents[name] = document
        else:
            write_json(self.folder / f"{name}.json", document)

    def add(self, cell: str, row: dict) -> None:
        """Keep a cell, and bring the tables up to date."""
        row = dict.fromkeys(COLUMNS) | row
        if self.folder is None:
            self._cells[cell] = row
            return
        write_json(self.folder / "cells" / f"{cell}.json", row)
        rows = self.rows()
        write_text(self.folder / "rows.csv", as_csv(rows, COLUMNS))
        if points := plain_points(rows):
            write_text(self.folder / "points.csv", as_csv(points, PLAIN))

    def has(self, cell: str) -> bool:
        """Whether a cell has its number; one that could not be measured is tried again."""
        row = self._cells.get(cell)
        if self.folder is not None and (self.folder / "cells" / f"{cell}.json").exists():
            row = read_json(self.folder / "cells" / f"{cell}.json")
        return row is not None and row["step_median_ms"] is not None

    def rows(self) -> list[dict]:
        """All cells, by load and repeat."""
        rows = list(self._cells.values())
        if self.folder is not None:
            rows = [read_json(path) for path in (self.folder / "cells").glob("*.json")]
        return sorted(rows, key=lambda row: (row["kind"], row["requests"], row["new_tokens"] or 0, row["repeat"]))

    def document(self) -> dict:
        """Everything as one JSON document, raw samples included."""
        names = ("step", "provenance", "ceilings", "scaling")
        return {name: self.read(name) for name in names} | {"rows": self.rows()}


def plain_points(rows: list[dict]) -> list[dict]:
    """Decode cells that have a number, as points of the plain format."""
    return [
        {
            "contender": row["contender"],
            "workload": f"decode step, {row['cached_tokens']} cached tokens",
            "concurrency": row["requests"],
            "gpus": 1 if row["source"] == "measured (gpu)" else None,
            "precision": row["dtype"],
            "hardware": row["device"],
            **{name: row[name] for name in ("repeat", "model", *PLAIN[4:6])},
        }
        for row in rows
        if row["kind"] == "decode" and row["decode_speed_tok_per_s"] is not None
    ]


def as_csv(rows: list[dict], columns: tuple[str, ...]) -> str:
    """A table; what is not there is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
