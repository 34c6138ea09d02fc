"""Rooflines: what a device allows at an arithmetic intensity, and where kernels stand below it."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from wholecurve.errors import UserError
from wholecurve.figures.labels import Label, Obstacles, place_labels
from wholecurve.figures.style import OKABE_ITO, drawing, muted_colour, readable, source_style
from wholecurve.figures.ticks import format_rate, pad_limits, rate_axis
from wholecurve.profiling.devices import DATASHEET, Device

BOUND_SOURCE, MEASURED = "static (compiled, not run)", ("measured (gpu)", "measured (cpu)")
MEASURED_READ, MEASURED_GEMM = ("measured read", "measured copy"), ("measured GEMM",)
COLUMNS = ("kernel", "case", "flops", "bytes_min", "unit", "source", "median_us", "p10_us", "p90_us")


def roofline(rows: pd.DataFrame, devices: Sequence[Device], ax: Axes | None = None, *, unit: str = "bfloat16") -> Axes:
    """Draw attained FLOP rates over FLOPs per compulsory byte, below the roofs of devices, both logarithmic.

    ``rows`` are profile rows of one unit (`COLUMNS`; see `wholecurve.profiling.rows`). A static row stands hollow on
    the roof of the first device, at its bound; a measured one at flops / median, with a whisker from p10 to p90. Dashed
    roofs are datasheet ceilings, solid ones measured. Rows without FLOPs are named below the axis. UserError for rows
    of another unit, and for a measured point above its datasheet roof: one of the two is wrong. Returns the Axes.
    """
    check_rows(rows, unit)
    drawn = rows[rows["flops"].astype(float) > 0]
    with drawing(ax) as axes:
        colours = dict(zip((device.name for device in devices), OKABE_ITO.values(), strict=False))
        intensities = (drawn["flops"].astype(float) / drawn["bytes_min"].astype(float)).tolist()
        ridges = [ridge(device, unit) for device in devices]
        span = [value for value in (*intensities, *ridges) if value]
        reach = np.geomspace(min(span) / 3, max(span) * 6, 400)
        heights = [y for device in devices for y in draw_roof(axes, device, unit, reach, colours[device.name])]
        labels, points = draw_points(axes, drawn, devices[0], unit, colours[devices[0].name])
        rate_axis(axes.xaxis)
        rate_axis(axes.yaxis)
        pad_limits(axes.xaxis, reach, pad=0.01)
        axes.set_xlabel(f"arithmetic intensity (FLOP per compulsory byte){without_flops(rows)}")
        axes.set_ylabel(f"TFLOP/s ({unit})")
        pad_limits(axes.yaxis, [*heights, *(y for _, y in points), 2 * max(heights)])
        obstacles = Obstacles()
        for line in axes.lines:
            if len(line.get_xdata()) > 1:
                obstacles.add_path(axes.transData.transform(np.column_stack([line.get_xdata(), line.get_ydata()])))
        for point in points:
            obstacles.add_marker(axes.transData.transform(point), 7)
        place_labels(axes, [*roof_labels(axes, devices, unit, reach, colours), *labels], obstacles)
    return axes


def check_rows(rows: pd.DataFrame, unit: str) -> None:
    """UserError for a missing column, another unit, or no row at all."""
    missing = [column for column in COLUMNS if column not in rows.columns]
    if missing:
        raise UserError(f"roofline: the rows lack {', '.join(missing)}; they must be rows of a profile")
    if rows.empty:
        raise UserError("roofline: there is no row to draw")
    others = sorted(set(rows["unit"]) - {unit})
    if others:
        raise UserError(f"roofline: rows run on {', '.join(others)}, this roof is of {unit}; draw one unit at a time")


def ridge(device: Device, unit: str) -> float | None:
    """Intensity from which on a device's datasheet roof is flat; None where a ceiling is missing."""
    flat, slope = device.ceiling(f"{unit}_flops_per_s"), device.ceiling("memory_bytes_per_s")
    return flat.value / slope.value if flat and slope else None


def roof(device: Device, unit: str, intensity, memory_kinds, matrix_kinds):
    """FLOP/s that these classes of ceilings allow at an intensity; None where one is missing."""
    slope = device.ceiling("memory_bytes_per_s", memory_kinds)
    flat = device.ceiling(f"{unit}_flops_per_s", matrix_kinds)
    return None if slope is None or flat is None else np.minimum(np.asarray(intensity) * slope.value, flat.value)


def draw_roof(axes: Axes, device: Device, unit: str, reach, colour) -> list[float]:
    """The dashed and, where it is known, the solid roof of a device; returns their ends in TFLOP/s."""
    heights = []
    for memory, matrix, line in (((DATASHEET,), (DATASHEET,), "--"), (MEASURED_READ, MEASURED_GEMM, "-")):
        allowed = roof(device, unit, reach, memory, matrix)
        if allowed is not None:
            axes.plot(reach, allowed / 1e12, line, color=colour, linewidth=1.4, zorder=2)
            heights += [allowed[0] / 1e12, allowed[-1] / 1e12]
    if not heights:
        raise UserError(f"roofline: {device.name} has no ceilings for {unit}; name another device")
    return heights


