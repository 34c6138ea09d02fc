"""From tidy point rows to drawn lines: checks of the frame, medians over repeats, dots, markers and direct
labels.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from wholecurve.errors import UserError
from wholecurve.figures.labels import Label, Obstacles, spread, text_size_px
from wholecurve.figures.style import (
    SOURCES,
    SourceStyle,
    muted_colour,
    readable,
    resolve_colours,
    source_style,
)
from wholecurve.figures.ticks import format_count

NAME_SIZE, LOAD_SIZE, KEY_SIZE = 9.5, 8.0, 8.5
POINT_COLUMNS = ("contender", "load", "source", "device_kind", "devices")


@dataclass(frozen=True)
class Series:
    """One drawn line: a contender from one source. `repeats` and `median` have the columns load, x, y."""

    name: str
    source: SourceStyle
    colour: str
    control: bool
    repeats: pd.DataFrame
    median: pd.DataFrame


# What throughput is divided by, and its unit; "server" is one whose number of devices the source does not say.
DEVICES = {"gpu": ("per GPU", "tok/s/GPU"), "cpu": ("per machine", "tok/s"), "server": ("per server", "tok/s")}

LOAD_NOUNS = {
    "concurrency": "concurrency",
    "step_tokens": "tokens per step",
    "sessions": "sessions in flight",
    "request_rate": "sessions started per second",
}


def device_label(points: pd.DataFrame) -> tuple[str, str]:
    """Return ("per GPU", "tok/s/GPU"), ("per machine", "tok/s") or ("per server", "tok/s"); several is a UserError."""
    kinds = sorted(set(points["device_kind"]))
    if len(kinds) == 1 and kinds[0] in DEVICES:
        return DEVICES[kinds[0]]
    raise UserError(
        f"column 'device_kind' holds {', '.join(map(repr, kinds))}; one figure shows either 'cpu' or 'gpu' or 'server'"
    )


def window_label(points: pd.DataFrame) -> str:
    """Return ", steady window" or ", full run" (or both) for an axis label, "" where the frame has none."""
    if "window" not in points:
        return ""
    names = {"steady": "steady window", "full": "full run", "arrivals": "while sessions arrive"}
    windows = [names.get(window, str(window)) for window in sorted(set(points["window"].dropna()), reverse=True)]
    return f", {' or '.join(windows)}" if windows else ""


def load_noun(points: pd.DataFrame) -> str:
    """What the loads of a frame count, as "concurrency" or "tokens per step"; "load" where it does not say."""
    kinds = set(points["load_kind"]) if "load_kind" in points else set()
    return LOAD_NOUNS.get(kinds.pop() if len(kinds) == 1 else "", "load")


def as_names(control: str | Iterable[str]) -> tuple[str, ...]:
    """Several names as a tuple; a plain string is one name, not its letters."""
    return (control,) if isinstance(control, str) else tuple(control)


def check_points(points: pd.DataFrame, columns: Iterable[str], load_kind: str | None = None) -> None:
    """Refuse (UserError) a frame that lacks columns or rows, mixes workloads, or has another kind of load."""
    missing = [column for column in (*POINT_COLUMNS, *columns) if column not in points]
    if missing:
        raise UserError(f"the frame of points lacks column {', '.join(map(repr, missing))}")
    for source in points["source"].unique():
        source_style(source)
    if not len(points):
        raise UserError("the frame of points has no rows; nothing was measured")
    if "workload" in points and points["workload"].nunique() > 1:
        raise UserError(
            f"the frame mixes workloads {sorted(set(points['workload']))}; a figure shows one: filter first"
        )
    if load_kind and "load_kind" in points and set(points["load_kind"]) != {load_kind}:
        raise UserError(f"column 'load_kind' holds {sorted(set(points['load_kind']))}; this figure needs {load_kind!r}")


def build_series(
    points: pd.DataFrame,
    x: pd.Series,
    y: pd.Series,
    control: str | Iterable[str] = (),
    colours: Mapping[str, str] | None = None,
) -> list[Series]:
    """Split points into lines, one for each contender and source; controls come first, to lie below.

    `x` and `y` are aligned with `points`. Rows without a positive finite x and y are absent, never 0. The
    median is taken over the repeats of a load, for x and y on their own.
    """
    names, control = list(dict.fromkeys(points["contender"])), as_names(control)
    palette = resolve_colours(names, control, colours)
    table = points[["contender", "source", "load"]].assign(x=x.astype(float), y=y.astype(float))
    table = table[np.isfinite(table["x"]) & np.isfinite(table["y"]) & (table["x"] > 0) & (table["y"] > 0)]
    if table.empty:
        raise UserError("no row has both values of this figure; every point is missing")
    result = []
    for name in sorted(names, key=lambda name: (name not in control, names.index(name))):
        for source, rows in table[table["contender"] == name].groupby("source", sort=True):
            repeats = rows[["load", "x", "y"]].sort_values("load", kind="stable").reset_index(drop=True)
            median = repeats.groupby("load", as_index=False).median()
            result.append(Series(name, source_style(source), palette[name], name in control, repeats, median))
    return result


def absent_contenders(points: pd.DataFrame, series: list[Series]) -> list[str]:
    """Names in the frame that have no drawable point."""
    drawn = {line.name for line in series}
    return [name for name in dict.fromkeys(points["contender"]) if name not in drawn]


def draw_series(ax: Axes, series: list[Series]) -> None:
    """Draw every repeat as a small dot and the line through the medians with the marker of its source."""
    for line in series:
        width, size = (1.1, 4.0) if line.control else (1.8, 6.5)
        style, order = line.source, 2 if line.control else 3
        ax.plot(
            line.median["x"], line.median["y"], color=line.colour, linestyle=style.linestyle, linewidth=width,
            marker=style.marker, markersize=size, markeredgecolor=line.colour, zorder=order, label=line.name,
            markerfacecolor=line.colour if style.filled else ax.get_facecolor(), gid=f"median {line.name}",
        )  # fmt: skip
        ax.plot(
            line.repeats["x"], line.repeats["y"], linestyle="none", marker="o", markersize=2.8,
            color=line.colour, alpha=0.6, markeredgewidth=0, zorder=order - 0.5, label="_repeats",
            gid=f"repeats {line.name}",
        )  # fmt: skip


def obstacles_of(ax: Axes, series: list[Series]) -> Obstacles:
    """What is drawn, in pixels, for the placing of labels; limits must be final."""
    obstacles, scale = Obstacles(), ax.figure.dpi / 72
    for line in series:
        at = ax.transData.transform(line.median[["x", "y"]].to_numpy())
        obstacles.add_path(at)
        for centre in at:
            obstacles.add_marker(centre, (2.2 if line.control else 3.6) * scale)
        for centre in ax.transData.transform(line.repeats[["x", "y"]].to_numpy()):
            obstacles.add_marker(centre, 1.4 * scale)
    return obstacles


def line_end(line: Series) -> pd.Series:
    """The median point (load, x, y) at the right end of a line, where its name goes."""
    return line.median.loc[line.median["x"].idxmax()]


def room_for_names(ax: Axes, series: list[Series]) -> list[tuple[float, float]]:
    """For every line (x of its right end, pixels that its name needs there), as `pad_limits` takes them."""
    gap = 20 * ax.figure.dpi / 72
    return [(line_end(line)["x"], text_size_px(ax, line.name, NAME_SIZE, "bold")[0] + gap) for line in series]


def column_shifts(ax: Axes, ends: list[tuple[float, float]], names: list[str]) -> list[float]:
    """Pixels by which each name beside its line end has to move so that names in one column do not meet."""
    at = ax.transData.transform(ends)
    sizes = [text_size_px(ax, name, NAME_SIZE, "bold") for name in names]
    pitch = max(height for _, height in sizes) + 3 * ax.figure.dpi / 72
    low, high = ax.get_window_extent().intervaly + np.array([pitch, -pitch]) / 2
    shifts = np.zeros(len(names))
    for group in _columns(at[:, 0], [width for width, _ in sizes]):
        shifts[group] = spread(at[group, 1], pitch, low, high) - at[group, 1]
    return [float(shift) for shift in shifts]


def name_labels(ax: Axes, series: list[Series]) -> list[Label]:
    """A label at the right end of every line; those in one column are spread apart in their order."""
    ends = [line_end(line) for line in series]
    shifts = column_shifts(ax, [(end["x"], end["y"]) for end in ends], [line.name for line in series])
    return [
        Label(
            line.name, end["x"], end["y"], readable(line.colour, ax.get_facecolor()), "right", True,
            NAME_SIZE, "normal" if line.control else "bold", shift,
        )
        for line, end, shift in sorted(zip(series, ends, shifts, strict=True), key=lambda one: one[0].control)
    ]  # fmt: skip


def _columns(x_px: np.ndarray, widths: list[float]) -> list[list[int]]:
    """Group label indices whose boxes, set to the right of x, share a column of pixels."""
    groups: list[list[int]] = []
    edge = -np.inf
    for index in np.argsort(x_px, kind="stable"):
        if x_px[index] > edge:
            groups.append([])
            edge = -np.inf
        groups[-1].append(int(index))
        edge = max(edge, x_px[index] + widths[index])
    return groups


def load_labels(ax: Axes, series: list[Series]) -> list[Label]:
    """The load beside every median point that is not a control's; left out where it would cover something."""
    return [
        Label(
            format_count(row.load),
            row.x,
            row.y,
            readable(line.colour, ax.get_facecolor()),
            "around",
            False,
            LOAD_SIZE,
        )
        for line in series
        if not line.control
        for row in line.median.itertuples()
    ]


