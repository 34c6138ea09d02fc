"""One multiplier as the line between its two operating points."""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from wholecurve.errors import UserError
from wholecurve.figures.curve import BETTER, label_speed_axes, speed_series
from wholecurve.figures.labels import Label, place_labels
from wholecurve.figures.series import (
    NAME_SIZE,
    Series,
    device_label,
    draw_series,
    key_text,
    load_labels,
    load_noun,
    name_labels,
    obstacles_of,
    room_for_names,
    write_key,
)  # fmt: skip
from wholecurve.figures.style import drawing, readable
from wholecurve.figures.ticks import format_count, format_rate, pad_limits

POINT_FIELDS = ("speed", "throughput", "speed_a", "throughput_a", "estimate")


def matched_points(
    a_points: pd.DataFrame,
    b_points: pd.DataFrame,
    row: Mapping,
    ax: Axes | None = None,
    *,
    colours: Mapping[str, str] | None = None,
) -> Axes:
    """Draw a same-speed or same-throughput multiplier as the line between its two printed operating points.

    `a_points` and `b_points` hold one contender each; `row` is one row of `same_speed` or `same_throughput`
    of their comparison. A filled end is a measured point, a hollow one is interpolated. A refused row is a
    UserError with the reason. Returns the Axes.
    """
    kind = matched_kind(row)
    points = pd.concat([a_points, b_points], ignore_index=True)
    names = [_single(frame, which) for frame, which in ((a_points, "a_points"), (b_points, "b_points"))]
    series = speed_series(points, (), colours)
    lines = [next((line for line in series if line.name == name), None) for name in names]
    if None in lines or names[0] == names[1]:
        raise UserError(f"the two contenders need two names and points of both, got {' and '.join(names)}")
    ends = ((row["speed_a"], row["throughput_a"]), (row["speed"], row["throughput"]))
    measured_b = not _missing(row.get("load_b"))
    with drawing(ax) as ax:
        label_speed_axes(ax, points)
        for axis, column, index in ((ax.xaxis, "x", 0), (ax.yaxis, "y", 1)):
            values = [v for line in series for v in line.repeats[column]] + [end[index] for end in ends]
            pad_limits(axis, values, pad=0.12, reserve=room_for_names(ax, series) if column == "x" else ())
        draw_series(ax, series)
        obstacles = obstacles_of(ax, series)
        obstacles.add_path(ax.transData.transform(ends))
        _draw_ends(ax, ends, lines, (False, measured_b))
        for end in ax.transData.transform(ends):
            obstacles.add_marker(end, 6.0 * ax.figure.dpi / 72)
        write_key(ax, key_text(series, (), load_noun(points)) + "  ·  hollow: interpolated", BETTER)
        unit = device_label(points)[1]
        labels = [_multiplier_label(ax, row, kind, ends)]
        labels += [
            Label(
                _end_text(line.name, end, load, measured, unit),
                *end,
                readable(line.colour, ax.get_facecolor()),
                size=8.5,
            )
            for line, end, load, measured in zip(
                lines, ends, (row.get("load_a"), row.get("load_b")), (False, measured_b), strict=True
            )
        ]
        place_labels(ax, labels + name_labels(ax, series) + load_labels(ax, series), obstacles)
    return ax


def matched_kind(row: Mapping) -> str:
    """Return "same speed" or "same throughput" from the operating points of a row; what is neither is a
    UserError.
    """
    if not _missing(row.get("refused")):
        raise UserError(f"this row was refused, there are no two points to draw: {row['refused']}")
    absent = [field for field in POINT_FIELDS if _missing(row.get(field))]
    if absent:
        raise UserError(
            f"the row of the multiplier has no {', '.join(absent)}; take one of same_speed or same_throughput"
        )
    for kind, ours, theirs in (
        ("same speed", "speed_a", "speed"),
        ("same throughput", "throughput_a", "throughput"),
    ):
        if abs(row[ours] / row[theirs] - 1) < 1e-6:
            return kind
    raise UserError("the two operating points of the row have neither the same speed nor the same throughput")


def _single(frame: pd.DataFrame, which: str) -> str:
    names = sorted(set(frame["contender"]))
    if len(names) != 1:
        raise UserError(f"{which} must hold one contender, it holds {', '.join(names) or 'none'}")
    return names[0]


def _missing(value) -> bool:
    return value is None or value != value


def _draw_ends(ax: Axes, ends, lines: list[Series], measured: Iterable[bool]) -> None:
    (x_a, y_a), (x_b, y_b) = ends
    ax.plot([x_a, x_b], [y_a, y_b], color=ax.xaxis.label.get_color(), linewidth=2.2, zorder=4, gid="multiplier")
    for (x, y), line, filled in zip(ends, lines, measured, strict=True):
        ax.plot(
            x, y, linestyle="none", marker=line.source.marker, markersize=10, markeredgewidth=2.2, zorder=5,
            markeredgecolor=line.colour, markerfacecolor=line.colour if filled else ax.get_facecolor(),
            gid=f"end {line.name}",
        )  # fmt: skip


def _short(value: float) -> str:
    return format_rate(float(f"{value:.3g}"))


def _end_text(name: str, end, load, measured: bool, unit: str) -> str:
    how = "measured" if measured else "interpolated"
    at = how if _missing(load) else f"load {format_count(load) if measured else _short(load)}, {how}"
    return f"{name}\n{_short(end[0])} tok/s/user · {_short(end[1])} {unit}\n{at}"


def value_text(value: float) -> str:
    """Write a multiplier with three significant digits: 2.40×."""
    return f"{value:#.3g}×" if value < 100 else f"{value:,.0f}×"


def _multiplier_label(ax: Axes, row: Mapping, kind: str, ends) -> Label:
    gained = "throughput" if kind == "same speed" else "speed"
    text = f"{value_text(row['estimate'])} {gained}\nat the {kind}"
    if _missing(row.get("low")):
        text += f"\nn = {int(row['n'])}, no interval" if not _missing(row.get("n")) else ""
    else:
        low, high = ("open" if row[end] in (0, np.inf) else value_text(row[end]) for end in ("low", "high"))
        text += f"\n{low} to {high}, n = {int(row['n'])}"
    if row.get("verdict") == "no difference shown":
        text += "\nno difference shown"
    middle = [(ends[0][i] * ends[1][i]) ** 0.5 for i in (0, 1)]
    return Label(text, *middle, ax.xaxis.label.get_color(), size=NAME_SIZE + 0.5, weight="bold")
