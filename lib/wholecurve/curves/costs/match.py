"""Costs at one and the same operating point: at a stated end-to-end latency, or at the matched points of a comparison.

Throughput is interpolated over load, and the cost follows from it and the rate; a cost is never interpolated itself, so
that cost × throughput gives the rate back at every matched point.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from wholecurve.curves.costs.formulas import dollars_per_million_tokens, tokens_per_dollar, worth_text
from wholecurve.curves.costs.latency_curve import LatencyCurve, check_target
from wholecurve.curves.costs.rates import Rate
from wholecurve.curves.multipliers import Refused

READING_COLUMNS = (
    *("contender", "latency_ms", "load", "throughput_tok_per_s", "usd_per_million_tokens", "tokens_per_usd"),
    *("tokens_per_usd_low", "tokens_per_usd_high", "measured", "refused"),
)
MATCHED_COLUMNS = (
    *("load_b", "speed", "speed_a", "throughput", "throughput_a"),
    *("usd_per_million_tokens_a", "usd_per_million_tokens_b", "worth", "refused"),
)
TEXT_COLUMNS = ("contender", "a", "b", "worth", "refused", "verdict")


def costs_at_latency(costs: pd.DataFrame, rates: Mapping[str, Rate], targets_ms: Sequence[float]) -> pd.DataFrame:
    """What each contender's tokens cost where its E2E latency is ``targets_ms``; one row per target and contender.

    ``costs`` is the `cost_table` of one workload. tokens_per_usd_low and _high span the estimate, the plain linear and
    the log-log reading; measured: on a measured point, nothing was interpolated. ``refused`` says why a row has no
    reading, or no cost (a rate that is not known).
    """
    rows = []
    for target in targets_ms:
        check_target(target)
        for name in dict.fromkeys(costs["contender"]):
            rows.append({"contender": name, "latency_ms": target, **_reading(costs, name, rates[name], target)})
    return typed_frame(rows, READING_COLUMNS)


def matched_costs(rows: pd.DataFrame, rate_a: Rate, rate_b: Rate) -> pd.DataFrame:
    """Costs at the operating points of a `compare` frame (same_speed or same_throughput), from its throughputs.

    One row per row: the operating points as given, dollars per million tokens of A and of B, and ``worth``, capacity
    gain and cost cut together. A refused row has no cost of A.
    """
    usd_a, usd_b = rate_a.usd_per_device_hour, rate_b.usd_per_device_hour
    result = []
    for row in rows.to_dict("records"):
        a, b = (None if pd.isna(row[name]) else row[name] for name in ("throughput_a", "throughput"))
        result.append(
            {name: row[name] for name in MATCHED_COLUMNS if name in row}
            | {
                "usd_per_million_tokens_a": dollars_per_million_tokens(usd_a, a),
                "usd_per_million_tokens_b": dollars_per_million_tokens(usd_b, b),
                "worth": None if a is None or b is None else worth_text(a / b, usd_a, usd_b),
            }
        )
    return typed_frame(result, MATCHED_COLUMNS)


def typed_frame(rows: Sequence[dict], columns: Sequence[str]) -> pd.DataFrame:
    """Rows as a frame with exactly these columns: None for a text that is absent, NaN for a number."""
    frame = pd.DataFrame(rows, columns=list(columns))
    for column in columns:
        if column in TEXT_COLUMNS:
            frame[column] = frame[column].astype(object).where(frame[column].notna(), None)
        elif column in ("measured", "stated"):
            frame[column] = frame[column].eq(True)
        else:
            frame[column] = frame[column].astype(float)
    return frame


def _reading(costs: pd.DataFrame, name: str, rate: Rate, target_ms: float) -> dict:
    try:
        found = LatencyCurve(costs, name).read(target_ms)
    except Refused as refusal:
        return {"refused": str(refusal)}
    usd = rate.usd_per_device_hour
    row = {
        "load": found.load,
        "throughput_tok_per_s": found.throughput,
        "usd_per_million_tokens": dollars_per_million_tokens(usd, found.throughput),
        "measured": found.measured,
        "refused": rate.missing,
    }
    if usd is None:
        return row
    span = [tokens_per_dollar(usd, value) for value in (found.throughput, found.linear, found.log_log)]
    return row | {"tokens_per_usd": span[0], "tokens_per_usd_low": min(span), "tokens_per_usd_high": max(span)}
