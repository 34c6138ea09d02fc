"""The curve: output throughput against decode speed, and against the number of requests in flight."""

from collections.abc import Iterable, Mapping

import pandas as pd
from matplotlib.axes import Axes

from wholecurve.errors import UserError
from wholecurve.figures.labels import Label, Obstacles, place_labels
from wholecurve.figures.series import (
    NAME_SIZE,
    Series,
    absent_contenders,
    build_series,
    check_points,
    device_label,
    draw_series,
    key_text,
    load_labels,
    load_noun,
    name_labels,
    obstacles_of,
    room_for_names,
    window_label,
    write_key,
)  # fmt: skip
from wholecurve.figures.style import SOURCES, drawing, muted_colour
from wholecurve.figures.ticks import count_axis, pad_limits, rate_axis

BETTER = "up and right is better ↗"


def speed_series(
    points: pd.DataFrame, control: str | Iterable[str] = (), colours: Mapping[str, str] | None = None
) -> list[Series]:
    """Lines with x = decode speed [tok/s/user] and y = output throughput per GPU or machine [tok/s]."""
    check_points(points, ("decode_speed_tok_per_s", "output_throughput_tok_per_s"))
    per_device = points["output_throughput_tok_per_s"] / points["devices"]
    return build_series(points, points["decode_speed_tok_per_s"], per_device, control, colours)


def label_speed_axes(ax: Axes, points: pd.DataFrame) -> None:
    """Label and scale the axes of throughput against speed."""
    per, unit = device_label(points)
    ax.set_xlabel("decode speed (tok/s/user)")
    ax.set_ylabel(f"output throughput {per}\n({unit}{window_label(points)})")
    rate_axis(ax.xaxis)
    rate_axis(ax.yaxis)


def throughput_vs_speed(
    points: pd.DataFrame,
    ax: Axes | None = None,
    *,
    control: str | Iterable[str] = (),
    colours: Mapping[str, str] | None = None,
) -> Axes:
    """Draw the whole performance curve of every contender: up and right is better.

    `points` are rows of the tidy frame of one workload and one kind of device. Every repeat is a small dot,
    the line goes through the median of each load, and the numbers at the points are the loads. Contenders
    named in `control` are thin and grey. Both axes are logarithmic, so that equal distances are equal ratios.
    Returns the Axes.
    """
    series = speed_series(points, control, colours)
    with drawing(ax) as ax:
        label_speed_axes(ax, points)
        pad_limits(ax.xaxis, _values(series, "x"), reserve=room_for_names(ax, series))
        pad_limits(ax.yaxis, _values(series, "y"), pad=0.1)
        draw_series(ax, series)
        write_key(ax, key_text(series, absent_contenders(points, series), load_noun(points)), BETTER)
        place_labels(ax, name_labels(ax, series) + load_labels(ax, series), obstacles_of(ax, series))
    return ax


def throughput_vs_concurrency(
    points: pd.DataFrame,
    ax: Axes | None = None,
    *,
    bound: pd.DataFrame | None = None,
    control: str | Iterable[str] = (),
    colours: Mapping[str, str] | None = None,
) -> Axes:
    """Draw output throughput per GPU (or machine) against the number of requests in flight, both logarithmic.

    `bound` (columns load, output_throughput_tok_per_s per GPU or machine, label) is drawn dashed as model
    (roofline), one line for each label. Returns the Axes.
    """
    check_points(points, ("output_throughput_tok_per_s",), load_kind="concurrency")
    per, unit = device_label(points)
    return draw_against_load(
        points, points["output_throughput_tok_per_s"] / points["devices"], ax,
        bound=bound, bound_column="output_throughput_tok_per_s", control=control, colours=colours,
        x_label="requests in flight (concurrency)",
        y_label=f"output throughput {per}\n({unit}{window_label(points)})",
    )  # fmt: skip


def draw_against_load(
    points: pd.DataFrame,
    values: pd.Series,
    ax: Axes | None,
    *,
    bound: pd.DataFrame | None,
    bound_column: str,
    control: str | Iterable[str],
    colours: Mapping[str, str] | None,
    x_label: str,
    y_label: str,
    better: str = "up is better ↑",
) -> Axes:
    """Draw a number of every point against the load (log2), with a dashed bound if given."""
    series = build_series(points, points["load"], values, control, colours)
    bounds = bound_lines(bound, bound_column)
    with drawing(ax) as ax:
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        loads = _values(series, "x") + [load for _, line in bounds for load in line["load"]]
        count_axis(ax.xaxis, loads)
        rate_axis(ax.yaxis)
        pad_limits(ax.xaxis, loads, pad=0.05, reserve=room_for_names(ax, series))
        pad_limits(ax.yaxis, _values(series, "y") + [v for _, line in bounds for v in line[bound_column]], pad=0.1)
        draw_series(ax, series)
        obstacles = obstacles_of(ax, series)
        extra = draw_bounds(ax, bounds, bound_column, obstacles)
        key = key_text(series, absent_contenders(points, series)) + ("  ·  dashed: model (roofline)" if bounds else "")
        write_key(ax, key, better)
        place_labels(ax, name_labels(ax, series) + extra, obstacles)
    return ax


def bound_lines(bound: pd.DataFrame | None, column: str) -> list[tuple[str, pd.DataFrame]]:
    """Split a bound frame into (label, rows sorted by load); missing columns are a UserError."""
    if bound is None:
        return []
    missing = [name for name in ("load", column, "label") if name not in bound]
    if missing:
        raise UserError(f"the frame of the bound lacks column {', '.join(map(repr, missing))}")
    return [(str(label), rows.sort_values("load")) for label, rows in bound.groupby("label", sort=False)]


def draw_bounds(ax: Axes, bounds: list[tuple[str, pd.DataFrame]], column: str, obstacles: Obstacles) -> list[Label]:
    """Draw bounds dashed in the colour of secondary text and return a label along each."""
    labels = []
    for name, rows in bounds:
        style = {
            "color": muted_colour(),
            "linestyle": SOURCES["model (roofline)"].linestyle,
            "linewidth": 1.3,
        }
        ax.plot(rows["load"], rows[column], zorder=1.8, label=name, gid=f"bound {name}", **style)
        obstacles.add_path(ax.transData.transform(rows[["load", column]].to_numpy(dtype=float)))
        middle = rows.iloc[(len(rows) - 1) // 2]
        labels.append(Label(name, middle["load"], middle[column], muted_colour(), "around", True, NAME_SIZE - 0.5))
    return labels


def _values(series: list[Series], column: str) -> list[float]:
    return [value for line in series for value in line.repeats[column]]
