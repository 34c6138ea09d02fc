"""Cost against latency: tokens per dollar, and dollars per million tokens, over the end-to-end latency."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from wholecurve.curves.costs.plane import CostPlane
from wholecurve.errors import UserError
from wholecurve.figures.labels import Label, Obstacles, place_labels
from wholecurve.figures.save import save_figure
from wholecurve.figures.series import (
    NAME_SIZE,
    Series,
    absent_contenders,
    build_series,
    check_points,
    draw_series,
    key_text,
    load_labels,
    load_noun,
    name_labels,
    obstacles_of,
    room_for_names,
    write_key,
)  # fmt: skip
from wholecurve.figures.style import drawing, muted_colour, readable
from wholecurve.figures.ticks import format_count, format_rate, pad_limits, rate_axis
from wholecurve.files import slug

COLUMNS = ("e2e_ms", "e2e_percentile", "usd_per_device_hour", "tokens", "tokens_per_usd", "usd_per_million_tokens")
HOURS = {"gpu": "GPU-hour", "cpu": "machine-hour", "server": "server-hour"}
TOKENS_PER_DOLLAR, DOLLARS_PER_MILLION = "tokens_per_usd", "usd_per_million_tokens"


def cost_latency_curve(
    costs: pd.DataFrame,
    ax: Axes | None = None,
    *,
    readings: pd.DataFrame | None = None,
    control: str | Iterable[str] = (),
    colours: Mapping[str, str] | None = None,
) -> Axes:
    """Draw tokens per dollar against the E2E latency of every contender over load: up and left is better.

    ``costs`` is a `cost_table` of one workload. Small dots are repeats, the line goes through the median of each load,
    numbers at the points are loads. ``readings``, rows of `costs_at_latency` with one latency, are drawn as a line at
    that latency with a large mark on each curve: filled on a measured point, hollow where it is interpolated; those
    that were refused are named. Points without a latency or a cost are absent. Returns the Axes.
    """
    return _draw(costs, TOKENS_PER_DOLLAR, ax, readings, control, colours)


def dollars_per_million_curve(
    costs: pd.DataFrame,
    ax: Axes | None = None,
    *,
    readings: pd.DataFrame | None = None,
    control: str | Iterable[str] = (),
    colours: Mapping[str, str] | None = None,
) -> Axes:
    """Draw dollars per million tokens against the E2E latency: down and left is better. As `cost_latency_curve`."""
    return _draw(costs, DOLLARS_PER_MILLION, ax, readings, control, colours)


def save_cost_figure(plane: CostPlane, folder: str | Path, source: str, control: Iterable[str] = ()) -> list[Path]:
    """Write both figures of every workload of a `cost_plane` into ``folder``, as `save_figure` does; returns all paths.

    ``source`` is the line at the foot that says where the points come from; the rates are named beside it. The first
    stated latency of the plane is marked. A workload without any latency is left out; UserError where that leaves none.
    """
    drawable = plane.costs["e2e_ms"].notna() & plane.costs["tokens_per_usd"].notna()
    workloads = [name for name in plane.workloads() if drawable[plane.costs["workload"] == name].any()]
    if not workloads:
        reasons = dict.fromkeys([*plane.costs["e2e_missing"].dropna(), *plane.costs["cost_missing"].dropna()])
        raise UserError(f"no point has both a cost and a latency to draw: {'; '.join(reasons)}")
    written = []
    for workload in workloads:
        ending = "" if len(workloads) == 1 else f"_{slug(workload)}"
        written += _save_workload(plane, workload, ending, Path(folder), source, control)
    return written


def _save_workload(
    plane: CostPlane, workload: str, ending: str, folder: Path, source: str, control: Iterable[str]
) -> list[Path]:
    costs = plane.costs[plane.costs["workload"] == workload]
    readings = plane.at_latency[plane.at_latency["workload"] == workload]
    readings = readings[readings["latency_ms"] == readings["latency_ms"].iloc[0]] if len(readings) else None
    written = []
    for draw, stem, title in (
        (cost_latency_curve, "tokens_per_dollar_vs_latency", "What a dollar buys at which latency"),
        (dollars_per_million_curve, "dollars_per_million_vs_latency", "What a million tokens cost at which latency"),
    ):
        paths = save_figure(
            lambda ax, draw=draw: draw(costs, ax, readings=readings, control=control),
            stem + ending,
            folder,
            title=f"{title}: {workload}",
            caption=_caption(plane, costs),
            alt=_alt(costs),
            source=f"{source}; {_rates(costs)}",
            data=costs,
        )
        written += paths.values()
    return written


def _draw(
    costs: pd.DataFrame,
    column: str,
    ax: Axes | None,
    readings: pd.DataFrame | None,
    control: str | Iterable[str],
    colours: Mapping[str, str] | None,
) -> Axes:
    check_points(costs, COLUMNS)
    kinds = sorted(set(costs["tokens"]))
    if len(kinds) > 1:
        raise UserError(f"the frame prices {' and '.join(kinds)} tokens; one figure shows one kind")
    series = build_series(costs, costs["e2e_ms"] / 1000, costs[column], control, colours)
    marks = _marks(readings, series, column)
    noun = f"{kinds[0]} tokens"
    up = column == TOKENS_PER_DOLLAR
    with drawing(ax) as ax:
        ax.set_xlabel(f"p{int(costs['e2e_percentile'].iloc[0])} end-to-end latency (s)")
        what = f"{noun} per dollar" if up else f"dollars per million {noun}"
        ax.set_ylabel(f"{what}\n({_rate_label(costs)})")
        rate_axis(ax.xaxis)
        rate_axis(ax.yaxis)
        pad_limits(ax.xaxis, _values(series, "x"), reserve=room_for_names(ax, series))
        pad_limits(ax.yaxis, _values(series, "y"), pad=0.1)
        draw_series(ax, series)
        obstacles = obstacles_of(ax, series)
        labels = _draw_marks(ax, marks, readings, obstacles, "" if up else "$/M")
        key = key_text(series, absent_contenders(costs, series), load_noun(costs)) + _mark_key(marks, readings)
        write_key(ax, key, "up and left is better ↖" if up else "down and left is better ↙")
        place_labels(ax, labels + name_labels(ax, series) + load_labels(ax, series), obstacles)
    return ax


def _marks(readings: pd.DataFrame | None, series: list[Series], column: str) -> list[tuple[Series, dict]]:
    """The line and the reading of every contender that was read; several latencies are a UserError."""
    if readings is None or not len(readings):
        return []
    if readings["latency_ms"].nunique() > 1:
        raise UserError("the readings are at several latencies; one figure marks one: filter first")
    lines = {line.name: line for line in series}
    rows = [row for row in readings.to_dict("records") if row["contender"] in lines and not pd.isna(row[column])]
    return [(lines[row["contender"]], {**row, "value": row[column]}) for row in rows]


def _draw_marks(ax: Axes, marks: list, readings: pd.DataFrame | None, obstacles: Obstacles, unit: str) -> list[Label]:
    if readings is None or not len(readings):
        return []
    x = readings["latency_ms"].iloc[0] / 1000
    low, high = ax.get_ylim()
    ax.axvline(x, color=muted_colour(), linewidth=1.1, linestyle=(0, (1, 2)), zorder=1.5, gid="latency")
    obstacles.add_path(ax.transData.transform([(x, low), (x, high)]))
    labels = []
    for line, row in marks:
        ax.plot(
            x, row["value"], linestyle="none", marker=line.source.marker, markersize=10, markeredgewidth=2.2, zorder=5,
            markeredgecolor=line.colour, markerfacecolor=line.colour if row["measured"] else ax.get_facecolor(),
            gid=f"reading {line.name}",
        )  # fmt: skip
        obstacles.add_marker(ax.transData.transform((x, row["value"])), 6.0 * ax.figure.dpi / 72)
        how = "measured" if row["measured"] else "interpolated"
        load = format_count(row["load"]) if row["measured"] else f"{row['load']:.3g}"
        value = format_rate(float(f"{row['value']:.3g}"))
        text = f"{unit and '$'}{value}{' tokens/$' if not unit else ' per million'}\nload {load}, {how}"
        colour = readable(line.colour, ax.get_facecolor())
        labels.append(Label(text, x, row["value"], colour, size=NAME_SIZE - 1))
    return labels


def _mark_key(marks: list, readings: pd.DataFrame | None) -> str:
    if readings is None or not len(readings):
        return ""
    at = f"\ndotted: {readings['latency_ms'].iloc[0] / 1000:.4g} s, large hollow mark: interpolated there"
    drawn = {line.name for line, _ in marks}
    refused = [name for name in readings["contender"] if name not in drawn]
    return at + (f"  ·  not measured there: {', '.join(refused)}" if refused else "")


def _rate_label(costs: pd.DataFrame) -> str:
    hours = " or ".join(HOURS.get(kind, "device-hour") for kind in sorted(set(costs["device_kind"])))
    rates = costs["usd_per_device_hour"].dropna()
    if rates.empty:
        return f"no rate per {hours}"
    low, high = f"{rates.min():.2f}", f"{rates.max():.2f}"
    return f"at {low if low == high else f'{low}–{high}'} $ per {hours}"


def _rates(costs: pd.DataFrame) -> str:
    # "USD", because matplotlib takes what stands between two dollar signs for a formula.
    known = costs[costs["usd_per_device_hour"].notna()]
    rates = dict.fromkeys(zip(known["rate"], known["usd_per_device_hour"]))
    return "rates: " + "; ".join(f"{usd:.2f} USD/h ({label})" for label, usd in rates)


def _caption(plane: CostPlane, costs: pd.DataFrame) -> str:
    return (
        f"{costs['tokens'].iloc[0].capitalize()} tokens of a machine that is never idle, against the "
        f"p{plane.percentile} end-to-end latency; numbers at the points are loads. A cost is the rate over the "
        "measured throughput; between points throughput is interpolated and the cost follows from it."
    )


def _alt(costs: pd.DataFrame) -> str:
    parts = []
    known = costs[costs["tokens_per_usd"].notna() & costs["e2e_ms"].notna()]
    for name, rows in known.groupby("contender", sort=False):
        best = rows.loc[rows["tokens_per_usd"].idxmax()]
        parts.append(
            f"{name} reaches {best['tokens_per_usd']:,.0f} tokens per dollar at {best['e2e_ms'] / 1000:.3g} s "
            f"(load {best['load']:g})"
        )
    return "Cost against end-to-end latency. " + "; ".join(parts)


def _values(series: list[Series], column: str) -> list[float]:
    return [value for line in series for value in line.repeats[column]]
