"""Points of several files that look like repeats and are none: of other tools, folders, or lengths of request."""

from os.path import commonpath
from pathlib import Path

import pandas as pd

from wholecurve.curves.gates.conditions import LENGTHS_DIFFER, UNSTATED_WORKLOAD
from wholecurve.readers.found import KEY, Notes


def keep_apart(points: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    """The points with names of contenders and workloads such that equal names and loads are repeats.

    Columns ``_tool`` and ``_folder`` say where each point comes from; what was renamed is said in ``notes``.
    """
    points = _separate_tools(points, notes)
    points = _separate_folders(points, notes)
    return _separate_lengths(points, notes)


def _separate_tools(points: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    """One server measured by two tools gives two contenders: their definitions and windows differ."""
    tools = points.groupby("contender")["_tool"].nunique()
    shared = points["contender"].isin(tools[tools > 1].index)
    if not shared.any():
        return points
    notes.convert(f"measured by several tools, which are kept apart: {', '.join(sorted(tools[tools > 1].index))}")
    named = points["contender"] + " (" + points["_tool"] + ")"
    return points.assign(contender=points["contender"].where(~shared, named))


def _separate_folders(points: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    """The same contender and load in files of different folders are different contenders, named after the folder."""
    names = points["contender"].copy()
    for contender, rows in points.groupby("contender"):
        groups = _groups_without_clash(rows)
        if groups.nunique() > 1:
            names.loc[rows.index] = groups + f": {contender}"
            notes.convert(
                f"{contender}: files of several folders have the same load and are kept apart, named after the folder "
                f"({', '.join(groups.unique())})"
            )
    return points.assign(contender=names)


def _groups_without_clash(rows: pd.DataFrame) -> pd.Series:
    """For each point the beginning of its folder, as short as no two folders of one group have the same load."""
    folders = {folder: Path(folder).parts for folder in rows["_folder"].unique()}
    shared = len(Path(commonpath(folders)).parts)
    deepest = max(len(parts) for parts in folders.values())
    for depth in range(shared, deepest + 1):
        names = {folder: "/".join(parts[shared:depth]) or parts[-1] for folder, parts in folders.items()}
        groups = rows["_folder"].map(names) if depth > shared else pd.Series("", index=rows.index)
        keys = [*KEY, groups.rename("_group")]
        if (rows.groupby(keys, dropna=False)["_folder"].nunique() < 2).all():
            break
    return groups


def _separate_lengths(points: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    """Points of a workload that no file names are kept apart where their mean lengths are those of another workload."""
    if not {"mean_input_tokens", "mean_output_tokens"} <= set(points):
        return points
    workload = points["workload"].copy()
    for name, rows in points[workload == UNSTATED_WORKLOAD].groupby("contender"):
        lengths = _clusters(rows)
        if lengths.nunique() > 1:
            workload.loc[lengths.index] = lengths
            known = ", ".join(lengths.unique())
            notes.convert(f"{name}: requests of different lengths are different workloads ({known})")
    return points.assign(workload=workload)


def _clusters(rows: pd.DataFrame) -> pd.Series:
    """For each point the name of its lengths, one name for all that lie within a tenth of the first of them."""
    names: dict[tuple[float, float], str] = {}
    result = {}
    for row in rows.dropna(subset=["mean_input_tokens", "mean_output_tokens"]).itertuples():
        lengths = (row.mean_input_tokens, row.mean_output_tokens)
        near = next(
            (known for known in names if all(abs(n / k - 1) <= LENGTHS_DIFFER for n, k in zip(lengths, known))), None
        )
        if near is None:
            near = lengths
            names[near] = f"{lengths[0]:.0f} in / {lengths[1]:.0f} out"
        result[row.Index] = names[near]
    return pd.Series(result, dtype=object)
