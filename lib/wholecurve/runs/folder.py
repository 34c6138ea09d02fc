"""A run on disk: `plan.json`, `provenance.json`, `points/*.json`, `traces/*.jsonl.gz`, and what was found on the way.

A point exists when its file in `points/` exists; its trace is written before it. Both appear whole or not at all, so a
killed study loses at most the point that it was measuring.
"""

import dataclasses
import fcntl
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from wholecurve.curves.metrics import RequestTrace
from wholecurve.errors import UserError
from wholecurve.files import read_json, write_bytes, write_json

_TRACE_FIELDS = {field.name for field in dataclasses.fields(RequestTrace)}
# Those that only a client of a server knows are left out of a record where nobody knew them.
_OPTIONAL_FIELDS = {
    "outcome", "finish_reason", "wanted_tokens", "reasoning_tokens", "token_source", "session"
}  # fmt: skip


class RunFolder:
    """Reads and writes one run. Nothing is cached: the folder is the state."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run; UserError when the folder is missing or is not a run."""
        if not path.is_dir():
            raise UserError(f"{path}: no such run folder")
        if not (path / "plan.json").exists():
            raise UserError(f"{path}: not a run folder (it has no plan.json)")
        return cls(path)

    @classmethod
    def create(cls, path: Path, plan: dict, provenance: dict) -> "RunFolder":
        """A new run, or the same one again; UserError when the folder holds another plan."""
        run = cls(path)
        if (path / "plan.json").exists():
            if run.plan["plan_hash"] != plan["plan_hash"]:
                raise UserError(f"{path}: holds a run of another plan or harness version; choose another --out")
            return run
        write_json(path / "provenance.json", provenance)
        write_json(path / "plan.json", plan)
        return run

    @property
    def plan(self) -> dict:
        return self.read("plan")

    @property
    def provenance(self) -> dict:
        return self.read("provenance")

    def read(self, name: str) -> dict:
        """One of the run's documents, by name without suffix."""
        return read_json(self.path / f"{name}.json")

    def has(self, name: str) -> bool:
        return (self.path / f"{name}.json").exists()

    def write(self, name: str, document: dict) -> None:
        """Add or replace one of the run's documents."""
        write_json(self.path / f"{name}.json", document)

    def has_point(self, point_id: str) -> bool:
        return (self.path / "points" / f"{point_id}.json").exists()

    def write_point(self, point_id: str, row: dict, requests: Sequence[RequestTrace]) -> None:
        """Write the trace, then the point."""
        text = "".join(json.dumps(_record(request), allow_nan=False) + "\n" for request in requests)
        # Without the time of writing, the same trace is the same file.
        write_bytes(self.path / "traces" / f"{point_id}.jsonl.gz", gzip.compress(text.encode(), mtime=0))
        write_json(self.path / "points" / f"{point_id}.json", row)

    def point_ids(self) -> list[str]:
        """Finished points, sorted by id."""
        return sorted(file.stem for file in (self.path / "points").glob("*.json"))

    def points(self) -> pd.DataFrame:
        """Tidy frame, one row per finished point, in the order of measurement."""
        rows = [read_json(self.path / "points" / f"{point_id}.json") for point_id in self.point_ids()]
        frame = pd.DataFrame(rows)
        return frame.sort_values("order", ignore_index=True) if len(frame) else frame

    def trace(self, point_id: str) -> list[RequestTrace]:
        """The requests of one point."""
        path = self.path / "traces" / f"{point_id}.jsonl.gz"
        plain = path.with_suffix("")  # as older runs have it
        if plain.exists() and not path.exists():
            path = plain
        requests = []
        for number, line in enumerate(_lines(path), start=1):
            try:
                record = json.loads(line)
                known = _TRACE_FIELDS - (_OPTIONAL_FIELDS - set(record))
                requests.append(RequestTrace(**{name: record[name] for name in known}))
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise UserError(f"{path}: line {number} is not a request record ({error})") from None
        return requests

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run against a second writer; the lock ends with the process, however it ends.

        Whoever holds it is the only writer, so what a killed one left half-written is removed.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.path}: another study is writing to this run") from None
            for folder in (self.path, self.path / "points", self.path / "traces"):
                for leftover in folder.glob(".*.partial"):
                    leftover.unlink()
            yield


def _record(request: RequestTrace) -> dict:
    record = dataclasses.asdict(request)
    return {name: value for name, value in record.items() if value is not None or name not in _OPTIONAL_FIELDS}


def _lines(path: Path) -> list[str]:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode().splitlines()
    except OSError as error:  # bad gzip data is one as well
        reason = "missing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise UserError(f"{path}: {reason}") from None
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a whole trace ({error})") from None


def rounded(request: RequestTrace) -> RequestTrace:
    """The same request with times to the microsecond, as a run stores it.

    Finer digits are noise of the clock. Points are computed from rounded traces, so that they follow from the files.
    """

    def microseconds(value: float | None) -> float | None:
        return None if value is None else round(value, 6)

    return dataclasses.replace(
        request,
        scheduled_s=microseconds(request.scheduled_s),
        sent_s=microseconds(request.sent_s),
        finished_s=microseconds(request.finished_s),
        arrivals_s=[microseconds(at) for at in request.arrivals_s],
    )
