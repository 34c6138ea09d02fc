"""Costs as text for the terminal, and as one JSON document. Loads no plotting library."""

import dataclasses
import math

import pandas as pd
from rich.console import Console
from rich.markup import escape

from wholecurve.curves.compare import plain
from wholecurve.curves.costs.latency_curve import seconds
from wholecurve.curves.costs.plane import CostPlane
from wholecurve.curves.multipliers import BETWEEN_REASONS, NOT_MEASURED
from wholecurve.curves.tables import multiplier_text
from wholecurve.terminal import print_frame

ABSENT = "–"


def cost_document(plane: CostPlane) -> dict:
    """The cost plane as JSON values: rates by contender, points, at_latency, ratios, warnings; absent is null."""
    return {
        "percentile": plane.percentile,
        "rates": {name: dataclasses.asdict(rate) for name, rate in plane.rates.items()},
        **{name: plain(getattr(plane, name).to_dict("records")) for name in ("costs", "at_latency", "ratios")},
        "warnings": list(plane.warnings),
    }


def print_costs(console: Console, plane: CostPlane) -> None:
    """Rates, the table of every workload, what a stated latency costs, ratios at equal latency, warnings."""
    for name, rate in plane.rates.items():
        power = "" if rate.all_in_kw_per_device is None else f", {rate.all_in_kw_per_device:g} kW all-in"
        usd = "not known" if rate.usd_per_device_hour is None else f"{rate.usd_per_device_hour:g} $ per device-hour"
        console.print(f"[bold]Rate[/] {escape(name)}: {usd}{power} ({escape(rate.missing or rate.label)})")
    for workload in plane.workloads():
        tables = (
            (points_table(plane, workload), "Cost of every point, geometric means over repeats"),
            (latency_table(plane, workload), f"Cost at a stated p{plane.percentile} E2E latency"),
            (ratio_table(plane, workload), f"Tokens per dollar A/B at equal p{plane.percentile} E2E latency"),
        )
        for frame, title in tables:
            if len(frame):
                print_frame(console, frame, f"{title}: {workload}")
        for reason in refusals(plane, workload):
            console.print(f"  [dim]not measured, {escape(reason)}[/]")
    for warning in plane.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}")
    console.print(
        "[dim]$/Mtok = rate × 10⁶ / (tok/s × 3600), for tokens of the kind named and a machine that is never idle. "
        "Measured: the device's own power; all-in: with its share of host and network, of the file of rates.[/]"
    )


def points_table(plane: CostPlane, workload: str) -> pd.DataFrame:
    """One row per contender and load as text; columns that no row fills are left out."""
    rows = []
    costs = _of(plane.costs, workload)
    order = {name: place for place, name in enumerate(dict.fromkeys(costs["contender"]))}
    for (_, load), group in costs.groupby([costs["contender"].map(order), "load"]):
        mean = {column: _geometric_mean(group[column]) for column in group if group[column].dtype == float}
        rows.append(
            {
                "contender": group["contender"].iloc[0],
                "load": f"{load:g}",
                "tokens": group["tokens"].iloc[0],
                "tok/s per device": _text(mean["throughput_tok_per_s"]),
                "$/Mtok": _text(mean["usd_per_million_tokens"]),
                "tokens/$": _text(mean["tokens_per_usd"]),
                "J/token measured": _text(mean["joules_per_token_measured"]),
                "J/token all-in": _text(mean["joules_per_token_all_in"]),
                "tok/s/MW measured": _text(mean["tok_per_s_per_mw_measured"]),
                "tok/s/MW all-in": _text(mean["tok_per_s_per_mw_all_in"]),
                f"p{plane.percentile} E2E": ABSENT if math.isnan(mean["e2e_ms"]) else seconds(mean["e2e_ms"]),
                "n": str(len(group)),
            }
        )
    frame = pd.DataFrame(rows)
    return frame[[column for column in frame if (frame[column] != ABSENT).any()]]


def latency_table(plane: CostPlane, workload: str) -> pd.DataFrame:
    """One row per stated latency and contender as text: load, throughput, cost with its bracket, or the reason."""
    rows = []
    for row in _of(plane.at_latency, workload).to_dict("records"):
        bracket = f"{_text(row['tokens_per_usd_low'])} to {_text(row['tokens_per_usd_high'])}"
        rows.append(
            {
                "latency": seconds(row["latency_ms"]),
                "contender": row["contender"],
                "load": ABSENT if math.isnan(row["load"]) else f"{row['load']:.3g}",
                "tok/s per device": _text(row["throughput_tok_per_s"]),
                "$/Mtok": _text(row["usd_per_million_tokens"]),
                "tokens/$": _text(row["tokens_per_usd"]),
                "bracket": ABSENT if math.isnan(row["tokens_per_usd"]) else bracket,
                "says": NOT_MEASURED if row["refused"] else "measured" if row["measured"] else "interpolated",
            }
        )
    return pd.DataFrame(rows)


def ratio_table(plane: CostPlane, workload: str) -> pd.DataFrame:
    """One row per pair and latency as text: both operating points, the ratio, what it is worth, verdict or reason."""
    rows = []
    for row in _of(plane.ratios, workload).to_dict("records"):
        n = None if math.isnan(row["n"]) else int(row["n"])
        known = not math.isnan(row["estimate"])
        rows.append(
            {
                "A over B": f"{row['a']} / {row['b']}",
                "latency": seconds(row["latency_ms"]),
                "load of B": "stated" if row["stated"] else f"{row['load_b']:g}",
                "load of A": ABSENT if math.isnan(row["load_a"]) else f"{row['load_a']:.3g}",
                "tok/s A, B": f"{_text(row['throughput_a'])}, {_text(row['throughput_b'])}",
                "tokens/$ A/B": multiplier_text(row["estimate"], row["low"], row["high"], n),
                "bracket": f"{row['bracket_low']:.2f}–{row['bracket_high']:.2f}" if known else ABSENT,
                "at least": ABSENT if math.isnan(row["floor"]) else f"{row['floor']:.2f}×",
                "worth": row["worth"] or ABSENT,
                "says": row["verdict"],
            }
        )
    return pd.DataFrame(rows)


def refusals(plane: CostPlane, workload: str) -> list[str]:
    """Every reason why a reading was refused, once, in the order of the tables."""
    texts = [*_of(plane.at_latency, workload)["refused"].dropna(), *_of(plane.ratios, workload)["refused"].dropna()]
    return list(dict.fromkeys(reason for text in texts for reason in text.split(BETWEEN_REASONS)))


def _of(frame: pd.DataFrame, workload: str) -> pd.DataFrame:
    return frame[frame["workload"] == workload]


def _geometric_mean(values: pd.Series) -> float:
    known = [math.log(value) for value in values.dropna() if value > 0]
    return math.exp(sum(known) / len(known)) if known else math.nan


def _text(value: float) -> str:
    """Four significant digits, 12,345 from ten thousand and 1.234M from a million on; a dash where there is nothing."""
    if math.isnan(value):
        return ABSENT
    if value >= 1e6:
        return f"{value / 1e6:#.4g}M"
    return f"{value:,.0f}" if value >= 1e4 else f"{value:#.4g}".rstrip(".")
