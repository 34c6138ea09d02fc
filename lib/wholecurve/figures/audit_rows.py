"""Two figures of the audit with a row for each side or text: occupancy from printed digits, and verdicts."""

import textwrap
from math import ceil, floor

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from wholecurve.curves.claims.verdicts import CANNOT, CONFIRMED, CONSISTENT, CONTRADICTED, DECIDING
from wholecurve.errors import UserError
from wholecurve.figures.audit import PUBLISHED, check_frame, check_interval, check_positive, tinted
from wholecurve.figures.labels import Label, Obstacles, place_labels
from wholecurve.figures.series import KEY_SIZE, NAME_SIZE, write_key
from wholecurve.figures.style import (
    CONTROL_COLOUR,
    OKABE_ITO,
    contender_colours,
    contrast,
    drawing,
    muted_colour,
    readable,
)
from wholecurve.figures.ticks import format_rate

OCCUPANCY_COLUMNS = (
    "who", "precision", "concurrency", "speed", "product", "throughput", "occupancy", "low", "high", "composite",
)  # fmt: skip
VERDICT_COLOURS = {
    CONFIRMED: OKABE_ITO["green"],
    CONSISTENT: OKABE_ITO["sky"],
    CANNOT: CONTROL_COLOUR,
    CONTRADICTED: OKABE_ITO["vermillion"],
}
WORD_SIZE = 8.5
BAR = 0.42  # of a row
TINT = 0.25


