"""What every point costs: one row per contender, workload, load and repeat, with a reason for what is absent."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from wholecurve.curves.costs.formulas import (
    dollars_per_million_tokens,
    joules_per_token,
    tokens_per_dollar,
    tokens_per_s_per_megawatt,
)
from wholecurve.curves.costs.rates import Rate
from wholecurve.errors import UserError

KEY = ("contender", "workload", "load", "repeat")
NEEDED = (*KEY, "load_kind", "devices", "device_kind", "source")
KEPT = (*NEEDED, "window", "n_completed", "n_failed", "hardware", "model", "precision", "configuration")


def cost_table(points: pd.DataFrame, rates: Mapping[str, Rate], percentile: int = 90) -> pd.DataFrame:
    """Costs of tidy point rows at the ``rates`` of `rates_for`; one row per point, in the order given.

    ``tokens`` says what is counted: "output", or "input, not cached" on a prefill step (load_kind "step_tokens").
    Tokens that include cached input ("logical") are never priced. Columns of numbers, NaN where absent:
    throughput_tok_per_s (per device), usd_per_device_hour, usd_per_million_tokens, tokens_per_usd; joules_per_token and
    tok_per_s_per_mw once with ``_measured`` (from the point's power_w_per_device) and once with ``_all_in`` (from the
    rate's all-in power), never mixed; e2e_ms, the end-to-end latency at ``percentile`` (50, 90 or 99).
    cost_missing and e2e_missing hold the reason why a row has no cost or no latency, None where it has.

    Raises UserError, naming contender, load, repeat and field, for a missing column, a number that is zero, negative
    or infinite, a point that occurs twice, or a contender without an entry in ``rates``.
    """
    _check(points, rates)
    rows = [_row(point, rates[point["contender"]], percentile) for point in points.to_dict("records")]
    frame = pd.DataFrame(rows)
    frame["e2e_percentile"] = percentile
    return frame


def _row(point: dict, rate: Rate, percentile: int) -> dict:
    tokens, throughput, reason = _throughput(point)
    power = _number(point, "power_w_per_device")
    all_in = None if rate.all_in_kw_per_device is None else 1e3 * rate.all_in_kw_per_device
    latency, latency_reason = _latency(point, percentile)
    usd = rate.usd_per_device_hour
    numbers = {
        "throughput_tok_per_s": throughput,
        "usd_per_device_hour": usd,
        "usd_per_million_tokens": dollars_per_million_tokens(usd, throughput),
        "tokens_per_usd": tokens_per_dollar(usd, throughput),
        "power_w_measured": power,
        "joules_per_token_measured": joules_per_token(power, throughput),
        "tok_per_s_per_mw_measured": tokens_per_s_per_megawatt(power, throughput),
        "power_w_all_in": all_in,
        "joules_per_token_all_in": joules_per_token(all_in, throughput),
        "tok_per_s_per_mw_all_in": tokens_per_s_per_megawatt(all_in, throughput),
        "e2e_ms": latency,
    }
    return {
        **{name: point[name] for name in KEPT if name in point},
        "tokens": tokens,
        **{name: np.nan if value is None else value for name, value in numbers.items()},
        "rate": rate.label,
        "cost_missing": reason or rate.missing,
        "e2e_missing": latency_reason,
    }


def _throughput(point: dict) -> tuple[str, float | None, str | None]:
    """(what is counted, tok/s per device, why there is none)."""
    prefill = point["load_kind"] == "step_tokens"
    tokens = "input, not cached" if prefill else "output"
    value = _number(point, "input_throughput_tok_per_s" if prefill else "output_throughput_tok_per_s")
    if value is not None:
        return tokens, value / _number(point, "devices"), None
    if _number(point, "logical_throughput_tok_per_s") is not None:
        return tokens, None, "only logical tokens are known, which include cached input; they are not priced"
    return tokens, None, f"no {tokens.partition(',')[0]} throughput"


def _latency(point: dict, percentile: int) -> tuple[float | None, str | None]:
    """(E2E latency in ms, why there is none). A percentile above the median needs three values beyond it."""
    value, done = _number(point, f"e2e_p{percentile}_ms"), _count(point, "n_completed")
    needed = 1 if percentile <= 50 else -(-300 // (100 - percentile))
    if done is not None and done < needed:
        return None, f"fewer than the {needed} completed requests that p{percentile} needs"
    return value, None if value is not None else f"no p{percentile} of the E2E latency"


def _number(point: dict, field: str) -> float | None:
    """A finite number above 0, None where it is absent."""
    value = point.get(field)
    if value is None or pd.isna(value):
        return None
    if not (np.isfinite(value) and value > 0):
        where = f"{point['contender']}, load {point['load']:g}, repeat {point['repeat']}"
        raise UserError(f"{where}: {field} is {value:g}; a finite number above 0 is needed, or nothing where unknown")
    return float(value)


def _count(point: dict, field: str) -> int | None:
    value = point.get(field)
    return None if value is None or pd.isna(value) else int(value)


def _check(points: pd.DataFrame, rates: Mapping[str, Rate]) -> None:
    missing = [name for name in NEEDED if name not in points]
    if missing:
        raise UserError(f"the points lack column {', '.join(missing)}")
    if points.empty:
        raise UserError("there are no points; nothing has a cost")
    for field in ("load", "devices"):
        bad = points[points[field].isna()]
        if len(bad):
            raise UserError(f"{bad.iloc[0]['contender']}: {field} is missing in a row; every point needs it")
    twice = points[points.duplicated(list(KEY))]
    if len(twice):
        row = twice.iloc[0]
        raise UserError(
            f"{row['contender']}, {row['workload']}, load {row['load']:g}: repeat {row['repeat']} occurs twice; "
            "give each configuration its own contender name"
        )
    without = [name for name in dict.fromkeys(points["contender"]) if name not in rates]
    if without:
        raise UserError(f"no entry in the rates for {', '.join(without)}; a contender without a rate says why")
