"""What A gives for a dollar against B at equal end-to-end latency."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from wholecurve.curves.costs.formulas import tokens_per_dollar_ratio, worth_text
from wholecurve.curves.costs.latency_curve import LatencyCurve, check_target
from wholecurve.curves.costs.match import typed_frame
from wholecurve.curves.costs.rates import Rate
from wholecurve.curves.multipliers import BETWEEN_REASONS, NOT_MEASURED, Refused, verdict
from wholecurve.curves.uncertainty import t_interval

RATIO_COLUMNS = (
    *("a", "b", "latency_ms", "stated", "load_a", "load_b", "throughput_a", "throughput_b", "capacity_ratio"),
    *("estimate", "low", "high", "n", "repeats_outside", "bracket_low", "bracket_high", "floor"),
    *("worth", "refused", "verdict"),
)


def cost_ratios(
    costs: pd.DataFrame,
    rates: Mapping[str, Rate],
    a: str,
    b: str,
    targets_ms: Sequence[float] = (),
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Tokens per dollar of A over B at equal E2E latency: at every measured point of B, then at each stated target.

    ``costs`` is the `cost_table` of one workload. capacity_ratio is that of throughput per device; ``estimate`` is
    capacity_ratio × rate_B / rate_A, with its interval over repeats, bracket, and floor (measured points of A only: the
    best one that is at least as quick). ``worth`` states capacity gain and cost cut together. A refused row says why
    and has no estimate; the floor stays where the target lies inside both ranges.
    """
    for target in targets_ms:
        check_target(target)
    try:
        curve_a, curve_b = LatencyCurve(costs, a), LatencyCurve(costs, b)
    except Refused as refusal:
        rows = [{"latency_ms": t, "stated": True, "refused": str(refusal), "verdict": NOT_MEASURED} for t in targets_ms]
        return typed_frame([{"a": a, "b": b, **row} for row in rows], RATIO_COLUMNS)
    places = [(ms, float(load)) for load, ms in zip(curve_b.loads, curve_b.latencies_ms)]
    places += [(target, None) for target in targets_ms]
    usd = tuple(rates[name].usd_per_device_hour for name in (a, b))
    no_rate = BETWEEN_REASONS.join(
        f"no cost of {n}: {rates[n].missing}" for n in (a, b) if rates[n].usd_per_device_hour is None
    )
    repeats = tuple(_by_repeat(costs, name) for name in (a, b))
    rows = []
    for target, load_b in places:
        row = {"a": a, "b": b, "latency_ms": target, "stated": load_b is None, "load_b": load_b}
        row |= {"verdict": NOT_MEASURED, "refused": None} | _ratio(curve_a, curve_b, target, usd)
        if row.get("estimate") is not None:
            row |= _certainty(row, _log_ratios(*repeats, load_b, target), usd, confidence)
        row["refused"] = row["refused"] or no_rate or None
        rows.append(row)
    return typed_frame(rows, RATIO_COLUMNS)


def _ratio(a: LatencyCurve, b: LatencyCurve, target_ms: float, usd: tuple[float | None, float | None]) -> dict:
    readings, reasons = [], []
    for curve in (a, b):
        try:
            readings.append(curve.read(target_ms))
        except Refused as refusal:
            reasons.append(str(refusal))
    floor = a.floor_over(b, target_ms)
    row = {"floor": None if floor is None else tokens_per_dollar_ratio(floor, *usd)}
    if reasons:
        return row | {"refused": BETWEEN_REASONS.join(reasons)}
    of_a, of_b = readings
    capacity = (of_a.throughput / of_b.throughput, of_a.linear / of_b.linear, of_a.log_log / of_b.log_log)
    row |= {
        "load_a": of_a.load,
        "throughput_a": of_a.throughput,
        "throughput_b": of_b.throughput,
        "capacity_ratio": capacity[0],
        "worth": worth_text(capacity[0], *usd),
    }
    if None in usd:
        return row
    span = [tokens_per_dollar_ratio(g, *usd) for g in capacity]
    return row | {"estimate": span[0], "bracket_low": min(span), "bracket_high": max(span)}


def _certainty(row: dict, found: tuple[list[float], int], usd: tuple[float, float], confidence: float) -> dict:
    logs = [math.log(tokens_per_dollar_ratio(math.exp(value), *usd)) for value in found[0]]
    low, high = t_interval(logs, row["estimate"], confidence)
    bracket = row["bracket_low"], row["bracket_high"]
    says = verdict(row["estimate"], (low, high), bracket, log_ratios=logs)
    return {"low": low, "high": high, "n": len(logs), "repeats_outside": found[1], "verdict": says}


def _by_repeat(costs: pd.DataFrame, name: str) -> dict[int, LatencyCurve | None]:
    """The curves of single repeats; None for a repeat that has no point with a latency."""
    curves = {}
    for repeat in sorted(costs.loc[costs["contender"] == name, "repeat"].unique()):
        try:
            curves[int(repeat)] = LatencyCurve(costs, name, repeat)
        except Refused:
            curves[int(repeat)] = None
    return curves


def _log_ratios(a: dict, b: dict, load_b: float | None, target_ms: float) -> tuple[list[float], int]:
    """log capacity ratio again from the curves of each shared repeat alone, and how many repeats could not be read.

    The slope rule is not applied again: dropping the flatter repeats would bias the rest.
    """
    ratios, left = [], 0
    for repeat in sorted(a.keys() & b.keys()):
        try:
            ratios.append(math.log(_capacity(a[repeat], b[repeat], load_b, target_ms)))
        except Refused:
            left += 1
    return ratios, left


def _capacity(a: LatencyCurve | None, b: LatencyCurve | None, load_b: float | None, target_ms: float) -> float:
    if a is None or b is None:
        raise Refused("this repeat has no latency")
    if load_b is None:
        return a.read(target_ms, slope_rule=False).throughput / b.read(target_ms, slope_rule=False).throughput
    at = np.flatnonzero(b.loads == load_b)
    if not len(at):
        raise Refused(f"this repeat has no point at load {load_b:g}")
    return a.read(b.latencies_ms[at[0]], slope_rule=False).throughput / b.throughputs[at[0]]
