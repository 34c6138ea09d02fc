"""The figures of a serving run: every measure over the load, the curve, what a dollar buys, and how requests ended."""

from collections.abc import Iterator, Sequence

import pandas as pd

from wholecurve.curves.costs.rates import Rate
from wholecurve.curves.costs.table import cost_table
from wholecurve.figures.cost import cost_latency_curve
from wholecurve.figures.curve import throughput_vs_speed
from wholecurve.figures.outcomes import COMPLETED, outcome_bars, outcome_counts
from wholecurve.figures.race import Race, labelled, race_of
from wholecurve.figures.run_figure import RunFigure
from wholecurve.figures.serving import SERVING_PANELS, SESSION_PANELS, Measure, measure_of, panels_over_load
from wholecurve.runs import RunFolder
from wholecurve.runs.bounds import run_bounds

SEARCH = "maximum_load"
FROM_THE_PLAN = "stated in the plan"


def measured_points(points: pd.DataFrame) -> pd.DataFrame:
    """The points of the race: those of a search for the largest load are probes, at other loads for each contender."""
    return points[points["workload"] != SEARCH].reset_index(drop=True)


def plan_rates(run: RunFolder, race: Race) -> dict[str, Rate]:
    """A rate per racer from `usd_per_hour` of the plan, which is of the whole contender: divided by its devices."""
    planned = {one["name"]: one for one in run.plan["plan"]["contenders"]}
    rates = {}
    for racer in race.racers:
        usd = planned[racer.planned].get("usd_per_hour")
        devices = planned[racer.planned].get("devices", 1)
        missing = None if usd is not None else "the plan states no rate"
        rates[racer.name] = Rate(None if usd is None else usd / devices, None, FROM_THE_PLAN, missing=missing)
    return rates


def serving_figures(run: RunFolder, points: pd.DataFrame) -> Iterator[RunFigure]:
    """The figures that the points of a serving run allow, its multipliers not among them."""
    race, points = labelled(race_of(run), measured_points(points))
    if points.empty:
        return
    prefix = points["workload"].iloc[0]
    protocol = (
        f"{points['repeat'].nunique()} repeats with fresh servers, contenders alternated. Small dots: repeats; line: "
        f"median. Latency runs from when a request was due; percentiles are of the slow side. {race.tuning_text}"
    ).strip()
    sessions, bound = set(points["load_kind"]) == {"sessions"}, run_bounds(run, prefix)
    dashed = " Dashed: what the measured ceilings allow this model at most." if len(bound) else ""
    measures = SESSION_PANELS if sessions else SERVING_PANELS
    yield RunFigure(
        f"{prefix}_over_load",
        "Sessions of agents, seen from both sides" if sessions else "Serving under load, seen from both sides",
        f"What users feel and what the machine delivers, over the load: {', '.join(measures)}.{dashed} {protocol}",
        f"Panels over the load. {_ends(points, measures)}",
        lambda axes: panels_over_load(
            points, measures, axes.ravel(), control=race.controls, colours=race.colours, bound=bound
        ),
        points,
        (-(-len(measures) // 2), 2),
    )
    if _drawable(points):
        yield RunFigure(
            f"{prefix}_throughput_vs_speed",
            "Every point of the serving curves",
            f"Output throughput against decode speed per user; numbers at the points are loads. {protocol}",
            f"Throughput-versus-speed curves, one per server. {_ends(points, ['throughput'])}",
            lambda ax: throughput_vs_speed(points, ax, control=race.controls, colours=race.colours),
            points,
        )
    yield from _cost_figure(run, race, points, prefix)
    if (points["n_failed"] > 0).any():
        yield RunFigure(
            f"{prefix}_outcomes",
            "How requests ended",
            "Shares of the requests of every point that had failures, all repeats together. Latencies elsewhere are of "
            f"the {COMPLETED} ones alone.",
            f"Stacked bars of outcomes; {int(points['n_failed'].sum())} requests did not complete.",
            lambda ax: outcome_bars(points, ax),
            outcome_counts(points).reset_index(),
        )


def _cost_figure(run: RunFolder, race: Race, points: pd.DataFrame, prefix: str) -> Iterator[RunFigure]:
    rates = plan_rates(run, race)
    if all(rate.usd_per_device_hour is None for rate in rates.values()):
        return
    costs = cost_table(points, rates)
    if not (costs["tokens_per_usd"].notna() & costs["e2e_ms"].notna()).any():
        return
    yield RunFigure(
        f"{prefix}_tokens_per_dollar_vs_latency",
        "What a dollar buys at which completion time",
        "Output tokens of a machine that is never idle, at the rates of the plan, against the time that nine of ten "
        "requests take at most.",
        "Tokens per dollar against p90 end-to-end latency, one curve per server.",
        lambda ax: cost_latency_curve(costs, ax, control=race.controls, colours=race.colours),
        costs,
    )


def _drawable(points: pd.DataFrame) -> bool:
    both = points[["decode_speed_tok_per_s", "output_throughput_tok_per_s"]].notna().all(axis=1)
    return bool(both.any()) and "request_rate" not in set(points["load_kind"])


def _ends(points: pd.DataFrame, names: Sequence[str]) -> str:
    """'throughput: A 12 to 130, B 9 to 150': medians at the lowest and the highest load, for the alt text."""
    sentences = []
    for name in names:
        measure: Measure = measure_of(name)
        medians = measure.of(points).groupby([points["contender"], points["load"]], sort=True).median().dropna()
        parts = [
            f"{contender} {own.iloc[0]:.3g} to {own.iloc[-1]:.3g}"
            for contender in dict.fromkeys(points["contender"])
            if contender in medians.index.get_level_values(0) and len(own := medians[contender])
        ]
        sentences.append(f"{name}: {', '.join(parts) or 'not printed'}")
    return "; ".join(sentences)
