"""Published multipliers row by row: who over whom, on which model, and what each of them holds equal."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import blended_transform_factory

from wholecurve.errors import UserError
from wholecurve.figures.audit import PUBLISHED, check_frame, check_interval, check_positive, tinted
from wholecurve.figures.labels import text_size_px
from wholecurve.figures.series import NAME_SIZE, write_key
from wholecurve.figures.style import contender_colours, drawing, muted_colour, readable
from wholecurve.figures.ticks import format_multiplier, pad_limits, rate_axis

FRAMINGS = {
    "direct": "direct: the same load",
    "same speed": "same speed per user: throughput is compared",
    "same throughput": "same throughput: speed per user is compared",
    "ratio": "what was held equal is not said",
    "self": "self: one engine at two times",
}
COLUMNS = ("who", "against", "metric", "framing", "model", "precision", "lowest", "highest", "printed")
WORD_SIZE, ROW_INCH, TINT = 8.0, 0.34, 0.09
HEADING, GAP, MARKS, WORDS_ABOVE = 0.8, 0.3, 0.72, 0.44  # in rows
NAME = "published framings"


def framing_plot(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw every published multiplier as a dot, or a range between two dots, grouped by what it holds equal.

    `table`: rows of `framing_table`, drawn in their order. Neighbours on one model share a grey band; ≠ stands between
    bands, because multipliers on unlike models are not comparable. Without a lowest value a dotted tail says that only
    an upper end is printed. An Axes that is alone in its figure makes the figure as high as the rows need. UserError
    for a frame that is empty, lacks columns, has an unknown framing or rows of one framing apart. Returns the Axes.
    """
    _check(table)
    colours = contender_colours(table["who"])
    with drawing(ax) as ax:
        places, headings, bands, depth = _layout(table)
        _set_height(ax, ROW_INCH * depth)
        ax.set_ylim(depth, 0)
        _scale(ax, table)
        for framing, y in headings.items():
            _write(ax, y, FRAMINGS[framing], NAME_SIZE + 0.5, weight="bold", gid=f"heading {framing}")
        for top, bottom, unlike in bands:
            ax.axhspan(top, bottom, color=muted_colour(), alpha=TINT, linewidth=0, zorder=0.5, gid="band")
            if unlike:
                _write(ax, top - GAP / 2, "≠", NAME_SIZE + 2, x=-0.008, ha="center", color=muted_colour(), gid="unlike")
        for (_, row), y in zip(table.iterrows(), places, strict=True):
            _draw_multiplier(ax, row, y, colours[row["who"]])
            _write_words(ax, row, y, readable(colours[row["who"]], tinted(muted_colour(), ax.get_facecolor(), TINT)))
        key = f"{PUBLISHED.glyph} published; two marks: lowest and highest, dotted: only an upper end is printed"
        write_key(ax, f"{key}\ngrey band: one model  ·  ≠ between bands: another model, not comparable")
    return ax


def _check(table: pd.DataFrame) -> None:
    check_frame(table, NAME, COLUMNS)
    if unknown := sorted(set(table["framing"]) - set(FRAMINGS)):
        raise UserError(f"the frame of {NAME} has the framing {unknown[0]!r}; it must be one of {', '.join(FRAMINGS)}")
    framings = list(table["framing"])
    if framings != sorted(framings, key=list(dict.fromkeys(framings)).index):
        raise UserError(f"the frame of {NAME} has rows of one framing apart; sort it by framing first")
    check_positive(table, NAME, ("highest",))
    check_interval(table.assign(low=table["lowest"].fillna(table["highest"])), NAME, "highest", high="highest")


def _layout(table: pd.DataFrame) -> tuple[list[float], dict[str, float], list[tuple[float, float, bool]], float]:
    """In rows from the top: marks; headings; bands as top, bottom and whether another model is above; the whole."""
    places, headings, bands, y, last = [], {}, [], 0.0, (None, None)
    for framing, model in zip(table["framing"], table["model"], strict=True):
        same_framing = framing == last[0]
        if not same_framing:
            headings[framing] = y + 0.55
            y += HEADING
        if (framing, model) != last:
            y += GAP if same_framing else 0
            bands.append((y, y, same_framing))
        places.append(y + MARKS)
        y += 1
        bands[-1] = (bands[-1][0], y, bands[-1][2])
        last = (framing, model)
    return places, headings, bands, y


