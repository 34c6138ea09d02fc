"""The honesty gates of one curve: what its own numbers say against it. Each is named, and may be unable to look."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from wholecurve.curves.curve import Curve
from wholecurve.curves.gates.findings import Finding, values_text

# u = throughput / (concurrency × speed): about 1 when decode dominates, above 1 never.
OCCUPANCY_LOW, OCCUPANCY_HIGH = 0.5, 1.05
# Σ E2E / window over the set concurrency; ramp and drain of a short run cost up to a fifth.
LITTLE_LOW, LITTLE_HIGH = 0.8, 1.1
# Of the input: below, a hit is an accident of a shared system prompt.
CACHED_SHARE = 0.01
# Client lag, as a share of TPOT, from which the client and not the server is measured.
LAG_SHARE = 0.05
# A percentile is printed where at least three requests lie beyond it.
REQUESTS_FOR = {"p90": 30, "p99": 300}

# A gate gives its sentences, or None when the points lack what it needs.
Gate = Callable[[str, Curve], list[str] | None]


def check_curve(label: str, curve: Curve) -> list[Finding]:
    """Everything the gates find on one curve; ``label`` names it in the sentences."""
    found = []
    for gate, check in GATES.items():
        found += [Finding(gate, text) for text in check(label, curve) or []]
    return found


def unchecked_gates(curve: Curve) -> list[str]:
    """Names of the gates that could not look, because the points do not have what they need."""
    return [gate for gate, check in GATES.items() if check(curve.name, curve) is None]


def _single_run(label: str, curve: Curve) -> list[str]:
    counts = curve.points.groupby("load").size()
    single = counts[counts == 1].index
    if not len(single):
        return []
    where = "every load" if len(single) == len(counts) else f"load {values_text(single)}"
    return [f"{label} has a single run at {where}: n = 1, no interval, and nothing says how much of a ratio is noise"]


def _occupancy(label: str, curve: Curve) -> list[str] | None:
    if not curve.has_speed or not _load_is_requests(curve):
        return None
    points = curve.points
    devices = points["devices"].astype(float) if "devices" in points else 1.0
    derived = points["throughput"] * devices / (points["load"] * points["speed"])
    recorded = _numbers(curve, "occupancy")
    occupancy = recorded.where(recorded.notna(), derived).groupby(points["load"]).median()
    high, low = occupancy[occupancy > OCCUPANCY_HIGH], occupancy[occupancy < OCCUPANCY_LOW]
    found = []
    if len(high):
        found.append(
            f"{label} has occupancy {high.max():.2f} at load {high.idxmax():g} (above "
            f"{OCCUPANCY_HIGH} at load {values_text(high.index)}): more tokens than concurrency × speed "
            "allows, so something is counted wrongly"
        )
    if len(low):
        found.append(
            f"{label} has occupancy {low.min():.2f} at load {low.idxmin():g} (below "
            f"{OCCUPANCY_LOW} at load {values_text(low.index)}): time goes to prefill or queueing, so "
            "speed and throughput ratios differ"
        )
    return found


def _load_is_requests(curve: Curve) -> bool:
    """True where the load counts requests in flight; agentic loads count sessions, which also wait for their tools."""
    return curve.load_kind == "concurrency" and not curve.workload.startswith("agentic")


def _littles_law(label: str, curve: Curve) -> list[str] | None:
    sessions = curve.load_kind == "sessions"
    achieved = _numbers(curve, "achieved_sessions" if sessions else "achieved_concurrency")
    if not (sessions or _load_is_requests(curve)) or achieved.isna().all():
        return None
    share = (achieved / curve.points["load"]).groupby(curve.points["load"]).median()
    off = share[(share < LITTLE_LOW) | (share > LITTLE_HIGH)]
    if off.empty:
        return []
    worst = (off - 1).abs().idxmax()
    return [
        f"{label} kept {off[worst] * worst:.3g} {'sessions' if sessions else 'requests'} in flight at load {worst:g} "
        f"(off at load {values_text(off.index)}): sum of {'their times' if sessions else 'E2E'} over the window is not "
        "the concurrency that was set, so the point belongs to another load"
    ]


def _failures(label: str, curve: Curve) -> list[str] | None:
    counts = _numbers(curve, "n_failed")
    if counts.isna().all():
        return None
    failed = counts.fillna(0).groupby(curve.points["load"]).sum()
    failed = failed[failed > 0]
    if failed.empty:
        return []
    return [
        f"{label} has {int(failed.sum())} failed requests (load {values_text(failed.index)}): "
        "latencies are those of the survivors"
    ]


def _few_requests(label: str, curve: Curve) -> list[str] | None:
    completed = _numbers(curve, "n_completed")
    if completed.isna().all():
        return None
    found = []
    for part, needed in REQUESTS_FOR.items():
        columns = [c for c in curve.points if f"_{part}_" in c and _numbers(curve, c).notna().any()]
        printed = pd.concat([_numbers(curve, c).notna() for c in columns], axis=1).any(axis=1) if columns else False
        few = curve.points[printed & (completed < needed)]["load"].unique() if columns else []
        if len(few):
            found.append(
                f"{label} prints {part} from fewer than {needed} completed requests at load {values_text(few)}: "
                "too few lie beyond it to say where it is"
            )
    return found


def _mixed_denominators(label: str, curve: Curve) -> list[str] | None:
    if "devices" not in curve.points:
        return None
    if curve.points["devices"].nunique() < 2:
        return []
    return [
        f"{label} mixes numbers of devices ({values_text(curve.points['devices'].dropna().unique())}): its points are "
        "different configurations, so this is a frontier, not one configuration's curve"
    ]


def _cached_tokens(label: str, curve: Curve) -> list[str] | None:
    share = _numbers(curve, "cache_hit_rate")
    if share.isna().all():
        return None
    cached = share.groupby(curve.points["load"]).median()
    cached = cached[cached > CACHED_SHARE]
    if cached.empty:
        return []
    return [
        f"{label} took {cached.min():.0%}–{cached.max():.0%} of its input from a cache (load "
        f"{values_text(cached.index)}): prefill was partly not done, and a total that counts these tokens is logical"
    ]


def _not_monotone(label: str, curve: Curve) -> list[str]:
    # Prefill throughput falls with the step by nature: attention grows with its square.
    if not curve.has_speed:
        return []
    rows, found = curve.by_load(), []
    for axis, wrong, verb in (("speed", 1, "rises"), ("throughput", -1, "falls")):
        steps = np.diff(rows[axis]) * wrong > 0
        if steps.any():
            loads = values_text(rows["load"][1:][steps])
            found.append(f"{label} is not monotone: {axis} {verb} with load at load {loads}")
    return found


def _client_lag(label: str, curve: Curve) -> list[str] | None:
    lag, tpot = _numbers(curve, "client_lag_ms"), _numbers(curve, "tpot_p50_ms")
    if (lag / tpot).isna().all():
        return None
    share = (lag / tpot).groupby(curve.points["load"]).median()
    slow = share[share > LAG_SHARE]
    if slow.empty:
        return []
    return [
        f"{label} has a client that sends late by {slow.max():.0%} of a TPOT at load {slow.idxmax():g} (above "
        f"{LAG_SHARE:.0%} at load {values_text(slow.index)}): the client is part of what was measured"
    ]


def _composite(label: str, curve: Curve) -> list[str] | None:
    if "configuration" not in curve.points or curve.points["configuration"].isna().all():
        return None
    names = curve.points["configuration"].dropna().unique()
    if len(names) < 2:
        return []
    return [
        f"{label} is a composite of {len(names)} configurations ({'; '.join(sorted(map(str, names))[:3])}"
        f"{' …' if len(names) > 3 else ''}): no one configuration has all of these points"
    ]


def _numbers(curve: Curve, column: str) -> pd.Series:
    if column not in curve.points:
        return pd.Series(np.nan, index=curve.points.index)
    return pd.to_numeric(curve.points[column], errors="coerce")


GATES: dict[str, Gate] = {
    "single-run": _single_run,
    "occupancy": _occupancy,
    "littles-law": _littles_law,
    "failures": _failures,
    "few-requests": _few_requests,
    "not-monotone": _not_monotone,
    "mixed-denominators": _mixed_denominators,
    "composite": _composite,
    "cached-tokens": _cached_tokens,
    "client-lag": _client_lag,
}
