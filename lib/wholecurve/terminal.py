"""Frames and comparisons in the terminal. Loads no plotting library: `wholecurve compare` must start quickly."""

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


def print_frame(console: Console, frame: pd.DataFrame, title: str) -> None:
    """A frame of text as a rich table; numbers and ranges to the right, names and words to the left."""
    console.print(f"\n[bold]{escape(title)}[/]")
    table = Table(header_style="bold", expand=False)
    for column in frame.columns:
        words = column in ("contender", "verdict", "says", "window", "multiplier", "B's operating point")
        table.add_column(escape(str(column)), justify="left" if words else "right")
    for row in frame.itertuples(index=False):
        table.add_row(*(escape(str(cell)) for cell in row))
    console.print(table)


def print_full_comparison(console: Console, full: FullComparison) -> None:
    """Every reading of a comparison with brackets, floors and operating points."""
    for comparison in (full.decode, full.prefill):
        if comparison is None:
            continue
        title = f"{comparison.a.name} over {comparison.b.name}"
        print_frame(console, direct_table(comparison), f"{title}: direct, {comparison.a.workload}")
        if comparison.a.has_speed:
            print_frame(console, same_speed_table(comparison), f"{title}: same speed (throughput A/B)")
            print_frame(console, same_throughput_table(comparison), f"{title}: same throughput (speed A/B)")
            print_frame(console, summary_table(comparison), f"{title}: over the overlap")
        for warning in comparison.warnings:
            console.print(f"[yellow]warning:[/] {escape(warning)}")
