"""A run as text for the terminal: what was measured, on what, what it says and what it does not."""

from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markup import escape

from wholecurve.curves import Comparison
from wholecurve.figures.best_peer import best_peer_table
from wholecurve.figures.run_figures import comparisons, control_names
from wholecurve.figures.tables import (
    batch_table,
    decode_table,
    memory_table,
    multiplier_table,
    noise_sentence,
    prefill_table,
    refusals,
    tuning_table,
)
from wholecurve.runs import RunFolder
from wholecurve.runs.bounds import above_bound, run_bounds
from wholecurve.runs.provenance import hardware_line, model_line
from wholecurve.serving_report import print_serving
from wholecurve.terminal import print_frame


def print_ceilings(console: Console, run: RunFolder) -> None:
    """Hardware line, measured ceilings and what they predict for the model of the run."""
    plan = run.plan["plan"]
    console.print(f"[bold]Machine[/]  {escape(hardware_line(run.provenance['hardware']))}")
    if not run.has("ceilings"):
        return
    ceilings = run.read("ceilings")
    console.print(
        f"[bold]Ceilings[/] {ceilings['read_bytes_per_s'] / 1e9:.1f} GB/s read, "
        f"{ceilings['gemm_flops_per_s'] / 1e9:.0f} GFLOP/s {ceilings['dtype']} GEMM, measured in this run "
        f"on {ceilings['threads']} threads"
    )
    decode, prefill = run_bounds(run, "decode"), run_bounds(run, "prefill")
    decode = next((one for one in (decode, run_bounds(run, "batch"), run_bounds(run, "serving")) if len(one)), decode)
    parts = []
    if len(decode):
        first, last = decode.iloc[0], decode.iloc[-1]
        parts.append(
            f"decode at most {first.decode_speed_tok_per_s:.0f} tok/s/user at concurrency {first.load:.0f} and "
            f"{last.output_throughput_tok_per_s:,.0f} tok/s at {last.load:.0f}"
        )
    if len(prefill):
        best = prefill.loc[prefill["input_throughput_tok_per_s"].idxmax()]
        parts.append(f"prefill at most {best.input_throughput_tok_per_s:,.0f} tok/s")
    if not parts:
        return
    console.print(
        f"[bold]Predicts[/] {plan['model']} in {plan['dtype']}: {'; '.join(parts)} (bounds, not measurements)"
    )


def print_agreement(console: Console, run: RunFolder) -> None:
    """How far each contender's greedy tokens lie from the float32 reference."""
    if not run.has("agreement"):
        return
    for name, found in run.read("agreement").items():
        if not found.get("checked", True):
            console.print(f"[bold]Agrees[/]   {escape(name)}: not checked, {escape(found['why'])}")
            continue
        console.print(
            f"[bold]Agrees[/]   {escape(name)}: {found['best_share']:.1%} of {found['tokens']} greedy tokens are the "
            f"float32 reference's best, the worst lies {found['max_gap']:.2f} logits below it"
        )


def print_tuning(console: Console, run: RunFolder) -> None:
    """Which settings each contender runs with, where the plan let them be chosen."""
    if run.has("tuning"):
        criterion = run.read("tuning")["criterion"]
        print_frame(console, tuning_table(run), f"Tuning: measured before the race, {criterion}")


def print_idle(console: Console, points: pd.DataFrame) -> None:
    """Contenders that used the processor while they had nothing to do, and were stopped for it."""
    shares: dict[str, list[float]] = {}
    for row in points.itertuples():
        idle = row.settings.get("idle") or {}
        if idle.get("stopped"):
            shares.setdefault(row.contender, []).append(idle["cpu_share"])
    for name, found in shares.items():
        console.print(
            f"[bold]Idle[/]     {escape(name)} used up to {max(found):.0%} of a core while waiting, so it was stopped "
            "(SIGSTOP) while others were measured"
        )


def print_faults(console: Console, run: RunFolder) -> None:
    """What went wrong while a serving study ran, in the order in which it did."""
    for fault in run.read("faults")["faults"] if run.has("faults") else []:
        console.print(f"[red]fault:[/] {escape(fault['point'])}: {escape(fault['what'])}")


def print_comparison(console: Console, comparison: Comparison, control: bool = False) -> None:
    """One pair of contenders: multipliers by load, what was refused and why, warnings."""
    note = ", the same engine twice: what lies within these intervals is noise" if control else ""
    title = f"{comparison.a.name} over {comparison.b.name} ({comparison.a.workload}{note})"
    print_frame(console, multiplier_table(comparison), title)
    for reason in refusals(comparison):
        console.print(f"  [dim]not measured, {escape(reason)}[/]")
    for warning in comparison.warnings:
        console.print(f"  [yellow]warning:[/] {escape(warning)}")
    if control:
        console.print(f"  {escape(noise_sentence(comparison))}")


def print_run(console: Console, run: RunFolder, figures: list[Path] | None = None) -> None:
    """The whole report of a run."""
    plan, points = run.plan["plan"], run.points()
    console.print(
        f"\n[bold]{escape(run.path.name)}[/]: {escape(model_line(plan))}, "
        f"{len(points)} points, begun {run.provenance['started']}"
    )
    print_ceilings(console, run)
    print_agreement(console, run)
    print_tuning(console, run)
    if points.empty:
        console.print("no point is finished yet")
        return
    print_faults(console, run)
    print_idle(console, points)
    if run.plan["plan"].get("kind") == "serving":
        print_serving(console, run, points)
    decode, batch, prefill = (points[points["workload"] == name] for name in ("decode", "batch", "prefill"))
    if len(batch):
        title = "Race: all requests start together; median (range over repeats)"
        print_frame(console, batch_table(batch, run_bounds(run, "batch")), title)
        best = best_peer_table(points, run.plan["plan"]["contenders"][0]["name"], control_names(run))
        if len(best):
            print_frame(console, best, "Over the best other contender at each load, a composite of several")
    if len(decode):
        print_frame(console, decode_table(decode, run_bounds(run, "decode")), "Decode: median (range over repeats)")
    if len(prefill):
        print_frame(console, prefill_table(prefill, run_bounds(run, "prefill")), "Prefill: median (range over repeats)")
    if len(memory := memory_table(points)):
        print_frame(console, memory, "Resident memory of each contender's process")
    for sentence in above_bound(run):
        console.print(f"[red]error:[/] {escape(sentence)}; the ceilings were measured too low, or the point is wrong")
    controls = control_names(run)
    for workload in ("decode", "batch", "prefill", "serving", "agents"):
        for comparison in comparisons(run, workload):
            print_comparison(console, comparison, control=comparison.b.name in controls)
    console.print(
        "[dim]A/B above 1: the first is ahead. Direct: same concurrency. Same speed: throughput at B's speed. Same "
        "throughput: speed at B's throughput; 'at' is the matched load of A. \\[low, high]: 95 % interval over "
        "repeats; *: no difference shown, 1 lies inside the interval or the bracket.[/]"
    )
    console.print(f"Points, traces, provenance and logs: {escape(str(run.path))}")
    if figures:
        console.print(
            f"Figures: {escape(str(figures[0].parent))} ({len(figures)} in SVG light and dark, PNG, with captions)"
        )
