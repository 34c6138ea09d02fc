"""What the command line calls a curve: a run folder, a result file or a folder of them, each with `:contender`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from wholecurve.curves import Curve
from wholecurve.curves.bootstrap import Requests
from wholecurve.curves.documents import Control
from wholecurve.curves.gates.findings import Finding, values_text
from wholecurve.errors import UserError
from wholecurve.readers.collection import read_unit
from wholecurve.runs import RunFolder
from wholecurve.runs.requests import run_requests

_AXES = {"decode speed": "decode_speed_tok_per_s", "output throughput": "output_throughput_tok_per_s"}


@dataclass(frozen=True)
class Source:
    """Points of one contender, all its workloads; ``reasons`` says what its files could not give.

    ``run`` is the run of ours that they come from, if any, and ``recorded_as`` its name there, if it was renamed.
    """

    spec: str
    contender: str
    points: pd.DataFrame
    reasons: tuple[str, ...] = field(default=())
    run: RunFolder | None = None
    recorded_as: str | None = None

    def renamed(self, name: str) -> "Source":
        """The same points under another contender's name."""
        recorded_as = self.recorded_as or self.contender
        return replace(self, contender=name, recorded_as=recorded_as, points=self.points.assign(contender=name))

    def workloads(self) -> list[str]:
        """Names of the workloads that have points."""
        return sorted(self.points["workload"].unique())

    def is_prefill(self, workload: str) -> bool:
        """True for a workload that is measured over step sizes."""
        return set(self.points[self.points["workload"] == workload]["load_kind"]) == {"step_tokens"}

    def curve(self, workload: str, name: str | None = None) -> Curve:
        """The curve of one workload, of the points that have both axes; UserError when none has."""
        rows = self.points[self.points["workload"] == workload]
        if not self.is_prefill(workload):
            for axis, column in _AXES.items():
                if column not in rows or rows[column].isna().all():
                    why = f": {self.reasons[0]}" if self.reasons else ""
                    raise UserError(f"{self.spec}: no point of {self.contender} has a {axis}{why}")
            rows = rows.dropna(subset=list(_AXES.values()))
        named = _one_per_run(rows).assign(contender=name or self.contender)
        return Curve.from_points(named, workload=workload)

    def requests(self, workload: str) -> Requests | None:
        """The requests behind every point, where the source is a run of ours: the second level of the bootstrap."""
        if self.run is None or self.is_prefill(workload):
            return None
        return run_requests(self.run, self.recorded_as or self.contender, workload)

    def incomplete(self, workload: str) -> list[Finding]:
        """What the curve leaves out: points without a decode speed or a throughput."""
        rows, found = self.points[self.points["workload"] == workload], []
        if _within_run(rows).any():
            most = int(rows[_within_run(rows)].groupby("load").size().max())
            found.append(
                Finding(
                    "within-run",
                    f"repeats of {self.contender} (up to {most} at a load) are samples of one process, not runs: the "
                    "curve has their geometric mean and n = 1",
                )
            )
        if self.is_prefill(workload):
            return found
        for axis, column in _AXES.items():
            lacking = rows[rows[column].isna()] if column in rows else rows
            if len(lacking):
                found.append(
                    Finding(
                        "incomplete-points",
                        f"{len(lacking)} points of {self.contender} have no {axis} (load "
                        f"{values_text(lacking['load'].unique())}) and are not on the curve",
                    )
                )
        return found


def _within_run(rows: pd.DataFrame) -> pd.Series:
    return rows["within_run"].eq(True) if "within_run" in rows else pd.Series(False, index=rows.index)


def _one_per_run(rows: pd.DataFrame) -> pd.DataFrame:
    """Samples of one process as one run: their spread says nothing about a fresh start."""
    inside = _within_run(rows)
    if not inside.any():
        return rows
    merged = []
    for _, samples in rows[inside].groupby("load"):
        columns = [c for c in (*_AXES.values(), "input_throughput_tok_per_s") if c in samples]
        means = {c: float(np.exp(np.log(samples[c].astype(float)).mean())) for c in columns}
        merged.append({**samples.iloc[0].to_dict(), **means, "repeat": 1})
    return pd.concat([rows[~inside], pd.DataFrame(merged)], ignore_index=True)


def split_spec(spec: str) -> tuple[Path, str | None]:
    """Path and contender of `PATH` or `PATH:contender`; a path that exists as it stands wins."""
    path = Path(spec)
    if path.exists() or ":" not in spec:
        return path, None
    # The contender's own name may hold colons; the path is the shortest beginning that exists.
    parts = spec.split(":")
    for i in range(1, len(parts)):
        head = Path(":".join(parts[:i]))
        if head.exists():
            return head, ":".join(parts[i:])
    head, _, contender = spec.rpartition(":")
    return Path(head), contender


def read_points(path: Path) -> pd.DataFrame:
    """The points of a run folder, a result file, or a folder of result files."""
    return read_unit(path).points()[0]


def read_sources(spec: str, gpus: int | None = None) -> list[Source]:
    """Every contender of a spec, or the one that it names; UserError when that one is not there."""
    path, contender = split_spec(spec)
    collection = read_unit(path, gpus)
    points, notes = collection.points()
    reasons = tuple(
        sentence
        for one in (*(found.notes for found in collection.found), notes)
        for sentence in (*one.not_converted, *one.dropped)
    )
    run = RunFolder.open(path) if (path / "plan.json").exists() else None
    names = list(dict.fromkeys(points["contender"]))
    if contender is not None and contender not in names:
        raise UserError(f"{spec}: no contender {contender!r}; there is: {', '.join(names)}")
    return [
        Source(spec, name, points[points["contender"] == name].reset_index(drop=True), reasons, run)
        for name in ([contender] if contender is not None else names)
    ]


def read_control(spec: str) -> Control | None:
    """The A/A control of the run that a spec points into, as the plan names it; None where there is none."""
    path, _ = split_spec(spec)
    if not (path / "plan.json").exists():
        return None
    repeated = {one["control_of"]: one["name"] for one in RunFolder.open(path).plan["plan"]["contenders"]}
    repeated.pop(None, None)
    if not repeated:
        return None
    first, again = next(iter(repeated.items()))
    by_name = {source.contender: source for source in read_sources(str(path))}
    return Control(by_name[first], by_name[again]) if {first, again} <= set(by_name) else None


def named_apart(sources: Sequence[Source]) -> list[Source]:
    """The sources, those of one name renamed after their specs, so that every line says which one it is of."""
    names = [source.contender for source in sources]
    return [
        source.renamed(f"{source.contender} [{source.spec}]") if names.count(source.contender) > 1 else source
        for source in sources
    ]


def read_source(spec: str, gpus: int | None = None) -> Source:
    """One contender's points; UserError when the contender is not there, or when several are and none is named."""
    sources = read_sources(spec, gpus)
    if len(sources) > 1:
        choices = ", ".join(f"{spec}:{source.contender}" for source in sources)
        raise UserError(f"{spec}: has {len(sources)} contenders, name one: {choices}")
    return sources[0]
