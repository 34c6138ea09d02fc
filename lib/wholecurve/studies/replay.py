"""Two modes, one path: notebooks replay a recorded run, or measure a new one when MEASURE=1 is set."""

import os
from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.runs import RunFolder
from wholecurve.studies.kinds import read_study_plan, study_of


def project_root() -> Path:
    """The checkout that the working directory belongs to."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "data" / "runs").is_dir() and (folder / "plans").is_dir():
            return folder
    raise UserError(f"{here}: not inside a wholecurve checkout (no folder above it has data/runs and plans)")


def is_measuring() -> bool:
    """Whether MEASURE=1 asks for new measurements."""
    return os.environ.get("MEASURE") == "1"


def open_run(recorded: str, plan: str) -> RunFolder:
    """The recorded run `data/runs/<recorded>`; with MEASURE=1 a run of `plans/<plan>.yaml` that is measured now.

    A measured run lies in `data/runs/<name>-<hash>` and is resumed when it is there already.
    """
    root = project_root()
    if not is_measuring():
        return RunFolder.open(root / "data" / "runs" / recorded)
    checked = read_study_plan(root / "plans" / f"{plan}.yaml")
    return study_of(checked, root / "data" / "runs" / run_name(checked)).run()


def run_name(plan) -> str:
    """Folder name of a plan's run: its name and the beginning of its hash."""
    return f"{plan.name}-{plan.document()['plan_hash'][:8]}"
