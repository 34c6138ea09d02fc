"""All three multipliers of a comparison over the load of the baseline."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator
from matplotlib.transforms import blended_transform_factory

from wholecurve.errors import UserError
from wholecurve.figures.comparison import Drawn, comparison_frame, contender_name, drawn_kinds, refusal_notes
from wholecurve.figures.labels import Label, Obstacles, place_labels, text_size_px
from wholecurve.figures.series import KEY_SIZE, NAME_SIZE, column_shifts, write_key
from wholecurve.figures.style import drawing, muted_colour, readable
from wholecurve.figures.ticks import (
    HumanLogLocator,
    count_axis,
    format_multiplier,
    pad_limits,
    rate_axis,
)

NOTE_SIZE, NOTE_LINES = 8.0, 4
STRIP = 0.11  # share of the height that belongs to refused targets


def multiplier_plot(
    comparison,
    ax: Axes | None = None,
    *,
    a: str | None = None,
    b: str | None = None,
    load_label: str = "concurrency",
) -> Axes:
    """Draw the multipliers of a comparison against the load of B (log2); above 1 means that A is ahead.

    `comparison` has frames `direct`, `same_speed` and `same_throughput` as attributes or keys (a list of
    dicts is a frame too). Filled marks are measured at equal load, hollow ones interpolated on A's curve.
    Whisker: interval over repeats; light band: bracket; short tick: floor. A refused target is a hollow mark
    in a strip at the bottom, its reason stands below the Axes. Stated targets have no load of B: they are
    counted there. `a` and `b` name the contenders where the comparison does not. Returns the Axes.
    """
    frames = {name: comparison_frame(comparison, name) for name in ("direct", "same_speed", "same_throughput")}
    a, b = a or contender_name(comparison, "a"), b or contender_name(comparison, "b")
    drawn = drawn_kinds(frames)
    loads = sorted({load for one in drawn for load in (*one.rows["load"], *(at for at, _ in one.refused))})
    if not any(len(one.rows) for one in drawn):
        raise UserError("the comparison has no multiplier at a measured load of B: all are refused or missing")
    with drawing(ax) as ax:
        ax.set_xlabel(f"{load_label} of {b}")
        ax.set_ylabel(f"{a} over {b}\n(multiplier, ×)")
        count_axis(ax.xaxis, loads)
        rate_axis(ax.yaxis, format_multiplier)
        _set_limits(ax, drawn, loads)
        obstacles = Obstacles()
        _draw_reference(ax, obstacles)
        for one in drawn:
            _draw_kind(ax, one, obstacles)
        _draw_refused(ax, drawn, obstacles)
        write_key(ax, _mark_key(drawn), f"above 1: {a} is ahead ↑")
        _write_notes(ax, drawn, frames)
        place_labels(ax, _kind_labels(ax, drawn), obstacles)
    return ax


def _set_limits(ax: Axes, drawn: list[Drawn], loads: list[float]) -> None:
    gap = 16 * ax.figure.dpi / 72
    dodged = [load * one.dodge for one in drawn for load in loads]
    note_width = text_size_px(ax, "no difference", KEY_SIZE)[0]
    room = [(dodged_load, note_width + gap) for dodged_load in dodged]
    for one in drawn:
        if len(one.rows):
            width = text_size_px(ax, one.kind.name, NAME_SIZE, "bold")[0]
            room.append((one.rows["load"].max() * one.dodge, width + gap))
    pad_limits(ax.xaxis, dodged, pad=0.04, reserve=room)
    columns = ["value", "low", "high", "bracket_low", "bracket_high", "floor"]
    values = np.concatenate([one.rows[columns].to_numpy().ravel() for one in drawn])
    pad_limits(ax.yaxis, [1.0, *values], pad=0.1, least_factor=1.3)
    if any(one.refused for one in drawn):
        low, high = ax.get_ylim()
        ticks = HumanLogLocator().tick_values(low, high)
        ax.set_ylim(low / (high / low) ** (STRIP / (1 - STRIP)), high)
        ax.yaxis.set_major_locator(FixedLocator(ticks))  # the strip below is no part of the scale


def _draw_reference(ax: Axes, obstacles: Obstacles) -> None:
    ax.axhline(1, color=muted_colour(), linewidth=1.1, zorder=1.5, gid="no difference")
    obstacles.add_path(ax.transData.transform([(edge, 1) for edge in ax.get_xlim()]))
    ax.annotate(
        "no difference", (1, 1), xycoords=("axes fraction", "data"), xytext=(-2, 2),
        textcoords="offset points", ha="right", va="bottom", fontsize=KEY_SIZE, color=muted_colour(),
    )  # fmt: skip


def _draw_kind(ax: Axes, one: Drawn, obstacles: Obstacles) -> None:
    kind, rows = one.kind, one.rows
    if not len(rows):
        return
    x = rows["load"] * one.dodge
    _draw_range(ax, x, rows["bracket_low"], rows["bracket_high"], obstacles, f"bracket {kind.name}",
                colors=kind.colour, linewidth=8.0, alpha=0.3)  # fmt: skip
    _draw_range(ax, x, rows["low"], rows["high"], obstacles, f"interval {kind.name}",
                colors=kind.colour, linewidth=1.3)  # fmt: skip
    for edge in ("low", "high"):
        closed = rows[edge].where((rows[edge] > 0) & (rows[edge] < np.inf))
        ax.plot(x, closed, "_", color=kind.colour, markersize=6, markeredgewidth=1.3, zorder=2)
    ax.plot(x, rows["floor"], "_", color=kind.colour, markersize=10, markeredgewidth=2.0, zorder=2.5,
            gid=f"floor {kind.name}")  # fmt: skip
    ax.plot(
        x, rows["value"], color=kind.colour, linewidth=0.9, linestyle="-" if kind.filled else "--",
        marker=kind.marker, markersize=6.5 if kind.marker == "o" else 5.5, markeredgecolor=kind.colour,
        markeredgewidth=1.5, markerfacecolor=kind.colour if kind.filled else ax.get_facecolor(), zorder=3,
        gid=f"value {kind.name}", label=kind.name,
    )  # fmt: skip
    at = ax.transData.transform(np.column_stack([x, rows["value"]]))
    obstacles.add_path(at)
    for centre in at:
        obstacles.add_marker(centre, 4.0 * ax.figure.dpi / 72)


def _draw_range(ax, x, low, high, obstacles: Obstacles, gid: str, **style) -> None:
    has = low.notna() & high.notna()
    # An open end (0 or infinite) runs to the edge of the Axes and has no cap.
    low, high = low.clip(lower=ax.get_ylim()[0]), high.clip(upper=ax.get_ylim()[1])
    ax.vlines(x[has], low[has], high[has], zorder=2, gid=gid, **style).set_capstyle("butt")
    for at, bottom, top in zip(x[has], low[has], high[has], strict=True):
        obstacles.add_path(ax.transData.transform([(at, bottom), (at, top)]))


def _draw_refused(ax: Axes, drawn: list[Drawn], obstacles: Obstacles) -> None:
    marks = [(load * one.dodge, one.kind) for one in drawn for load, _ in one.refused]
    if not marks:
        return
    across, middle = blended_transform_factory(ax.transData, ax.transAxes), STRIP * 0.45
    ax.fill_between(
        [0, 1],
        0,
        2 * middle,
        transform=ax.transAxes,
        color=muted_colour(),
        alpha=0.1,
        linewidth=0,
        zorder=0.5,
    )
    for x, kind in marks:
        ax.plot(
            x, middle, linestyle="none", marker=kind.marker, markersize=5, markeredgecolor=kind.colour,
            markerfacecolor="none", transform=across, gid=f"refused {kind.name}", zorder=3,
        )  # fmt: skip
        obstacles.add_marker(across.transform((x, middle)), 4.0 * ax.figure.dpi / 72)
    ax.annotate(
        "not measured", (1, middle), xycoords="axes fraction", xytext=(-2, 0), textcoords="offset points",
        ha="right", va="center", fontsize=KEY_SIZE, color=muted_colour(),
    )  # fmt: skip


def _kind_labels(ax: Axes, drawn: list[Drawn]) -> list[Label]:
    ends = [
        (one.kind, one.rows.iloc[-1]["load"] * one.dodge, one.rows.iloc[-1]["value"]) for one in drawn if len(one.rows)
    ]
    shifts = column_shifts(ax, [(x, y) for _, x, y in ends], [kind.name for kind, _, _ in ends])
    return [
        Label(
            kind.name,
            x,
            y,
            readable(kind.colour, ax.get_facecolor()),
            "right",
            True,
            NAME_SIZE,
            "bold",
            shift,
        )
        for (kind, x, y), shift in zip(ends, shifts, strict=True)
    ]


def _mark_key(drawn: list[Drawn]) -> str:
    rows = pd.concat([one.rows for one in drawn])
    parts = ["filled: measured, hollow: interpolated"]
    counts = sorted({int(n) for n in rows["n"].dropna()})
    names = f"n = {counts[0]}–{counts[-1]}" if len(counts) > 1 else f"n = {counts[0]}" if counts else ""
    if rows["low"].notna().any():
        parts.append(f"whisker: interval{', ' + names if names else ''}")
    elif names:
        parts.append(f"{names}, no interval")
    if rows["bracket_low"].notna().any():
        parts.append("band: bracket")
    if rows["floor"].notna().any():
        parts.append("tick: floor")
    return "  ·  ".join(parts)


def _write_notes(ax: Axes, drawn: list[Drawn], frames: dict[str, pd.DataFrame]) -> None:
    notes = refusal_notes(drawn)
    text = "Not measured: " + "; ".join(notes) + "." if notes else ""
    stated = sum(int(frame["load_b"].isna().sum()) for frame in frames.values() if "load_b" in frame)
    if stated:
        noun = "stated target" if stated == 1 else "stated targets"
        text = f"{text} {stated} {noun} without a measured load of B: see the table.".strip()
    if not text:
        return
    characters = int(ax.get_window_extent().width / text_size_px(ax, "n" * 50, NOTE_SIZE)[0] * 52)
    lines = textwrap.wrap(text, characters)
    if len(lines) > NOTE_LINES:
        lines = [*lines[: NOTE_LINES - 1], "… the other reasons are in the table."]
    ax.annotate(
        "\n".join(lines), (0, 0), xycoords="axes fraction", xytext=(0, -44), textcoords="offset points",
        ha="left", va="top", fontsize=NOTE_SIZE, color=muted_colour(), annotation_clip=False,
    )  # fmt: skip