def key_text(series: list[Series], absent: Iterable[str] = (), numbers: str | None = None) -> str:
    """One line that says what the marks mean: sources, dots, numbers at points, and who has no point."""
    parts = [f"{style.glyph} {name}" for name, style in SOURCES.items() if style in {line.source for line in series}]
    counts = pd.concat([line.repeats["load"].value_counts() for line in series])
    if counts.max() > 1:
        spread_of_counts = f"{counts.min()}–{counts.max()}" if counts.min() < counts.max() else f"{counts.max()}"
        parts.append(f"line: median, dots: {spread_of_counts} repeats")
    else:
        parts.append("one run per point")
    if numbers:
        parts.append(f"numbers: {numbers}")
    if absent := list(absent):
        parts.append(f"not measured: {', '.join(absent)}")
    return "  ·  ".join(parts)


def write_key(ax: Axes, left: str, right: str = "") -> None:
    """Write the key above the Axes; `right` goes to the right end, or on a line of its own if need be."""
    style = {
        "xycoords": "axes fraction",
        "textcoords": "offset points",
        "va": "bottom",
        "annotation_clip": False,
    }
    style |= {"fontsize": KEY_SIZE, "color": muted_colour()}
    widths = [text_size_px(ax, text, KEY_SIZE)[0] for text in (left, right)]
    if right and sum(widths) > 0.97 * ax.get_window_extent().width:
        left, right = f"{right}\n{left}", ""
    ax.annotate(left, (0, 1), xytext=(0, 6), ha="left", **style)
    if right:
        ax.annotate(right, (1, 1), xytext=(0, 6), ha="right", **style)
