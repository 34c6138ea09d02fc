"""Published multipliers over load: printed ratios, each with the interval of what its digits can stand for.

Everything here is published: hollow marks, dashed lines. A bar is rounding, not an interval over runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, log10

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from wholecurve.errors import UserError
from wholecurve.figures.labels import Label, Obstacles, place_labels, text_size_px
from wholecurve.figures.series import KEY_SIZE, LOAD_SIZE, NAME_SIZE, column_shifts, write_key
from wholecurve.figures.style import OKABE_ITO, SOURCES, drawing, muted_colour, readable, resolve_colours
from wholecurve.figures.ticks import count_axis, format_multiplier, pad_limits, rate_axis

PUBLISHED = SOURCES["published"]
KEY = f"{PUBLISHED.glyph} published  ·  bar: what the printed digits allow"
LOADS = {
    "step_tokens": "new input tokens per step (tokens per GPU)",
    "requests_per_gpu": "requests in flight per GPU",
    "concurrency": "requests in flight (concurrency)",
}
RATIO_COLUMNS = ("who", "against", "metric", "model", "n", "load_kind", "load", "ratio", "low", "high")
HANDICAP_COLUMNS = ("load_kind", "load", "ratio_run", "ratio_published", "baseline_run_over_published", "low", "high")
DODGE = 1.08  # two marks at one load stand side by side, each this factor away from it


@dataclass(frozen=True)
class Line:
    """One drawn line: `rows` with the columns load, value, low, high, sorted by load; `dodge`: a factor on the load.

    `label` is its name as it stands at the line end, "" for a line that needs none.
    """

    name: str
    label: str
    colour: str
    rows: pd.DataFrame
    dodge: float = 1.0


def prefill_over_baselines(
    ratios: pd.DataFrame, ax: Axes | None = None, *, colours: Mapping[str, str] | None = None
) -> Axes:
    """Draw one engine's published prefill ratios over tokens per step (log2), a dashed line for each baseline.

    `ratios`: rows of `published_ratios` with load_kind "step_tokens", of one engine, model and metric, each baseline
    (`against`) once at a load. Bars run from `low` to `high`. UserError for any other frame. Returns the Axes.
    """
    name = "published prefill ratios"
    check_frame(ratios, name, RATIO_COLUMNS)
    check_positive(ratios, name, ("load",))
    check_interval(ratios, name, "ratio")
    for column in ("who", "model", "metric", "load_kind"):
        _one_value(ratios, name, column)
    if ratios["load_kind"].iloc[0] != "step_tokens":
        raise UserError(f"the frame of {name} has load_kind {ratios['load_kind'].iloc[0]!r}; 'step_tokens' is needed")
    baselines = list(dict.fromkeys(ratios["against"]))
    palette = resolve_colours(baselines, (), colours)
    of_each = [(against, ratios[ratios["against"] == against]) for against in baselines]
    lines = [_line(against, f"{against}\n{_runs(rows)}", palette[against], rows, name) for against, rows in of_each]
    who, metric = ratios["who"].iloc[0], ratios["metric"].iloc[0]
    with drawing(ax) as ax:
        ax.set_ylabel(f"{metric}\nof {who} over the baseline (×)")
        _draw(ax, lines, "step_tokens", "no difference", "", f"above 1: {who} is ahead ↑")
    return ax


def decode_identity(ratios: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw two metrics of one published decode comparison side by side at every load: throughput and speed per user.

    `ratios`: rows of `published_ratios` of one engine, baseline, model and kind of load, in exactly two metrics that
    stand at the same loads. The key counts at how many loads both print the same ratio. UserError for any other
    frame. Returns the Axes.
    """
    name = "published decode ratios"
    check_frame(ratios, name, RATIO_COLUMNS)
    check_positive(ratios, name, ("load",))
    check_interval(ratios, name, "ratio")
    for column in ("who", "against", "model", "load_kind"):
        _one_value(ratios, name, column)
    metrics = list(dict.fromkeys(ratios["metric"]))
    if len(metrics) != 2:
        raise UserError(f"the frame of {name} has the metrics {', '.join(metrics)}; exactly two are set side by side")
    looks = zip(metrics, (OKABE_ITO["sky"], OKABE_ITO["orange"]), (1 / DODGE, DODGE))
    one, other = (
        _line(metric, metric, colour, ratios[ratios["metric"] == metric], name, by) for metric, colour, by in looks
    )
    if list(one.rows["load"]) != list(other.rows["load"]):
        raise UserError(f"the frame of {name} has {one.name} and {other.name} at different loads")
    equal = int((one.rows["value"].to_numpy() == other.rows["value"].to_numpy()).sum())
    who, kind = ratios["who"].iloc[0], ratios["load_kind"].iloc[0]
    with drawing(ax) as ax:
        ax.set_ylabel(f"{who} over\n{ratios['against'].iloc[0]} (×)")
        same = f"{_runs(ratios)}  ·  the same digits at {equal} of {len(one.rows)} loads"
        _draw(ax, [one, other], kind, "no difference", same, f"above 1: {who} is ahead ↑")
    return ax


