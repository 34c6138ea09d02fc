"""Cost and latency of several contenders together: every point, what a latency costs, what must be said about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from wholecurve.curves.costs.latency_curve import check_target, seconds
from wholecurve.curves.costs.match import READING_COLUMNS, costs_at_latency, typed_frame
from wholecurve.curves.costs.rates import ASSUMED, Rate
from wholecurve.curves.costs.ratio import RATIO_COLUMNS, cost_ratios
from wholecurve.curves.costs.table import cost_table


@dataclass(frozen=True)
class CostPlane:
    """What `cost_plane` found.

    costs: `cost_table` of all points. at_latency: `costs_at_latency` per workload (column workload in front). ratios:
    `cost_ratios` of the first contender over each other one, per workload. warnings: sentences.
    """

    percentile: int
    rates: Mapping[str, Rate]
    costs: pd.DataFrame
    at_latency: pd.DataFrame
    ratios: pd.DataFrame
    warnings: list[str]

    def workloads(self) -> list[str]:
        """The workloads of the points, in their order."""
        return list(dict.fromkeys(self.costs["workload"]))


def cost_plane(
    points: pd.DataFrame, rates: Mapping[str, Rate], at_latency_ms: Sequence[float] = (), percentile: int = 90
) -> CostPlane:
    """Costs of tidy ``points`` at the ``rates`` of `rates_for`, against the E2E latency at ``percentile``.

    Latency targets are in ms. A prefill workload (load_kind "step_tokens") has costs and no latency curve. Raises
    UserError as `cost_table` does, and for a latency target that is not a finite number above 0.
    """
    for target in at_latency_ms:
        check_target(target)
    costs = cost_table(points, rates, percentile)
    readings, ratios = [], []
    for workload, group in costs[costs["load_kind"] != "step_tokens"].groupby("workload", sort=False):
        readings.append(costs_at_latency(group, rates, at_latency_ms).assign(workload=workload))
        first, *others = dict.fromkeys(group["contender"])
        ratios += [cost_ratios(group, rates, first, name, at_latency_ms).assign(workload=workload) for name in others]
    at_latency, joined = _joined(readings, READING_COLUMNS), _joined(ratios, RATIO_COLUMNS)
    warnings = _warnings(costs, rates, percentile) + _repeats_outside(joined)
    return CostPlane(percentile, dict(rates), costs, at_latency, joined, warnings)


def _joined(frames: list[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)] or [typed_frame([], columns).assign(workload=None)]
    return pd.concat(filled, ignore_index=True)[["workload", *columns]]


def _warnings(costs: pd.DataFrame, rates: Mapping[str, Rate], percentile: int) -> list[str]:
    names = list(dict.fromkeys(costs["contender"]))
    found = _absent(costs, "cost_missing", "cost") + _absent(costs, "e2e_missing", "latency")
    dates = {rates[name].date for name in names if rates[name].date}
    if len(dates) > 1:
        per_date = [f"{rates[name].label} for {name}" for name in names if rates[name].date]
        found.append(f"the rates are of different dates, and prices move: {'; '.join(per_date)}")
    return found + _differences(costs) + _requests(costs, percentile)


def _absent(costs: pd.DataFrame, column: str, what: str) -> list[str]:
    """One sentence per contender and reason, with the loads that it concerns."""
    if what == "latency":
        costs = costs[costs["load_kind"] != "step_tokens"]
    loads: dict[tuple[str, str], list[float]] = {}
    for row in costs[costs[column].notna()].itertuples():
        loads.setdefault((row.contender, getattr(row, column)), []).append(row.load)
    return [
        f"no {what} for {name} at load {', '.join(f'{load:g}' for load in sorted(set(where)))}: {reason}"
        for (name, reason), where in loads.items()
    ]


def _differences(costs: pd.DataFrame) -> list[str]:
    texts = {
        "model": "the models differ ({}): a token of one is not a token of the other",
        "precision": "the precisions differ ({}): the answers may differ in quality",
        "window": "throughput is over different windows ({})",
        "source": "the sources differ ({})",
        "device_kind": "rates are per different things ({}): one rate for all would price a machine as a GPU",
    }
    found = []
    for column, text in texts.items():
        if column not in costs:
            continue
        # Within a workload: a prefill step and a decode curve differ in window by nature.
        for _, group in costs.groupby("workload", sort=False):
            values = sorted(group[column].dropna().astype(str).unique())
            if len(values) > 1:
                found.append(text.format(", ".join(values)))
    hardware = sorted(costs["hardware"].dropna().astype(str).unique()) if "hardware" in costs else []
    if (costs["rate"] == ASSUMED).any() and len(hardware) > 1:
        found.append(f"one assumed rate is taken for different hardware ({', '.join(hardware)})")
    return list(dict.fromkeys(found))


def _requests(costs: pd.DataFrame, percentile: int) -> list[str]:
    found = []
    if "n_failed" in costs:
        failed = costs[pd.to_numeric(costs["n_failed"]).fillna(0) > 0]
        for name, rows in failed.groupby("contender", sort=False):
            found.append(f"{name} has {int(rows['n_failed'].sum())} failed requests: latencies are of the survivors")
    shown = costs[costs["e2e_ms"].notna()]
    if percentile > 50 and len(shown):
        unknown = shown if "n_completed" not in shown else shown[shown["n_completed"].isna()]
        if len(unknown):
            who = ", ".join(dict.fromkeys(unknown["contender"]))
            found.append(f"the number of requests behind p{percentile} is not stated for {who}")
    return found


def _repeats_outside(ratios: pd.DataFrame) -> list[str]:
    return [
        f"{row.a} over {row.b} at {seconds(row.latency_ms)}: {row.repeats_outside:.0f} of "
        f"{row.repeats_outside + row.n:.0f} repeats could not be read there; the interval is of the others"
        for row in ratios[ratios["repeats_outside"] > 0].itertuples()
    ]