def draw_points(axes: Axes, drawn: pd.DataFrame, device: Device, unit: str, colour):
    """(labels, points): every row as its marker; a static row at its bound on the roof of `device`."""
    points, named = [], {}
    for row in drawn.itertuples():
        x = float(row.flops) / float(row.bytes_min)
        top = float(roof(device, unit, x, (DATASHEET,), (DATASHEET,))) / 1e12
        measured = row.source in MEASURED
        if measured and not row.median_us > 0:
            continue
        y = float(row.flops) / row.median_us / 1e6 if measured else top
        if measured and y > top * 1.0001:
            raise UserError(
                f"roofline: {row.kernel} {row.case} is at {y / top:.0%} of the datasheet roof of {device.name}"
            )
        style = source_style(row.source)
        face = colour if style.filled else "none"
        axes.plot([x], [y], style.marker, color=colour, markerfacecolor=face, markersize=7, zorder=4)
        if measured:
            spread = [float(row.flops) / value / 1e6 for value in (row.p90_us, row.p10_us)]
            axes.vlines(x, *spread, color=colour, linewidth=1, zorder=3)
        text = f"{row.kernel} {row.case}" if drawn["kernel"].nunique() > 1 else str(row.case)
        named.setdefault((round(np.log(x), 1), round(np.log(y), 1)), {})[text] = (x, y)
        points.append((x, y))
    shade = readable(colour, axes.get_facecolor())
    labels = [Label(shortened(texts), *next(iter(texts.values())), shade, size=8.0) for texts in named.values()]
    return labels, points


def shortened(texts, most=3) -> str:
    """Names of points that lie together, the first few of them."""
    names = list(texts)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def roof_labels(axes: Axes, devices: Sequence[Device], unit: str, reach, colours) -> list[Label]:
    """Name, rate and ridge of every device at the right end of its roof."""
    labels = []
    for device in devices:
        allowed = roof(device, unit, reach, (DATASHEET,), (DATASHEET,))
        if allowed is None:
            continue
        slope, corner = device.ceiling("memory_bytes_per_s").value / 1e12, ridge(device, unit)
        axes.plot([corner], [allowed[-1] / 1e12], "|", color=colours[device.name], markersize=10, zorder=3)
        text = f"{device.name}: {allowed[-1] / 1e12:,.0f} TFLOP/s, {slope:.3g} TB/s, ridge {corner:.0f}"
        colour = readable(colours[device.name], axes.get_facecolor())
        labels.append(Label(text, (corner * reach[-1]) ** 0.5, allowed[-1] / 1e12, colour, size=8.0))
    return labels


def without_flops(rows: pd.DataFrame) -> str:
    """Names of the kernels that cannot stand on a roofline, as the end of an axis label."""
    some = set(rows.loc[rows["flops"].astype(float) > 0, "kernel"])
    names = sorted(set(rows["kernel"]) - some)
    return f"\nwithout FLOPs, not drawn: {', '.join(names)}" if names else ""


def time_over_bound(rows: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw each case's time as squares over its bound as a line, per case: µs on a logarithmic axis.

    ``rows`` are profile rows of one kernel; forms, and numbers of threads where there are several, get a colour each.
    Rows without a time are absent; UserError where there is none with one. Returns the Axes.
    """
    timed = rows[rows["median_us"].notna()]
    if timed.empty:
        raise UserError("time_over_bound: no row was measured")
    names = timed["form"]
    if timed["threads"].nunique() > 1:
        names = names + ", " + timed["threads"].astype(str) + " threads"
    cases = list(dict.fromkeys(timed["case"]))
    with drawing(ax) as axes:
        for name, colour in zip(dict.fromkeys(names), OKABE_ITO.values(), strict=False):
            part = timed[names == name]
            places = [cases.index(case) for case in part["case"]]
            axes.hlines(places, part["p10_us"], part["p90_us"], color=colour, linewidth=1)
            axes.plot(part["median_us"], places, "s", color=colour, markersize=6, label=name)
        limits = timed[timed["bound_us"].notna()].drop_duplicates(["case", "bound_us"])
        places = [cases.index(case) for case in limits["case"]]
        axes.plot(limits["bound_us"], places, "|", color=muted_colour(), markersize=16, label="bound")
        rate_axis(axes.xaxis, format_rate)
        axes.set_yticks(range(len(cases)), cases)
        axes.set_ylim(len(cases) - 0.5, -0.5)
        axes.set_xlabel("µs per call (squares: median, lines: p10 to p90)")
        axes.legend(frameon=False, fontsize=8, loc="best")
    return axes
