"""inference-perf (kubernetes-sigs) lifecycle reports, one per stage, JSON or YAML, in seconds.

Its time_per_output_token is (last token - first token)/(tokens - 1) of each request, a TPOT; inter_token_latency pools
the gaps, with 0 between tokens of one chunk. (inference_perf/reportgen/base.py.)
"""

from wholecurve.curves.gates.conditions import UNSTATED_WORKLOAD
from wholecurve.errors import UserError
from wholecurve.readers.content import Content
from wholecurve.readers.found import Found, Notes, collect, keep_percentiles
from wholecurve.readers.point import (
    UNSTATED_DEVICES,
    check_order,
    known,
    latencies_of_statistics,
    with_decode_speed,
)
from wholecurve.readers.record import Record

FORMAT = "inference-perf"

BLOCKS = {"benchmark_time_seconds", "load_summary", "successes", "failures"}
STATISTICS = {"p50": "median", "p90": "p90", "p99": "p99"}
LATENCIES = {
    "ttft": "time_to_first_token",
    "tpot": "time_per_output_token",
    "e2e": "request_latency",
    "itl": "inter_token_latency",
}


def recognises(content: Content) -> bool:
    """True for an object with the blocks of a lifecycle report."""
    value = content.value
    return isinstance(value, dict) and len(BLOCKS & set(value)) >= 3 and "successes" in value


def read(content: Content, notes: Notes) -> Found:
    """The one point of a stage. UserError for a report over all stages, which has no one load."""
    return collect(content.path, FORMAT, content.records, notes, _point)


def _point(record: Record, notes: Notes) -> dict:
    where = record.where
    done, failed = record.part("successes"), record.part("failures")
    point = {
        **UNSTATED_DEVICES,
        # The report names neither model nor engine; the settings lie in a file of their own.
        "contender": FORMAT,
        "workload": UNSTATED_WORKLOAD,
        **_load(record),
        "output_throughput_tok_per_s": done.positive("throughput.output_tokens_per_sec"),
        "n_completed": done.count("count", 1),
        "n_failed": failed.count("count"),
        "window_s": record.positive("benchmark_time_seconds"),
        **_latencies(done, notes),
        **_tokens(done, notes),
        **_client_lag(record),
    }
    requests_per_s = done.optional_positive("throughput.requests_per_sec")
    e2e_s = done.optional_positive("latency.request_latency.mean")
    if requests_per_s and e2e_s:
        point["achieved_concurrency"] = requests_per_s * e2e_s
    notes.convert("latencies are in seconds", where)
    if "tpot_p50_ms" in point:
        notes.convert("time_per_output_token is (last - first token)/(tokens - 1) of each request, a TPOT", where)
    check_order(point, where)
    return keep_percentiles(with_decode_speed(point), notes, where)


def _load(record: Record) -> dict:
    """A stage of a closed loop has a concurrency, and its rate is then only what the tool computed from it."""
    load = record.part("load_summary")
    if load.has("concurrency"):
        return {"load_kind": "concurrency", "load": load.count("concurrency", 1)}
    if not load.has("requested_rate"):
        raise UserError(
            f"{record.where}: load_summary.requested_rate is {load.state('requested_rate')}; a report over all stages "
            "has no one load, the report of a stage is needed"
        )
    return {"load_kind": "request_rate", "load": load.positive("requested_rate")}


def _latencies(done: Record, notes: Notes) -> dict:
    found = {}
    for name, metric in LATENCIES.items():
        place = f"latency.{metric}"
        if done.has(place):
            found |= latencies_of_statistics(name, done.part(place), 1000.0, notes, STATISTICS)
        if name != "itl" and f"{name}_p50_ms" not in found:
            notes.leave_out(f"{name.upper()}: no median of {metric}; replies without streaming have none", done.where)
    return found


def _tokens(done: Record, notes: Notes) -> dict:
    mismatches = done.optional_count("token_count_mismatches")
    if mismatches:
        notes.leave_out(f"tokens of {mismatches} requests: the client counts others than the server", done.where)
    place = "prompt_len" if done.has("prompt_len.mean") else "prompt_tokens"
    return known(
        {
            "mean_input_tokens": done.optional_positive(f"{place}.mean"),
            "mean_output_tokens": done.optional_positive("output_len.mean"),
            "logical_throughput_tok_per_s": done.optional_positive("throughput.total_tokens_per_sec"),
            "cache_hit_rate": _cache_hit_rate(done, notes),
        }
    )


def _cache_hit_rate(done: Record, notes: Notes) -> float | None:
    if not done.has("prompt_tokens.cached"):
        return None
    cached, total = done.number("prompt_tokens.cached"), done.positive("prompt_tokens.total")
    if not 0 <= cached <= total:
        raise UserError(f"{done.where}: {cached:g} cached of {total:g} prompt tokens; a share from 0 to 1 is needed")
    if cached == 0:
        notes.leave_out("cache_hit_rate: 0 is also written where the server does not report cached tokens", done.where)
        return None
    return cached / total


def _client_lag(record: Record) -> dict:
    """Scheduled to sent; latencies start when the request was sent, so they leave it out."""
    place = "load_summary.schedule_delay.median"
    return {"client_lag_ms": max(0.0, 1000 * record.number(place))} if record.has(place) else {}
