"""The figures of one run: its curves, and the multipliers between its first contender and the others."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from wholecurve.curves import Comparison, Curve, compare
from wholecurve.curves.multipliers import AHEAD_A, AHEAD_B
from wholecurve.errors import UserError
from wholecurve.figures.curve import throughput_vs_concurrency, throughput_vs_speed
from wholecurve.figures.matched import matched_points
from wholecurve.figures.multipliers import multiplier_plot
from wholecurve.figures.prefill import prefill_throughput
from wholecurve.figures.race import race_of
from wholecurve.figures.run_figure import RunFigure
from wholecurve.figures.save import save_figure
from wholecurve.figures.series import LOAD_NOUNS
from wholecurve.figures.serving_run import measured_points, serving_figures
from wholecurve.files import slug
from wholecurve.runs import RunFolder
from wholecurve.runs.bounds import run_bounds
from wholecurve.runs.provenance import hardware_line, model_line
from wholecurve.runs.requests import run_requests

# Workloads whose points keep the requests behind them, as the second level of the bootstrap needs them.
_WITH_REQUESTS = ("decode", "serving", "agents")


def control_names(run: RunFolder) -> list[str]:
    """Contenders that repeat another one (A/A controls)."""
    return [contender["name"] for contender in run.plan["plan"]["contenders"] if contender["control_of"]]


def comparisons(run: RunFolder, workload: str) -> list[Comparison]:
    """The first contender over each other one, in the order of the plan; the A/A controls come last.

    A control of the first contender bounds the noise of the other comparisons. Points where every request failed have
    neither speed nor throughput and are on no curve. Of serving runs, only closed loops are compared: under an open one
    throughput is what was asked for.
    """
    race, points = race_of(run), run.points()
    points = points[points["workload"] == workload]
    if set(points["load_kind"]) == {"request_rate"}:
        return []
    if set(points["load_kind"]) != {"step_tokens"}:
        points = points.dropna(subset=["decode_speed_tok_per_s", "output_throughput_tok_per_s"])
    controls, first, present = race.controls, race.ours, set(points["contender"])
    ordered = [racer.name for racer in race.racers[1:] if racer.name not in controls] + controls
    if first not in present:
        return []
    requests = {}
    if workload in _WITH_REQUESTS:
        on_curves = {name: set(zip(own["load"], own["repeat"])) for name, own in points.groupby("contender")}
        requests = {name: run_requests(run, name, workload, on_curves[name]) for name in present}

    def over(name: str, control: Comparison | None) -> Comparison:
        curves = (Curve.from_points(points, one, workload) for one in (first, name))
        drawn = {"requests_a": requests.get(first), "requests_b": requests.get(name)}
        return compare(*curves, control=control, **drawn)

    repeated = {racer.name: racer.control_of for racer in race.racers}
    again = next((over(name, None) for name in controls if name in present and repeated[name] == first), None)
    return [over(name, None if name in controls else again) for name in ordered if name in present]


def source_line(run: RunFolder) -> str:
    """Where the numbers of a run come from, for the foot of a figure."""
    plan, about, points = run.plan["plan"], run.provenance, run.points()
    sources = sorted(set(points["source"])) if len(points) else ["measured (cpu)"]
    machine = hardware_line(about["hardware"])
    # Of a server elsewhere only the client's machine is known.
    where = (
        f"measured (cpu): {machine}" if sources == ["measured (cpu)"] else f"{', '.join(sources)}; client: {machine}"
    )
    return f"wholecurve run {run.path.name}, {about['started'][:10]}, {where}; {model_line(plan)}"


def _best(points: pd.DataFrame, column: str) -> str:
    """'A 123 tok/s at load 8, B …': the largest median of each contender, for the alt text."""
    medians = points.groupby(["contender", "load"])[column].median()
    parts = []
    for name in dict.fromkeys(points["contender"]):
        load = medians[name].idxmax()
        parts.append(f"{name} reaches {medians[name][load]:.0f} tok/s at {load:g}")
    return "; ".join(parts)


def _decode_figures(run: RunFolder, points: pd.DataFrame, workload: str = "decode") -> Iterator[RunFigure]:
    controls, bound = control_names(run), run_bounds(run, workload)
    repeats = points["repeat"].nunique()
    protocol = f"{repeats} repeats in fresh processes, contenders alternated point by point"
    prefix = "" if workload == "decode" else f"{workload}_"
    if workload == "batch":
        protocol = f"Requests of equal lengths start together, counted while all of them decode. {protocol}"
    yield RunFigure(
        f"{prefix}throughput_vs_speed",
        "Every point of the decode curves",
        f"Output throughput of the machine against decode speed per user, from one request in flight to "
        f"{points['load'].max():g}. Small dots: repeats; line: median. {protocol}; grey: the same engine again.",
        f"Throughput-versus-speed curves, one per engine. {_best(points, 'output_throughput_tok_per_s')} in flight.",
        lambda ax: throughput_vs_speed(points, ax, control=controls),
        points,
    )
    yield RunFigure(
        f"{prefix}throughput_vs_concurrency",
        "Output throughput over concurrency",
        f"Output throughput of the machine at each number of requests in flight. Dashed: what the measured memory "
        f"and GEMM ceilings allow at most for this model and workload. {protocol}.",
        f"Throughput over concurrency. {_best(points, 'output_throughput_tok_per_s')} in flight.",
        lambda ax: throughput_vs_concurrency(points, ax, bound=bound if len(bound) else None, control=controls),
        points,
    )


def _prefill_figures(run: RunFolder, points: pd.DataFrame) -> Iterator[RunFigure]:
    controls, bound = control_names(run), run_bounds(run, "prefill")
    yield RunFigure(
        "prefill_throughput",
        "Prefill throughput over step size",
        "Non-cached input tokens per second of one prompt in one step, on an empty cache. Dashed: bound from the "
        f"measured ceilings. {points['repeat'].nunique()} repeats in fresh processes.",
        f"Prefill throughput over tokens per step. {_best(points, 'input_throughput_tok_per_s')} tokens per step.",
        lambda ax: prefill_throughput(points, ax, bound if len(bound) else None, control=controls),
        points,
    )


def _range_text(found: dict) -> str:
    if found["min"] is None:
        return "not measured anywhere"
    return f"{found['min']['value']:.2f}× to {found['max']['value']:.2f}×"


def _multiplier_figures(run: RunFolder, points: pd.DataFrame, workload: str = "decode") -> Iterator[RunFigure]:
    prefix = "" if workload == "decode" else f"{workload}_"
    for comparison in comparisons(run, workload):
        a, b, summary = comparison.a.name, comparison.b.name, comparison.summary
        both = points[points["contender"].isin([a, b])]
        if summary["direct"]["min"] is None:
            continue
        ranges = ", ".join(
            f"{label} {_range_text(summary[key])}"
            for key, label in (
                ("direct", "direct"),
                ("same_speed", "same speed"),
                ("same_throughput", "same throughput"),
            )
        )
        yield RunFigure(
            f"{prefix}multipliers_{slug(b)}",
            f"{a} over {b}: three multipliers, one pair of curves",
            f"Direct: same concurrency. Same speed: throughput at the speed of {b}. Same throughput: speed at the "
            f"throughput of {b}. Ranges: {ranges}. Whiskers: 95 % intervals over repeats; bands: span of three "
            f"interpolations.",
            f"Multipliers of {a} over {b} by {LOAD_NOUNS.get(comparison.a.load_kind, 'load')} of {b}: {ranges}.",
            lambda ax, comparison=comparison: multiplier_plot(
                comparison, ax, load_label=LOAD_NOUNS.get(comparison.a.load_kind, "load")
            ),
            both,
        )
        row = None if b in control_names(run) else _clearest_row(comparison)
        if row is not None:
            yield RunFigure(
                f"{prefix}matched_points_{slug(b)}",
                f"Where a multiplier of {a} over {b} comes from",
                "The multiplier is the distance between two operating points on one line: filled is measured, hollow "
                "is interpolated between measured points.",
                f"Two curves and the line between two matched operating points: {row['estimate']:.2f}×.",
                lambda ax, both=both, row=row, a=a, b=b: matched_points(
                    both[both["contender"] == a], both[both["contender"] == b], row, ax
                ),
                both,
            )


def _clearest_row(comparison: Comparison) -> dict | None:
    """The matched row that lies furthest from 1 among those that show a difference; None where none does."""
    rows = pd.concat([comparison.same_speed, comparison.same_throughput])
    rows = rows[rows["verdict"].isin([AHEAD_A, AHEAD_B])]
    if rows.empty:
        return None
    return rows.iloc[int((rows["estimate"] - 1).abs().to_numpy().argmax())].to_dict()


def run_figures(run: RunFolder) -> Iterator[RunFigure]:
    """All figures that the points of a run allow; each workload gives its own ones."""
    points = run.points()
    if points.empty:
        raise UserError(f"{run.path}: no point is finished yet, so there is nothing to draw")
    if run.plan["plan"].get("kind") == "serving":
        yield from serving_figures(run, points)
        points = measured_points(points)
        for workload in dict.fromkeys(points["workload"]):
            yield from _multiplier_figures(run, points, workload)
        return
    decode, batch, prefill = (
        points[points["workload"] == name].reset_index(drop=True) for name in ("decode", "batch", "prefill")
    )
    if len(decode):
        yield from _decode_figures(run, decode)
    if len(batch):
        yield from _decode_figures(run, batch, "batch")
    if len(prefill):
        yield from _prefill_figures(run, prefill)
    if len(decode):
        yield from _multiplier_figures(run, decode)
    if len(batch):
        yield from _multiplier_figures(run, batch, "batch")


def figure_data(figure: RunFigure) -> pd.DataFrame:
    """The rows that a figure shows, without the columns that are not numbers of it."""
    nested = [name for name in figure.data if figure.data[name].map(lambda value: isinstance(value, dict | list)).any()]
    started = [name for name in ("worker_started", "server_started") if name in figure.data]
    return figure.data.drop(columns=[*nested, *started])


def write_figure(figure: RunFigure, folder: Path, source: str) -> Path:
    """Write one figure to `folder`, with `source` at its foot; returns the path of its PNG."""
    written = save_figure(
        figure.make,
        figure.name,
        folder,
        title=figure.title,
        caption=figure.caption,
        alt=figure.alt,
        source=source,
        data=figure_data(figure),
        panels=figure.panels,
    )
    return written["png"]


def save_run_figures(run: RunFolder, folder: Path) -> list[Path]:
    """Write every figure of a run to `folder`; returns the PNG paths."""
    source = source_line(run)
    return [write_figure(figure, folder, source) for figure in run_figures(run)]