def baseline_handicap_curve(
    handicap: pd.DataFrame, ax: Axes | None = None, *, run: str = "baseline as run", as_published: str = "as published"
) -> Axes:
    """Draw how fast a baseline ran relative to what its makers publish, over load (log2); 1 is as published.

    `handicap`: a frame of `baseline_handicap`, whose share is the quotient of two printed ratios; its bars are the
    interval of that quotient. `run` and `as_published` name the two in the labels. UserError for any other frame.
    """
    name = "baseline handicap"
    check_frame(handicap, name, HANDICAP_COLUMNS)
    check_positive(handicap, name, ("load",))
    check_interval(handicap, name, "baseline_run_over_published")
    _one_value(handicap, name, "load_kind")
    rows = handicap.rename(columns={"baseline_run_over_published": "ratio"})
    line = _line(run, "", OKABE_ITO["vermillion"], rows, name)
    kind = handicap["load_kind"].iloc[0]
    with drawing(ax) as ax:
        ax.set_ylabel(f"{run}\nover {as_published} (×)")
        _draw(ax, [line], kind, "as fast as published", "", "below 1: the baseline ran slower ↓")
    return ax


def check_frame(frame: object, name: str, columns: Iterable[str]) -> None:
    """Refuse (UserError, naming the frame) what is no frame, lacks columns, or has no rows."""
    if not isinstance(frame, pd.DataFrame):
        raise UserError(f"the frame of {name} is a {type(frame).__name__}; a pandas DataFrame is needed")
    if missing := [column for column in columns if column not in frame]:
        raise UserError(f"the frame of {name} lacks column {', '.join(map(repr, missing))}")
    if frame.empty:
        raise UserError(f"the frame of {name} has no rows; there is nothing to draw")


def check_positive(frame: pd.DataFrame, name: str, columns: Iterable[str]) -> None:
    """Refuse (UserError, naming frame and column) what is no positive finite number."""
    for column in columns:
        numbers = pd.to_numeric(frame[column], errors="coerce")
        if bad := list(frame[column][~(np.isfinite(numbers) & (numbers > 0))]):
            raise UserError(f"the frame of {name} has {bad[0]!r} in column {column!r}; a positive number is needed")


def check_interval(frame: pd.DataFrame, name: str, value: str, low: str = "low", high: str = "high") -> None:
    """Refuse (UserError) a value or an end of its interval that is no positive number, and a value outside of it."""
    check_positive(frame, name, (low, value, high))
    outside = frame[(frame[low] > frame[value]) | (frame[value] > frame[high])]
    if len(outside):
        row = outside.iloc[0]
        raise UserError(f"the frame of {name} has {row[value]} outside of its interval from {row[low]} to {row[high]}")


def tinted(colour: object, background: object, share: float) -> tuple[float, ...]:
    """What `colour` with this opacity looks like on `background`, so that text on it can be made readable."""
    return tuple(float(v) for v in share * np.array(to_rgb(colour)) + (1 - share) * np.array(to_rgb(background)))


def _one_value(frame: pd.DataFrame, name: str, column: str) -> None:
    values = list(dict.fromkeys(frame[column]))
    if len(values) > 1:
        raise UserError(f"the frame of {name} mixes {column} {', '.join(map(repr, values))}; a figure shows one")


def _line(name: str, label: str, colour: str, rows: pd.DataFrame, frame: str, dodge: float = 1.0) -> Line:
    doubled = rows["load"][rows["load"].duplicated()]
    if len(doubled):
        raise UserError(f"the frame of {frame} has {name} more than once at load {doubled.iloc[0]:g}")
    table = rows[["load", "ratio", "low", "high"]].rename(columns={"ratio": "value"}).astype(float)
    return Line(name, label.replace(" (", "\n("), colour, table.sort_values("load", ignore_index=True), dodge)


