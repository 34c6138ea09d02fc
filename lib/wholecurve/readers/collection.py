"""Several result files as one set of points: which of them are repeats, and which must not be taken for any."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from wholecurve.errors import UserError
from wholecurve.readers.apart import keep_apart
from wholecurve.readers.found import Found, Notes, number_repeats
from wholecurve.readers.recognise import NoResult, read_file
from wholecurve.runs import RunFolder

SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".parquet", ".yaml", ".yml", ".txt", ".log", ".md")
# Of the files that AIPerf writes for one run, those that hold its results.
AIPERF_RESULTS = ("profile_export_aiperf.json", "profile_export.jsonl")
SHOWS_PROGRESS = 100


@dataclass(frozen=True)
class Collection:
    """What a number of paths gave: the files that were read, those that were refused (one line each), and how many
    files of other kinds were not looked at."""

    found: list[Found] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    not_looked_at: int = 0

    def points(self) -> tuple[pd.DataFrame, Notes]:
        """All points as one frame, and what was done to tell contenders, workloads and repeats apart."""
        notes = Notes()
        frames = [one.points.assign(_folder=str(one.path.parent.resolve()), _tool=_tool(one)) for one in self.found]
        if not frames:
            return pd.DataFrame(), notes
        points = pd.concat([frame.dropna(axis="columns", how="all") for frame in frames], ignore_index=True)
        points = keep_apart(points, notes)
        return number_repeats(points.drop(columns=["_folder", "_tool"]), notes), notes


def read_collection(paths: Iterable[str | Path], gpus: int | None = None) -> Collection:
    """Read files and folders (searched to the bottom; a run folder is one unit).

    ``gpus`` is the number of GPUs for files that do not say it. A file that is refused does not stop the others; a path
    that does not exist raises UserError.
    """
    found, refused, other = [], [], 0
    units, given = [], [Path(path) for path in paths]
    for path in given:
        inside, outside = _units(path)
        units += inside
        other += outside
    for path in _progress(units):
        try:
            found.append(_with_gpus(_read_unit(path), gpus))
        except NoResult as error:
            if path in given:
                refused.append(str(error))
            else:
                other += 1
        except UserError as error:
            refused.append(str(error))
    return Collection(_each_run_once(found), refused, other)


def read_unit(path: Path, gpus: int | None = None) -> Collection:
    """One path whose refusal is an error: a run folder, a file, or a folder of which at least one file can be read."""
    collection = read_collection([path], gpus)
    if not collection.found:
        others = f" (and {len(collection.refused) - 1} more files refused)" if len(collection.refused) > 1 else ""
        raise UserError((collection.refused or [f"{path}: no result file in this folder"])[0] + others)
    return collection


def _units(path: Path) -> tuple[list[Path], int]:
    if not path.exists():
        raise UserError(f"{path}: no such run folder or file")
    if not path.is_dir() or (path / "plan.json").exists():
        return [path], 0
    files, other, runs = [], 0, []
    for one in sorted(path.rglob("*")):
        if any(run in one.parents for run in runs) or any(
            part.startswith(".") for part in one.parts[len(path.parts) :]
        ):
            continue
        if one.is_dir():
            if (one / "plan.json").exists():
                runs.append(one)
        elif one.suffix.lower() in SUFFIXES and not _is_companion(one):
            files.append(one)
        else:
            other += 1
    return [*runs, *files], other


def _is_companion(path: Path) -> bool:
    """True for what AIPerf writes beside its results: prompts, phases, the summary once more as CSV, logs."""
    phase_of_a_run = any((above / AIPERF_RESULTS[0]).exists() for above in path.parents[1:3])
    return phase_of_a_run or (path.name not in AIPERF_RESULTS and (path.parent / AIPERF_RESULTS[0]).exists())


def _each_run_once(found: Sequence[Found]) -> list[Found]:
    """Without the summaries of runs whose requests were read as well: they are no second repeat."""
    if not any(one.format.endswith((" records", " responses")) for one in found):
        return list(found)
    from wholecurve.readers import llmperf
    from wholecurve.readers.aiperf import records

    summaries = set()
    for one in found:
        if one.format in (records.FORMAT, llmperf.RESPONSES_FORMAT):
            of_format = records.summary_of if one.format == records.FORMAT else llmperf.summary_of
            if (summary := of_format(one.path)) is not None:
                summaries.add(summary)
                one.notes.convert("the summary beside the requests is of the same run and is not counted again")
    return [one for one in found if one.path not in summaries]


def _progress(units: Sequence[Path]) -> Iterable[Path]:
    if len(units) < SHOWS_PROGRESS:
        return units
    from tqdm.auto import tqdm

    return tqdm(units, desc="reading", unit="file")


def _read_unit(path: Path) -> Found:
    if not path.is_dir():
        return read_file(path)
    run = RunFolder.open(path)
    points = run.points()
    if points.empty:
        raise UserError(f"{path}: no point is finished yet")
    return Found(path, "wholecurve run", points.assign(**_conditions(run)), Notes())


def _conditions(run: RunFolder) -> dict:
    from wholecurve.runs.provenance import hardware_line

    plan = run.plan["plan"]
    return {
        "model": plan["model"],
        "precision": plan["dtype"],
        "hardware": hardware_line(run.provenance["hardware"]),
        "speed_from": "median TPOT",
    }


def _with_gpus(one: Found, gpus: int | None) -> Found:
    if gpus is None:
        return one
    if gpus < 1:
        raise UserError(f"the number of GPUs is {gpus}; a whole number from 1 up is needed")
    unstated = one.points["device_kind"] == "server"
    if not unstated.any():
        stated = ", ".join(f"{n:g}" for n in sorted(one.points["devices"].unique()))
        raise UserError(f"{one.path}: states its devices itself ({stated}); they cannot be given from outside")
    points = one.points.copy()
    points.loc[unstated, "devices"], points.loc[unstated, "device_kind"] = gpus, "gpu"
    one.notes.convert(f"the number of GPUs ({gpus}) was given on the command line, not in the file")
    return Found(one.path, one.format, points, one.notes)


def _tool(one: Found) -> str:
    """The tool that measured: what it wrote as a summary and per request are not two tools."""
    return one.format.removesuffix(" records").removesuffix(" responses").removesuffix(" aggregate")
