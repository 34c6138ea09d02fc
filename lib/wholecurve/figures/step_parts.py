"""A step taken apart: parts as stacked bars over the load, the share of a ceiling that each attains, and whole steps.

Frames are the rows of a study of parts (`rows.csv`, see `wholecurve.studies.steps.parts_record`): one row per part.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from wholecurve.errors import UserError
from wholecurve.figures.labels import Label, Obstacles, place_labels, text_size_px
from wholecurve.figures.series import NAME_SIZE, column_shifts, write_key
from wholecurve.figures.style import CONTROL_COLOUR, OKABE_ITO, SOURCES, drawing, muted_colour, readable, source_style
from wholecurve.figures.ticks import count_axis, format_count, pad_limits, rate_axis

COLUMNS = ("kind", "source", "threads", "new_tokens", "form", "part", "median_ms", "p10_ms", "p90_ms", "bound_ms")
COLUMNS += ("attained", "note")
STEP, WHOLE = "step", "whole step"
NAMES = {
    "qkv": "q, k, v",
    "attention": "attention",
    "output": "output",
    "gate_up": "gate, up",
    "down": "down",
    "head": "head",
    STEP: WHOLE,
}
WORKING = tuple(part for part in NAMES if part != STEP)
COLOURS = dict(zip(WORKING, OKABE_ITO.values(), strict=True))
# From the bottom up: name, parts, colour, hatch. Nothing is computed in the hatched ones.
STACK = (
    *((NAMES[part], (part,), COLOURS[part], "") for part in WORKING),
    ("norms, embedding", ("norm", "embedding"), CONTROL_COLOUR, ""),
    ("waiting", ("waiting",), CONTROL_COLOUR, "////"),
    ("outside", ("outside",), CONTROL_COLOUR, "...."),
)
LOADS = {"decode": "requests in flight, one new token each", "prefill": "new tokens of one prompt, empty cache"}
BOUND = SOURCES["model (roofline)"].linestyle
APART, WIDTH = 0.2, 0.36  # of a bar: from the middle of its load, and in all


def step_parts(rows: pd.DataFrame, ax: Axes | None = None, *, kind: str, threads: int) -> Axes:
    """Draw, per load, the measured parts of a step stacked and filled, and beside them their bounds stacked and hollow.

    ``kind`` is "decode" or "prefill". Heights are milliseconds per new token, so that loads of any size compare; the
    line across a filled bar is the whole step without timers. Returns the Axes.
    """
    found = chosen(rows, kind, threads)
    native = found[found["form"] == "native"]
    loads = sorted(set(native["new_tokens"]))
    measured, bounds = (
        native.pivot(index="part", columns="new_tokens", values=column).astype(float).fillna(0.0) / loads
        for column in ("median_ms", "bound_ms")
    )
    places, top, bound_top = np.arange(len(loads)), np.zeros(len(loads)), np.zeros(len(loads))
    with drawing(ax) as axes:
        for name, parts, colour, hatch in STACK:
            heights, limits = measured.loc[list(parts)].sum(), bounds.loc[list(parts)].sum()
            filled = {"facecolor": "none" if hatch else colour, "edgecolor": colour, "hatch": hatch, "linewidth": 0.6}
            axes.bar(places - APART, heights, WIDTH, top, **filled, gid=f"measured {name}")
            if limits.any():
                hollow = {"facecolor": "none", "edgecolor": colour, "linewidth": 1.2, "linestyle": BOUND}
                axes.bar(places + APART, limits, WIDTH, bound_top, **hollow, gid=f"bound {name}")
            top, bound_top = top + heights.to_numpy(), bound_top + limits.to_numpy()
        whole = measured.loc[STEP].to_numpy()
        ends = places - APART - 0.6 * WIDTH, places - APART + 0.6 * WIDTH
        axes.hlines(whole, *ends, color=axes.xaxis.label.get_color(), linewidth=1.6, zorder=4)
        axes.set_xticks(places, [format_count(load) for load in loads])
        axes.set_xlim(-0.6, len(loads) - 0.4)
        axes.set_ylim(0, 1.06 * max(top.max(), whole.max(), bound_top.max()))
        axes.grid(False, axis="x")
        axes.set_xlabel(LOADS[kind] + above_ceilings(found))
        axes.set_ylabel("ms per new token")
        write_key(axes, f"filled: measured, {on_threads(threads)}  ·  line: without timers  ·  dashed: bounds")
        patches = [
            Patch(facecolor="none" if hatch else colour, edgecolor=colour, hatch=hatch, label=name)
            for name, _, colour, hatch in STACK
        ]
        axes.legend(handles=patches[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.02), handlelength=1.2)
    return axes


def attained_shares(
    rows: pd.DataFrame, ax: Axes | None = None, *, kind: str, threads: int, turn: float | None = None
) -> Axes:
    """Draw bound / measured time of every working part, and of the whole step, over the load, in percent.

    ``turn``: rows from which on arithmetic bounds a product, drawn as a dotted line where it lies among the loads.
    100 % is a measured ceiling; what lies above it is named below the axis as an error. UserError for rows without
    bounds. Returns the Axes.
    """
    found = chosen(rows, kind, threads)
    native = found[(found["form"] == "native") & found["part"].isin(NAMES) & found["attained"].notna()]
    if native.empty:
        raise UserError("attained_shares: the rows have no bounds; measure them with ceilings")
    native = native.assign(share=100 * native["attained"].astype(float))
    loads = sorted(set(native["new_tokens"]))
    with drawing(ax) as axes:
        count_axis(axes.xaxis, loads)
        reserve_names(axes, loads, NAMES.values())
        axes.set_ylim(0, 1.06 * max(100.0, native["share"].max()))
        axes.axhline(100, color=muted_colour(), linestyle=BOUND, linewidth=1.3, gid="ceiling")
        if turn is not None and loads[0] <= turn <= loads[-1]:
            axes.axvline(turn, color=muted_colour(), linestyle=(0, (1, 2)), linewidth=1.1, zorder=1.5, gid="turn")
            style = {"color": muted_colour(), "fontsize": 8, "textcoords": "offset points"}
            text = f"{turn:.0f} rows: arithmetic bounds products"
            axes.annotate(text, (turn, 0.02), (-5, 0), xycoords=("data", "axes fraction"), ha="right", **style)
        axes.set_xlabel(LOADS[kind] + above_ceilings(found))
        axes.set_ylabel("share of the measured ceiling (%)")
        write_key(axes, f"bound / measured median, {on_threads(threads)}", "up is better ↑")
        lines = []
        for part, name in NAMES.items():
            line = native[native["part"] == part].sort_values("new_tokens")
            if len(line):
                colour = COLOURS.get(part, axes.xaxis.label.get_color())
                width = 2.6 if part == STEP else 1.4
                lines.append((name, draw_line(axes, line, "share", colour, width), colour))
        name_lines(axes, lines)
    return axes


def step_times(rows: pd.DataFrame, ax: Axes | None = None, *, threads: int) -> Axes:
    """Draw whole steps of both forms and the sum of the parts' bounds over the new tokens of a step, log on log.

    Decode and prefill are lines of their own, with p10 to p90 as whiskers. Returns the Axes.
    """
    drawn = pd.concat([chosen(rows, kind, threads) for kind in kinds_on(rows, threads)])
    drawn = drawn[(drawn["part"] == STEP) & drawn["form"].isin(("native", "torch"))]
    loads = sorted(set(drawn["new_tokens"]))
    colours = {"native": OKABE_ITO["blue"], "torch": OKABE_ITO["green"]}
    with drawing(ax) as axes:
        count_axis(axes.xaxis, loads)
        rate_axis(axes.yaxis)
        reserve_names(axes, loads, [*colours, "bound"])
        pad_limits(axes.yaxis, [*drawn["p90_ms"], *drawn["p10_ms"], *drawn["bound_ms"].dropna()])
        axes.set_xlabel("new tokens in a step (decode: one per request; prefill: one prompt)")
        axes.set_ylabel("ms per step")
        write_key(axes, f"median, whiskers p10 to p90, {on_threads(threads)}  ·  dashed: bound", "down is better ↓")
        lines = {}
        for kind in dict.fromkeys(drawn["kind"]):
            for form, colour in colours.items():
                line = drawn[(drawn["kind"] == kind) & (drawn["form"] == form)].sort_values("new_tokens")
                axes.vlines(line["new_tokens"], line["p10_ms"], line["p90_ms"], color=colour, linewidth=1)
                lines[form] = (form, draw_line(axes, line, "median_ms", colour, 1.8), colour)
            if line["bound_ms"].notna().any():
                axes.plot(line["new_tokens"], line["bound_ms"], BOUND, color=muted_colour(), linewidth=1.3, gid="bound")
                lines["bound"] = ("bound", (line["new_tokens"].iloc[-1], line["bound_ms"].iloc[-1]), muted_colour())
        name_lines(axes, list(lines.values()))
    return axes


def chosen(rows: pd.DataFrame, kind: str, threads: int) -> pd.DataFrame:
    """Measured rows of one kind and number of threads. UserError for a missing column, or where there is none."""
    missing = [column for column in COLUMNS if column not in rows.columns]
    if missing:
        raise UserError(f"the rows lack {', '.join(missing)}; they must be those of a study of parts")
    if kind not in LOADS:
        raise UserError(f"kind is {kind!r}; it must be {' or '.join(LOADS)}")
    found = rows[(rows["kind"] == kind) & (rows["threads"] == threads) & rows["median_ms"].notna()]
    if found.empty:
        have = sorted(set(rows.loc[(rows["kind"] == kind) & rows["median_ms"].notna(), "threads"]))
        raise UserError(f"no {kind} step was measured on {on_threads(threads)}; there are rows of {have} threads")
    return found


def kinds_on(rows: pd.DataFrame, threads: int) -> list[str]:
    """Kinds of step that were measured on so many threads. UserError where there is none."""
    measured = set(rows.loc[(rows["threads"] == threads) & rows["median_ms"].notna(), "kind"])
    if not measured:
        raise UserError(f"no step was measured on {on_threads(threads)}")
    return [kind for kind in LOADS if kind in measured]


def above_ceilings(rows: pd.DataFrame) -> str:
    """Parts that were found above a measured ceiling, as the end of an axis label: one of the two is wrong."""
    errors = rows[(rows["form"] == "native") & (rows["attained"].astype(float) > 1)]
    if errors.empty:
        return ""
    names = [f"{NAMES.get(row.part, row.part)} at {row.new_tokens} ({row.attained:.0%})" for row in errors.itertuples()]
    return f"\nabove a measured ceiling, an error: {', '.join(names[:4])}" + (" …" if len(names) > 4 else "")


def on_threads(threads: int) -> str:
    """Such as "2 threads"."""
    return f"{threads} thread{'s' * (threads > 1)}"


def draw_line(axes: Axes, line: pd.DataFrame, column: str, colour, width: float) -> tuple[float, float]:
    """Draw a column over the load with the marker of its source; returns the right end."""
    x, y = line["new_tokens"].astype(float), line[column].astype(float)
    marker = source_style(line["source"].iloc[0]).marker
    axes.plot(x, y, color=colour, marker=marker, markersize=5, linewidth=width, gid=f"{line['part'].iloc[0]} {column}")
    return x.iloc[-1], y.iloc[-1]


def reserve_names(axes: Axes, loads, names) -> None:
    """Leave room for names at the right ends of lines."""
    widest = max(text_size_px(axes, name, NAME_SIZE, "bold")[0] for name in names)
    pad_limits(axes.xaxis, loads, pad=0.05, reserve=[(loads[-1], widest + 20 * axes.figure.dpi / 72)])


def name_lines(axes: Axes, lines: list) -> None:
    """Write (name, right end, colour) beside the ends, clear of each other and of all lines."""
    obstacles = Obstacles()
    for drawn in axes.lines:
        if drawn.get_gid() not in ("turn", "ceiling"):
            obstacles.add_path(axes.transData.transform(drawn.get_xydata()))
    shifts = column_shifts(axes, [end for _, end, _ in lines], [name for name, _, _ in lines])
    labels = [
        Label(name, *end, readable(colour, axes.get_facecolor()), "right", True, NAME_SIZE, "bold", shift)
        for (name, end, colour), shift in zip(lines, shifts, strict=True)
    ]
    place_labels(axes, labels, obstacles)
