"""Where the first contender leads the best other one, metric by metric, and where it does not."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from wholecurve.card.facts import RunFacts
from wholecurve.card.wording import numbers
from wholecurve.curves import multiplier_text
from wholecurve.curves.multipliers import AHEAD_A, AHEAD_B, NO_DIFFERENCE, NOT_MEASURED, UNDECIDED, verdict
from wholecurve.curves.uncertainty import t_interval

COLUMNS = ("workload", "metric", "ahead of all others at", "not ahead of the best other one")
_WORDS = {AHEAD_B: "behind", NO_DIFFERENCE: "no difference shown", UNDECIDED: "undecided (n < 3)"}


@dataclass(frozen=True)
class Metric:
    """A column of a point in words; of latencies the lower value is the better one."""

    column: str
    words: str
    lower: bool = False


METRICS = (
    Metric("output_throughput_tok_per_s", "output throughput"),
    Metric("input_throughput_tok_per_s", "input throughput"),
    Metric("decode_speed_tok_per_s", "decode speed"),
    Metric("ttft_p50_ms", "TTFT p50", lower=True),
    Metric("ttft_p90_ms", "TTFT p90", lower=True),
    Metric("e2e_p50_ms", "E2E p50", lower=True),
    Metric("e2e_p90_ms", "E2E p90", lower=True),
    Metric("goodput_tok_per_s", "goodput"),
)


@dataclass(frozen=True)
class Lead:
    """One load: the first contender over the best other one; above 1 it is better, also where lower is better."""

    load: float
    other: str | None
    ratio: float | None
    low: float | None
    high: float | None
    repeats: int
    says: str


def lead_rows(facts: RunFacts) -> list[tuple[str, ...]]:
    """The rows under `COLUMNS`. The best other contender may change from load to load: it is a composite.

    It is the one with the best geometric mean over repeats. The ratio is the geometric mean of paired repeats, with a t
    interval; what lies no further from 1 than the A/A control does at any load is no difference.
    """
    found = []
    for workload in facts.workloads if facts.peers else ():
        points = facts.points[facts.points["workload"] == workload]
        for metric in METRICS:
            if _is_shown(points, metric):
                leads = leads_of(points, metric, facts.first, facts.peers, facts.controls)
                ahead = numbers(lead.load for lead in leads if lead.says == AHEAD_A)
                found.append((workload, metric.words, ahead or "no load", _not_ahead(leads)))
    return found


def _is_shown(points: pd.DataFrame, metric: Metric) -> bool:
    if metric.column not in points or points[metric.column].isna().all():
        return False
    # A prefill point has one token, so that its TTFT is its throughput once more; served input waits for its output.
    prefill = set(points["load_kind"]) == {"step_tokens"}
    return prefill == (metric.column == "input_throughput_tok_per_s")


def leads_of(
    points: pd.DataFrame, metric: Metric, first: str, peers: Sequence[str], controls: Mapping[str, str]
) -> list[Lead]:
    """One `Lead` per load of these points, in rising order of loads."""
    again = next((name for name, of in controls.items() if of == first), None)
    bound = _control_bound(points, metric, first, again)
    return [_lead(float(load), rows, metric, first, peers, bound) for load, rows in points.groupby("load")]


def _logs(rows: pd.DataFrame, name: str, metric: Metric) -> dict[int, float]:
    """By repeat, the logarithm of a value, of which more is better."""
    own = rows[rows["contender"] == name].dropna(subset=[metric.column])
    sign = -1 if metric.lower else 1
    return {repeat: sign * math.log(value) for repeat, value in zip(own["repeat"], own[metric.column]) if value > 0}


def _paired(mine: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    return [mine[repeat] - theirs[repeat] for repeat in sorted(mine.keys() & theirs.keys())]


def _control_bound(points: pd.DataFrame, metric: Metric, first: str, again: str | None) -> float | None:
    """The factor by which the first contender and its repetition differ at most, over all loads."""
    if again is None:
        return None
    pairs = [_paired(_logs(rows, first, metric), _logs(rows, again, metric)) for _, rows in points.groupby("load")]
    means = [abs(sum(logs) / len(logs)) for logs in pairs if logs]
    return math.exp(max(means)) if means else None


def _lead(
    load: float, rows: pd.DataFrame, metric: Metric, first: str, peers: Sequence[str], bound: float | None
) -> Lead:
    mine = _logs(rows, first, metric)
    theirs = {name: logs for name in peers if (logs := _logs(rows, name, metric))}
    best = max(theirs, key=lambda name: sum(theirs[name].values()) / len(theirs[name]), default=None)
    logs = _paired(mine, theirs[best]) if best is not None else []
    if not logs:
        return Lead(load, best, None, None, None, 0, NOT_MEASURED)
    ratio = math.exp(sum(logs) / len(logs))
    low, high = t_interval(logs, ratio, 0.95)
    return Lead(load, best, ratio, low, high, len(logs), verdict(ratio, (low, high), log_ratios=logs, bound=bound))


def _not_ahead(leads: Sequence[Lead]) -> str:
    parts = []
    for says, words in _WORDS.items():
        for other in dict.fromkeys(lead.other for lead in leads if lead.says == says):
            parts.append(f"{words}: {other} {_span([one for one in leads if (one.says, one.other) == (says, other)])}")
    if unread := [lead.load for lead in leads if lead.says == NOT_MEASURED]:
        parts.append(f"not measured at {numbers(unread)}")
    return "; ".join(parts) or "nowhere"


def _span(leads: Sequence[Lead]) -> str:
    """ "0.51× [0.50, 0.51] at 1 to 0.63× [0.58, 0.68] at 16" of several loads, and which they are."""
    low, high = min(leads, key=lambda one: one.ratio), max(leads, key=lambda one: one.ratio)
    ends = [f"{multiplier_text(one.ratio, one.low, one.high, one.repeats)} at {one.load:g}" for one in (low, high)]
    if low is high:
        return ends[0]
    between = f" (loads {numbers(one.load for one in leads)})" if len(leads) > 2 else ""
    return f"{ends[0]} to {ends[1]}{between}"