def _set_height(ax: Axes, inches: float) -> None:
    """Give an Axes that is alone in its figure so many inches of height, and the figure as much more."""
    if len(ax.figure.axes) > 1:
        return
    width, height = ax.figure.get_size_inches()
    box = ax.get_position()
    total = inches + height * (1 - box.height)
    ax.figure.set_size_inches(width, total)
    ax.set_position([0.03, height * box.y0 / total, 0.955, inches / total])


def _scale(ax: Axes, table: pd.DataFrame) -> None:
    ax.set_xlabel("published multiplier (×)")
    rate_axis(ax.xaxis, format_multiplier)
    widest = max(text_size_px(ax, f"{_printed(row)} ", WORD_SIZE + 0.5, "bold")[0] for _, row in table.iterrows())
    values = table[["lowest", "highest"]].to_numpy(dtype=float).ravel()
    reserve = [(table["highest"].max(), widest + 8 * ax.figure.dpi / 72)]
    pad_limits(ax.xaxis, [1.0, *values], pad=0.03, reserve=reserve)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)


def _write(ax: Axes, y: float, text: str, size: float, x: float = 0.006, **style) -> None:
    place = blended_transform_factory(ax.transAxes, ax.transData)
    # A lone dollar sign is money here; matplotlib would read two of them as a formula.
    ax.text(x, y, text, transform=place, va="center", fontsize=size, parse_math=False, zorder=5, **style)


def _draw_multiplier(ax: Axes, row: pd.Series, y: float, colour: str) -> None:
    low, high = row["lowest"], row["highest"]
    ends = [high] if np.isnan(low) or low == high else [low, high]
    ax.plot([1, 1], [y - 0.14, y + 0.22], color=muted_colour(), linewidth=1.1, zorder=1.5, gid="one")
    ax.plot(
        ends, [y] * len(ends), color=colour, linewidth=1.3, linestyle=PUBLISHED.linestyle, marker=PUBLISHED.marker,
        markersize=6, markeredgecolor=colour, markeredgewidth=1.3, markerfacecolor=ax.get_facecolor(), zorder=3,
        gid=f"multiplier {row.name}",
    )  # fmt: skip
    if np.isnan(low):
        ax.plot([high / 1.12, high], [y, y], ":", color=colour, linewidth=1.6, zorder=2.5, gid=f"open {row.name}")


def _write_words(ax: Axes, row: pd.Series, y: float, ink: object) -> None:
    _write(ax, y - WORDS_ABOVE, _words(ax, row), WORD_SIZE, color=ink, gid=f"words {row.name}")
    ax.annotate(
        _printed(row), (row["highest"], y), xytext=(7, 0), textcoords="offset points", va="center",
        fontsize=WORD_SIZE + 0.5, fontweight="bold", color=ink, zorder=5,
    )  # fmt: skip


def _words(ax: Axes, row: pd.Series) -> str:
    """Who over whom, metric, model and precision; a metric that does not fit into the Axes is cut at a word."""
    who, against, metric = row["who"], row["against"], row["metric"]
    over = f"{who} over {'itself' + against.removeprefix(who) if against.startswith(who) else against}"
    model = ", ".join(text for text in (row["model"] or "model unstated", row["precision"]) if text)
    room = 0.985 * ax.get_window_extent().width
    while True:
        cut = " …" if metric != row["metric"] else ""
        words = f"{over}  ·  {metric}{cut}  ·  {model}"
        if " " not in metric or text_size_px(ax, words.replace("$", "S"), WORD_SIZE)[0] <= room:
            return words
        metric = metric.rpartition(" ")[0]


def _printed(row: pd.Series) -> str:
    text = row["printed"].replace("x", "×")
    if text.endswith("%"):
        text += " more" if row["highest"] >= 1 else " less"
    return f"up to {text}" if np.isnan(row["lowest"]) else text