def _runs(ratios: pd.DataFrame) -> str:
    stated = dict.fromkeys("unstated" if pd.isna(n) or n == "" else str(n) for n in ratios["n"])
    return f"n = {', '.join(stated)}"


def _draw(ax: Axes, lines: list[Line], load_kind: str, at_one: str, more_key: str, right_key: str) -> None:
    loads = sorted({load for line in lines for load in line.rows["load"]})
    ax.set_xlabel(LOADS.get(load_kind, load_kind.replace("_", " ")))
    count_axis(ax.xaxis, loads)
    rate_axis(ax.yaxis, format_multiplier)
    gap = 20 * ax.figure.dpi / 72
    room = [(loads[-1] * line.dodge, text_size_px(ax, line.label, NAME_SIZE, "bold")[0] + gap) for line in lines]
    pad_limits(ax.xaxis, [load * line.dodge for line in lines for load in loads], pad=0.05, reserve=room)
    values = np.concatenate([line.rows[["low", "high"]].to_numpy().ravel() for line in lines])
    pad_limits(ax.yaxis, [1.0, *values], pad=0.12, least_factor=1.1)
    obstacles = Obstacles()
    _draw_reference(ax, at_one, obstacles)
    for line in lines:
        _draw_line(ax, line, obstacles)
    write_key(ax, f"{KEY}{'  ·  ' if more_key else ''}{more_key}", right_key)
    place_labels(ax, _names(ax, lines) + _values(ax, lines), obstacles)


def _draw_reference(ax: Axes, text: str, obstacles: Obstacles) -> None:
    ax.axhline(1, color=muted_colour(), linewidth=1.1, zorder=1.5, gid="one")
    obstacles.add_path(ax.transData.transform([(edge, 1) for edge in ax.get_xlim()]))
    ax.annotate(
        text, (0, 1), xycoords=("axes fraction", "data"), xytext=(4, -3), textcoords="offset points",
        ha="left", va="top", fontsize=KEY_SIZE, color=muted_colour(),
    )  # fmt: skip


def _draw_line(ax: Axes, line: Line, obstacles: Obstacles) -> None:
    x, rows = line.rows["load"] * line.dodge, line.rows
    ax.plot(
        x, rows["value"], color=line.colour, linewidth=1.1, linestyle=PUBLISHED.linestyle, marker=PUBLISHED.marker,
        markersize=6, markeredgecolor=line.colour, markeredgewidth=1.3, markerfacecolor=ax.get_facecolor(), zorder=3,
        gid=f"value {line.name}", label=line.name,
    )  # fmt: skip
    ax.vlines(x, rows["low"], rows["high"], colors=line.colour, linewidth=1.3, zorder=4, gid=f"bar {line.name}")
    for edge in ("low", "high"):
        ax.plot(x, rows[edge], "_", color=line.colour, markersize=11, markeredgewidth=1.3, zorder=4)
    at = ax.transData.transform(np.column_stack([x, rows["value"]]))
    obstacles.add_path(at)
    for centre in at:
        obstacles.add_marker(centre, 6.0 * ax.figure.dpi / 72)
    for load, low, high in zip(x, rows["low"], rows["high"], strict=True):
        obstacles.add_path(ax.transData.transform([(load, low), (load, high)]))


def _names(ax: Axes, lines: list[Line]) -> list[Label]:
    named = [line for line in lines if line.label]
    ends = [(line.rows["load"].iloc[-1] * line.dodge, line.rows["value"].iloc[-1]) for line in named]
    names = [line.label for line in named]
    shifts = column_shifts(ax, ends, names) if named else ()
    return [
        Label(name, x, y, readable(line.colour, ax.get_facecolor()), "right", True, NAME_SIZE, "bold", shift)
        for line, name, (x, y), shift in zip(named, names, ends, shifts, strict=True)
    ]


def _values(ax: Axes, lines: list[Line]) -> list[Label]:
    """The printed digits at every mark; two marks at one load that print the same share one."""
    labels: dict[tuple, Label] = {}
    for line in lines:
        for row in line.rows.itertuples():
            digits = max(0, ceil(-log10(row.high - row.low) - 1e-9)) if row.high > row.low else 2
            colour, x = readable(line.colour, ax.get_facecolor()), row.load * line.dodge
            shared = labels.get((row.load, row.value))
            x, colour = (row.load, muted_colour()) if shared else (x, colour)
            text = f"{row.value:.{digits}f}×"
            labels[row.load, row.value] = Label(text, x, row.value, colour, "around", False, LOAD_SIZE)
    return list(labels.values())
