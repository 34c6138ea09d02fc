"""The figure of all kernels: where each production case stands on the roof of a device, from the committed table."""

import pandas as pd

from wholecurve.figures.roofline import roofline
from wholecurve.figures.run_figures import RunFigure
from wholecurve.files import data_folder
from wholecurve.profiling.devices import read_device
from wholecurve.profiling.recorded import read_rows

KERNEL_SOURCE = "Formulas of lib/wholecurve/kernels; ceilings of data/devices; nothing was timed"
TARGET, DEVICES = "sm_90", ("h200-sxm", "b200-sxm")


def kernel_figure() -> RunFigure:
    """One production case per kernel with products on matrix units, at the bound of an H200."""
    rows = production_rows(read_rows(data_folder("kernels") / "static.csv"))
    devices = [read_device(name) for name in DEVICES]
    bounds = "; ".join(f"{row.kernel} {row.case} at least {row.bound_us:.3g} µs" for row in rows.itertuples())
    return RunFigure(
        "kernel_roofline",
        "Which kernels memory bounds, and which the matrix unit",
        "The production cases of the kernels whose products run on bfloat16 matrix units, at what the datasheet of an "
        "H200 allows them at most: bounds from formulas, no measurements. Left of the ridge memory is the limit: "
        "decode attention reads every cached token for a handful of queries, and no kernel can change that.",
        f"Roofline of an H200 and a B200 with {len(rows)} kernel cases at their bounds: {bounds}",
        lambda ax: roofline(rows, devices, ax, unit="bfloat16"),
        rows,
    )


def production_rows(rows: pd.DataFrame, per_kernel: int = 2) -> pd.DataFrame:
    """The cases of each kernel with the lowest and the highest intensity, among those with matrix products."""
    chosen = rows[(rows["target"] == TARGET) & (rows["unit"] == "bfloat16")].drop_duplicates(["kernel", "case"])
    chosen = chosen.assign(intensity=chosen["flops"].astype(float) / chosen["bytes_min"].astype(float))
    ordered = chosen.sort_values(["kernel", "intensity", "case"])
    ends = pd.concat([ordered.groupby("kernel").head(1), ordered.groupby("kernel").tail(per_kernel - 1)])
    kept = ends.drop_duplicates(["kernel", "case"]).sort_values(["kernel", "intensity"])
    columns = ["kernel", "case", "source", "target", "unit", "flops", "bytes_min", "bound_us"]
    return kept[[*columns, "median_us", "p10_us", "p90_us"]].reset_index(drop=True)
