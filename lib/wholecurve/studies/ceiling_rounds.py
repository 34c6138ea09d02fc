"""Measures the ceilings of this machine for a run, in a process of its own, once at each time that is named."""

from importlib.util import find_spec

from wholecurve.runs import RunFolder
from wholecurve.runs.ceilings import FIRST, rounds_of, with_round
from wholecurve.studies.process import WorkerProcess

AFTER = "after the last point"


def before_repeat(repeat: int) -> str:
    """The name of the round before a repeat, which counts from 1."""
    return FIRST if repeat == 1 else f"before repeat {repeat}"


def can_measure_ceilings() -> bool:
    """Whether the engine half is installed: the products that are measured are torch's."""
    return find_spec("torch") is not None


def measure_round(run: RunFolder, when: str, dtype: str, threads: int) -> None:
    """Add one round to the run's ceilings unless it has one of this name: a shared machine has others an hour later."""
    known = run.read("ceilings") if run.has("ceilings") else None
    if known is not None and when in [found["when"] for found in rounds_of(known)]:
        return
    with WorkerProcess("ceilings", run.path / "logs" / "ceilings.log", threads) as worker:
        found = worker.ask("ceilings", dtype=dtype, threads=threads)
    run.write("ceilings", with_round(known, found, when))
