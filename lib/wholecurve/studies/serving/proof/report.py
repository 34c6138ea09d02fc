"""Proof and agreement as tables for people."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_LATENCIES = {"ttft_p50_ms": "ttft_ms", "tpot_p50_ms": "tpot_ms", "e2e_p50_ms": "e2e_ms"}


def print_proof(console: "Console", record: dict) -> None:
    """Three tables: client against script and server, what it adds and costs, and floods."""
    from rich.table import Table

    medians = Table(title="Medians: as scripted, as the server wrote, as the client measured (ms)")
    for name in ("streams", "events/s", "metric", "scripted", "server", "client", "client − server"):
        medians.add_column(name, justify="left" if name == "metric" else "right")
    for level in record["levels"]:
        for name, scripted in _LATENCIES.items():
            medians.add_row(
                str(level["level"]["streams"]),
                _number(level["token_events_per_s"], 0),
                name,
                _number(level["scripted"][scripted], 3),
                _number(level["server"][name], 3),
                _number(level["client"][name], 3),
                _number(level["client_minus_server"].get(name, {}).get("absolute"), 3),
            )
    console.print(medians)
    costs = Table(title="What the client adds to each token event, and costs")
    columns = ("streams", "events/s", "delivery p50", "p99", "max ms", "loop delay p99 ms", "µs a token event", "core")
    for name in (*columns, "lost", "doubled"):
        costs.add_column(name, justify="right")
    for level in record["levels"]:
        delivery, counts = level["delivery"], level["counts"]
        costs.add_row(
            str(level["level"]["streams"]),
            _number(level["token_events_per_s"], 0),
            *(_number(delivery[f"{which}_ms"], 3) for which in ("p50", "p99", "max")),
            _number(level["lag"]["loop_delay_p99_ms"], 3),
            _number(level["client_cpu_us_per_token_event"], 0),
            f"{level['client_core_share']:.1%}",
            str(counts["tokens_lost"]),
            str(counts["tokens_doubled"]),
        )
    console.print(costs)
    floods = Table(title="As fast as it goes")
    for name in ("streams", "chunks a write", "events", "events/s", "µs a token event", "lost", "doubled", "differ"):
        floods.add_column(name, justify="right")
    for flood in record["floods"]:
        counts = flood["counts"]
        floods.add_row(
            str(flood["streams"]),
            str(flood["chunks_per_write"]),
            str(counts["chunks"]),
            _number(flood["token_events_per_s"], 0),
            _number(flood["client_cpu_us_per_token_event"], 1),
            *(str(counts[name]) for name in ("tokens_lost", "tokens_doubled", "requests_that_differ")),
        )
    console.print(floods)


def print_agreement(console: "Console", record: dict) -> None:
    """One row per case and metric; where definitions differ, the reason stands in place of a verdict."""
    from rich.table import Table

    table = Table(title="One scripted server, two clients")
    columns = ("case", "metric", "server (ours)", "wholecurve", "vllm bench serve", "server (vLLM's)", "difference", "")
    for name in columns:
        table.add_column(name, justify="left" if name in ("case", "metric", "") else "right")
    for row in record["rows"]:
        verdict = {None: row["reason"] or "", True: "agrees", False: "DIFFERS"}[row["agrees"]]
        table.add_row(
            row["case"],
            row["metric"],
            *(_number(row[name], 2) for name in ("server_under_wholecurve", "wholecurve", "vllm_bench_serve")),
            _number(row["server_under_vllm_bench_serve"], 2),
            "" if row["share"] is None else f"{row['share']:+.2%}",
            verdict,
        )
    console.print(table)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
