"""Under which load one serving run (vLLM, SGLang) ran: concurrency, request rate, or none that can be named."""

import math

from wholecurve.errors import UserError
from wholecurve.readers.found import Notes
from wholecurve.readers.record import Record
from wholecurve.readers.serving.totals import Totals

# Requests that were all sent in the first hundredth of a run came at once, whatever rate was asked for.
AT_ONCE_SHARE = 0.01
# Fewer in flight than this share of max_concurrency: the request rate, and not the limit, set the load.
LIMIT_REACHED = 0.8
# More in flight on average than max_concurrency allows at any time, beyond what estimates from means are off.
EXCEEDED = 1.1
# A server that keeps up completes requests about as fast as they come; ramp and drain cost up to a third.
KEPT_UP = 2 / 3


def read_load(record: Record, notes: Notes, totals: Totals, sent: int, in_flight: float | None) -> dict:
    """``load_kind`` and ``load`` of a row. UserError where the file does not say how many requests were in flight.

    ``sent`` is how many requests were sent, ``in_flight`` how many were in flight on average, where that is known.
    """
    limit = _limit(record)
    rate = read_rate(record)
    at_once = rate is not None and sent / rate < AT_ONCE_SHARE * totals.duration_s
    if limit is None:
        return _by_rate(record, notes, totals, sent, rate, at_once)
    if limit > sent:
        raise UserError(
            f"{record.where}: max_concurrency is {limit:g}, but {sent} requests were sent: that many were never in "
            "flight; more requests than the concurrency are needed"
        )
    if rate is not None and not at_once and in_flight is not None and in_flight < LIMIT_REACHED * limit:
        notes.convert("load is the request rate where it kept fewer requests in flight than max_concurrency allows")
        return _by_rate(record, notes, totals, sent, rate, at_once)
    if in_flight is not None and in_flight > EXCEEDED * limit:
        notes.leave_out(
            "max_concurrency as the number of requests in flight: more were (results of several clients in one?)",
            f"{record.where}: {in_flight:.0f} on average, {limit} at most",
        )
    return {"load_kind": "concurrency", "load": limit}


def _by_rate(record: Record, notes: Notes, totals: Totals, sent: int, rate: float | None, at_once: bool) -> dict:
    limit = "max_concurrency is 0, which is no limit" if record.has("max_concurrency") else _absent(record)
    if record.has("ramp_up_strategy"):
        raise UserError(f"{record.where}: the request rate was ramped up, so this row has no one load")
    if rate is None:
        raise UserError(
            f"{record.where}: {limit} and request_rate is {record.state('request_rate')}, so the load is not known; "
            "set the client's --max-concurrency"
        )
    if at_once:
        raise UserError(
            f"{record.where}: {limit} and request_rate is {_rate_text(rate)}: all {sent} requests were sent at once, "
            "so the load is not known; set the client's --max-concurrency"
        )
    if totals.completed / totals.duration_s < KEPT_UP * rate:
        notes.leave_out(
            "whether the load was ever steady: requests completed far slower than they came, so queues grew and "
            "latency depends on how long the run was",
            record.where,
        )
    return {"load_kind": "request_rate", "load": rate}


def _limit(record: Record) -> int | None:
    """None for no limit: the field is absent, null, or 0."""
    return record.optional_count("max_concurrency") or None


def read_rate(record: Record) -> float | None:
    """Requests per second, infinite for all at once; None where absent or not a number but the replay of a trace."""
    value = record.raw("request_rate")
    if not record.has("request_rate") or value == "trace":
        return None
    if value in ("inf", "Infinity", math.inf) and not isinstance(value, bool):
        return math.inf
    return record.positive("request_rate")


def _rate_text(rate: float) -> str:
    return "infinite" if math.isinf(rate) else f"{rate:g} per s"


def _absent(record: Record) -> str:
    return f"max_concurrency is {record.state('max_concurrency')}"
