"""What the command line calls a curve: a run folder, `RUN:contender`, or a result file."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from wholecurve.curves import Curve
from wholecurve.errors import UserError
from wholecurve.readers.plain import read_plain
from wholecurve.runs import RunFolder


@dataclass(frozen=True)
class Source:
    """Points of one contender, all its workloads."""

    spec: str
    contender: str
    points: pd.DataFrame

    def workloads(self) -> list[str]:
        return sorted(self.points["workload"].unique())

    def curve(self, workload: str) -> Curve:
        return Curve.from_points(self.points, self.contender, workload)


def split_spec(spec: str) -> tuple[Path, str | None]:
    """Path and contender of `PATH` or `PATH:contender`; a path that exists as it stands wins."""
    path = Path(spec)
    if path.exists() or ":" not in spec:
        return path, None
    head, _, contender = spec.rpartition(":")
    return Path(head), contender


def read_points(path: Path) -> pd.DataFrame:
    """The points of a run folder or of a CSV or Parquet file."""
    if path.is_dir():
        points = RunFolder.open(path).points()
        if points.empty:
            raise UserError(f"{path}: no point is finished yet")
        return points
    if not path.exists():
        raise UserError(f"{path}: no such run folder or file")
    return read_plain(path)


def read_source(spec: str) -> Source:
    """One contender's points; UserError when the contender is not there, or when several are and none is named."""
    path, contender = split_spec(spec)
    points = read_points(path)
    names = list(dict.fromkeys(points["contender"]))
    if contender is None:
        if len(names) > 1:
            choices = ", ".join(f"{path}:{name}" for name in names)
            raise UserError(f"{spec}: has {len(names)} contenders, name one: {choices}")
        contender = names[0]
    if contender not in names:
        raise UserError(f"{spec}: no contender {contender!r}; there is: {', '.join(names)}")
    return Source(spec, contender, points[points["contender"] == contender].reset_index(drop=True))
