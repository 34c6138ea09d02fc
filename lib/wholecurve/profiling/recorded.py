"""Profile rows that are committed in `data/kernels`, or measured now where MEASURE=1 asks for it."""

import os

import pandas as pd

from wholecurve.errors import UserError
from wholecurve.files import data_folder
from wholecurve.profiling.rows import COLUMNS, INTEGERS

STATIC_TARGETS = ("sm_90", "sm_100", "sm_80", "gfx942")


def static_rows(kernel):
    """The rows of `data/kernels/static.csv` for a kernel, or compiled now with MEASURE=1."""
    if measures():
        return profile_now(kernel, STATIC_TARGETS)
    return of_kernel(read_rows(data_folder("kernels") / "static.csv"), kernel)


def cpu_rows(kernel):
    """The rows of `data/kernels/cpu.csv` for a kernel, or measured now on this machine with MEASURE=1."""
    if measures():
        return profile_now(kernel, "cpu")
    return of_kernel(read_rows(data_folder("kernels") / "cpu.csv"), kernel)


def gpu_rows(kernel):
    """The measured rows of every recorded day on a GPU machine; empty where there is none."""
    days = sorted(data_folder("kernels").glob("*/rows.csv"))
    frames = [of_kernel(read_rows(path), kernel).assign(recorded=path.parent.name) for path in days]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*COLUMNS, "recorded"])


def measures():
    """Whether the reader asked for measurements of their own."""
    return os.environ.get("MEASURE") == "1"


def profile_now(kernel, targets):
    """Rows made now; loads torch and triton."""
    from wholecurve.profiling.laboratory import profile

    return profile(kernel, targets=targets)


def read_rows(path):
    """A CSV of profile rows. UserError names the file and the column that is missing."""
    try:
        rows = pd.read_csv(path, keep_default_na=False, na_values=[""])
    except FileNotFoundError:
        raise UserError(f"{path}: missing; `make static` and `wholecurve profile` write such files") from None
    missing = [column for column in COLUMNS if column not in rows.columns]
    if missing:
        raise UserError(
            f"{path}: lacks the columns {', '.join(missing)}; write it anew with `wholecurve profile --out`"
        )
    return rows.astype(dict.fromkeys(INTEGERS, "Int64"))


def of_kernel(rows, kernel):
    """The rows of one kernel."""
    return rows[rows["kernel"] == kernel].reset_index(drop=True)