def occupancy_plot(sides: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw printed total throughput and concurrency × speed per user on one scale, a row for each side.

    `sides`: one row each with who, precision, concurrency, speed [tok/s/user], product (concurrency × speed),
    throughput [tok/s], occupancy (throughput over product) with low and high from the printed digits, and composite
    (whether speed and throughput may come from two configurations). UserError for any other frame. Returns the Axes.
    """
    name = "published occupancy"
    check_frame(sides, name, OCCUPANCY_COLUMNS)
    check_positive(sides, name, ("concurrency", "speed", "product", "throughput"))
    check_interval(sides, name, "occupancy")
    colours = contender_colours(sides["who"])
    with drawing(ax) as ax:
        ax.set_xlabel("tok/s, all devices together")
        ax.set_xlim(0, 1.3 * max(sides["product"].max(), sides["throughput"].max()))
        ax.xaxis.set_major_formatter(format_rate)
        _rows(ax, [f"{textwrap.fill(row.who, 22)}\n{row.precision}".strip() for row in sides.itertuples()])
        for y, row in enumerate(sides.itertuples()):
            _draw_side(ax, row, y, colours[row.who])
            _write_side(ax, row, y, readable(colours[row.who], tinted(colours[row.who], ax.get_facecolor(), TINT)))
        key = f"{PUBLISHED.glyph} printed throughput  ·  | concurrency × printed speed  ·  bold: occupancy, their ratio"
        composite = "\ncomposite: the two values may come from two configurations" if sides["composite"].any() else ""
        write_key(ax, key + composite)
    return ax


def verdict_plot(counts: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how many claims of each document have which verdict, as one stacked bar for each document.

    `counts`: document, label (how it is written), verdict (one of the four that decide), claims. UserError for a frame
    that is empty, lacks columns, has another verdict, or counts that are no counts. Returns the Axes.
    """
    name = "verdicts"
    check_frame(counts, name, ("document", "label", "verdict", "claims"))
    if unknown := sorted(set(counts["verdict"]) - set(DECIDING)):
        raise UserError(f"the frame of {name} has the verdict {unknown[0]!r}; it must be one of {', '.join(DECIDING)}")
    if bad := [value for value in counts["claims"] if not value >= 0]:
        raise UserError(f"the frame of {name} has {bad[0]} in column 'claims'; a count is needed")
    table = counts.pivot_table(index="document", columns="verdict", values="claims", aggfunc="sum", sort=False)
    table = table.reindex(columns=list(DECIDING)).fillna(0).astype(int)
    labels = counts.drop_duplicates("document").set_index("document")["label"]
    with drawing(ax) as ax:
        ax.set_xlabel("claims")
        ax.set_xlim(0, 1.12 * table.sum(axis=1).max())
        _rows(ax, [textwrap.fill(labels[document], 26) for document in table.index])
        obstacles, lefts = Obstacles(), table.cumsum(axis=1) - table
        for verdict in DECIDING:
            _draw_verdict(ax, verdict, table[verdict], lefts[verdict], obstacles)
        write_key(ax, "confirmed: it follows from other printed digits; that says nothing about the measurement")
        place_labels(ax, _verdict_names(ax, table, lefts), obstacles)
    return ax


def _rows(ax: Axes, names: list[str]) -> None:
    """Name the rows 0, 1, … from the top; an Axes alone in its figure makes room for the names inside of it."""
    ax.set_ylim(len(names) - 0.45, -0.85)
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    if len(ax.figure.axes) == 1:
        box, width = ax.get_position(), ax.figure.get_window_extent().width
        left = box.x0 + 0.015 - ax.get_tightbbox().x0 / width
        ax.set_position([left, box.y0, box.x1 - left, box.height])


def _draw_side(ax: Axes, row, y: int, colour: str) -> None:
    ax.barh(y, row.throughput, height=0.16, color=colour, alpha=TINT, linewidth=0, zorder=1.5)
    ax.plot([row.throughput, row.product], [y, y], PUBLISHED.linestyle, color=colour, linewidth=1.3, zorder=2)
    ax.plot(
        row.throughput, y, PUBLISHED.marker, markersize=7, markeredgecolor=colour, markeredgewidth=1.4,
        markerfacecolor=ax.get_facecolor(), zorder=3, gid=f"throughput {y}",
    )  # fmt: skip
    ax.plot(row.product, y, "|", color=colour, markersize=14, markeredgewidth=2, zorder=3, gid=f"product {y}")


def _write_side(ax: Axes, row, y: int, ink: object) -> None:
    about = {"textcoords": "offset points", "fontsize": WORD_SIZE, "color": ink, "zorder": 5}
    product = f"{row.concurrency:g} × {row.speed:g} = {row.product:,.0f}"
    ax.annotate(f"{row.throughput:,.0f}", (row.throughput, y), xytext=(-8, 0), ha="right", va="center", **about)
    ax.annotate(product, (row.product, y), xytext=(6, 0), ha="left", va="center", **about)
    # Rounded outwards, so that the interval stays true.
    low, high = floor(row.low * 100) / 100, ceil(row.high * 100) / 100
    share = f"{row.occupancy:.2f} [{low:.2f}, {high:.2f}]{', composite' if row.composite else ''}"
    middle = ((row.throughput + row.product) / 2, y)
    ax.annotate(share, middle, xytext=(0, 8), ha="center", va="bottom", fontweight="bold", **about)


def _draw_verdict(ax: Axes, verdict: str, counts: pd.Series, lefts: pd.Series, obstacles: Obstacles) -> None:
    colour = VERDICT_COLOURS[verdict]
    ink = max(("#ffffff", "#1f2328"), key=lambda text: contrast(text, colour))
    for y, (count, left) in enumerate(zip(counts, lefts, strict=True)):
        if not count:
            continue
        (bar,) = ax.barh(y, count, left=left, height=BAR, color=colour, edgecolor=ax.get_facecolor(), linewidth=1.2)
        bar.set_gid(f"{verdict} {y}")
        ax.text(left + count / 2, y, f"{count}", ha="center", va="center", fontsize=KEY_SIZE, color=ink, zorder=5)
        corners = ax.transData.transform([(left, y - BAR / 2), (left + count, y + BAR / 2)])
        obstacles.markers.append(np.array([*corners.min(axis=0), *corners.max(axis=0)]))


def _verdict_names(ax: Axes, table: pd.DataFrame, lefts: pd.DataFrame) -> list[Label]:
    """Each verdict by name above the longest of its bars."""
    labels = []
    for verdict in (name for name in DECIDING if table[name].any()):
        y = int(table[verdict].to_numpy().argmax())
        middle = lefts[verdict].iloc[y] + table[verdict].iloc[y] / 2
        ink = muted_colour() if verdict == CANNOT else readable(VERDICT_COLOURS[verdict], ax.get_facecolor())
        text = verdict.replace(" within ", "\nwithin ")
        labels.append(Label(text, middle, y - BAR / 2, ink, "around", True, NAME_SIZE, "bold"))
    return labels
