"""Frames and comparisons in the terminal. Loads no plotting library: `wholecurve compare` must start quickly."""

from collections.abc import Sequence

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wholecurve.curves import (
    FullComparison,
    direct_table,
    same_speed_table,
    same_throughput_table,
    summary_table,
)
from wholecurve.curves.baselines import BaselineComparison, best_baseline_table
from wholecurve.curves.frontier_compare import FrontierComparison, frontier_comparison_table
from wholecurve.curves.multipliers import NOT_MEASURED

# Columns of names and words, which read from the left.
WORDS = ("contender", "verdict", "says", "direct throughput says", "window", "multiplier", "B's operating point")
# A longer cell is a sentence, which may wrap.
WRAPS_AT = 26


def print_frame(console: Console, frame: pd.DataFrame, title: str) -> None:
    """A frame of text as a rich table; numbers and ranges to the right, names and words to the left."""
    console.print(f"\n[bold]{escape(title)}[/]")
    for part in _parts(frame, console.width):
        table = Table(header_style="bold", expand=False)
        for column in part.columns:
            words = column in WORDS
            table.add_column(escape(str(column)), justify="left" if words else "right", overflow="fold")
        for row in part.itertuples(index=False):
            table.add_row(*(escape(str(cell)) for cell in row))
        console.print(table)


def _parts(frame: pd.DataFrame, width: int) -> list[pd.DataFrame]:
    """The columns in as many tables as the terminal's width needs, each with the first column: no number is cut off."""
    needed = [_width(frame.iloc[:, i], str(column)) for i, column in enumerate(frame.columns)]
    parts, current, used = [], [0], 1 + needed[0]
    for i, columns in enumerate(needed[1:], 1):
        if used + columns > width and len(current) > 1:
            parts.append(current)
            current, used = [0], 1 + needed[0]
        current.append(i)
        used += columns
    return [frame.iloc[:, chosen] for chosen in (*parts, current)]


def _width(cells: pd.Series, heading: str) -> int:
    """Characters of a column with its border: headings wrap at words, and so do cells that are sentences."""
    words = max((len(word) for word in heading.split()), default=0)
    longest = max((len(str(cell)) for cell in cells), default=0)
    return max(words, min(longest, WRAPS_AT)) + 3


def print_comparisons(
    console: Console, comparisons: Sequence[FullComparison], best: BaselineComparison | None = None
) -> None:
    """One contender against several baselines, one after another, and the composite of the best of them."""
    for full in comparisons:
        print_full_comparison(console, full)
    if best is not None:
        table = best_baseline_table(best).drop(columns="not read")
        print_frame(console, table, f"{best.comparisons[0].a.name} over {best.label}")


def print_frontiers(console: Console, comparisons: Sequence[FrontierComparison]) -> None:
    """Frontiers over configurations, with the label that says what they are not."""
    for one in comparisons:
        console.print(f"\n[bold]{escape(one.a.name)} over {escape(one.b.name)}[/]  {escape(one.label)}")
        for axis, read in (("speed", "throughput"), ("throughput", "speed")):
            title = f"same {axis} ({read} A/B), at every point of B's frontier"
            print_with_reasons(console, frontier_comparison_table(one, axis), title)
        for warning in one.warnings:
            console.print(f"[yellow]warning:[/] {escape(warning)}")


def print_with_reasons(console: Console, frame: pd.DataFrame, title: str) -> None:
    """A table of readings whose reasons stand below it, numbered: they are longer than any column."""
    reasons: dict[str, int] = {}
    verdicts = []
    for verdict in frame["verdict"]:
        reason = verdict.removeprefix(f"{NOT_MEASURED}: ") if verdict.startswith(f"{NOT_MEASURED}: ") else ""
        number = reasons.setdefault(reason, len(reasons) + 1) if reason else None
        verdicts.append(f"{NOT_MEASURED} [{number}]" if number else verdict)
    print_frame(console, frame.assign(verdict=verdicts), title)
    for reason, number in reasons.items():
        console.print(f"  [dim]{escape(f'[{number}] {reason}')}[/]")


def print_full_comparison(console: Console, full: FullComparison) -> None:
    """Every reading of a comparison with brackets, floors and operating points."""
    for comparison in (full.decode, full.prefill):
        if comparison is None:
            continue
        title = f"{comparison.a.name} over {comparison.b.name}"
        print_with_reasons(console, direct_table(comparison), f"{title}: direct, {comparison.a.workload}")
        if comparison.a.has_speed:
            print_with_reasons(console, same_speed_table(comparison), f"{title}: same speed (throughput A/B)")
            print_with_reasons(console, same_throughput_table(comparison), f"{title}: same throughput (speed A/B)")
            print_frame(console, summary_table(comparison), f"{title}: over the overlap")
        for warning in comparison.warnings:
            console.print(f"[yellow]warning:[/] {escape(warning)}")
