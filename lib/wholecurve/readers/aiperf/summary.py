"""AIPerf and its predecessor GenAI-Perf: profile_export_aiperf.json and profile_export_genai_perf.json.

One object per run: metric -> {unit, avg, p50, p90, …}. The load stands only in the configuration that AIPerf copies
into the file. What AIPerf calls inter-token latency is (E2E - TTFT)/(output tokens - 1) of each request, a TPOT; the
gaps between chunks are its inter_chunk_latency. (AIPerf 0.13, metrics/types/inter_token_latency_metric.py.)
"""

from collections.abc import Mapping

from wholecurve.errors import UserError
from wholecurve.readers.aiperf.config import conditions, measured_phase
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

FORMAT = "AIPerf"

MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "sec": 1e3, "s": 1e3}
SECONDS = {unit: factor / 1e3 for unit, factor in MILLISECONDS.items()}
TOKENS_PER_S = {"tokens/sec": 1.0, "tokens/s": 1.0}
REQUESTS_PER_S = {"requests/sec": 1.0, "requests/s": 1.0}
TOKENS = {"tokens": 1.0}
SHARES = {"%": 0.01}
CACHED = "overall_usage_prompt_cache_read_pct"

LATENCIES = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "e2e": "request_latency",
    "itl": "inter_chunk_latency",
}
KNOWN = (*LATENCIES.values(), "output_token_throughput", "request_throughput", "output_sequence_length")


def recognises(content: Content) -> bool:
    """True for an object that has at least two of the tool's metrics."""
    value = content.value
    return isinstance(value, dict) and sum(_is_metric(value.get(name)) for name in KNOWN) >= 2


def read(content: Content, notes: Notes) -> Found:
    """The one point of the file."""
    phase = measured_phase(content.path)
    return collect(
        content.path, _tool(content.first), content.records, notes, lambda record, to: to_point(record, to, phase)
    )


def _is_metric(value: object) -> bool:
    return isinstance(value, Mapping) and "unit" in value and ("avg" in value or "p50" in value)


def _tool(record: Record) -> str:
    old = record.has("input_config") and not any(
        record.has(name) for name in ("aiperf_version", "schema_version", "input_config.loadgen", "input_config.phases")
    )
    return "GenAI-Perf" if old else FORMAT


def to_point(record: Record, notes: Notes, phase: str | None = None) -> dict:
    """The point of one run, or of one phase of it by name.

    UserError where its load, throughput or a latency is not a number above 0.
    """
    where = record.where
    if record.raw("is_complete") is False:
        raise UserError(f"{where}: is_complete is false; the run broke off, so its numbers are not those of the load")
    point = {**UNSTATED_DEVICES, **conditions(record, phase)}
    point["output_throughput_tok_per_s"] = _stat(record, "output_token_throughput", "avg", TOKENS_PER_S)
    for name, metric in LATENCIES.items():
        point |= _latency(record, notes, name, metric)
    point |= _counts(record)
    point |= _rates(record)
    check_order(point, where)
    _say_how(record, notes, point)
    return keep_percentiles(with_decode_speed(point), notes, where)


def factor(metric: Record, units: Mapping[str, float]) -> float:
    """The factor of a metric's unit; UserError for a unit that is not one of ``units``."""
    unit = metric.text("unit")
    if unit not in units:
        raise UserError(f"{metric.where}: unit is {unit!r}; one of {', '.join(units)} is needed")
    return units[unit]


def _stat(record: Record, metric: str, name: str, units: Mapping[str, float]) -> float:
    part = record.part(metric)
    return part.positive(name) * factor(part, units)


def _optional(record: Record, metric: str, name: str, units: Mapping[str, float]) -> float | None:
    return _stat(record, metric, name, units) if record.has(metric) and record.part(metric).has(name) else None


def _latency(record: Record, notes: Notes, name: str, metric: str) -> dict:
    found = {}
    if record.has(metric):
        part = record.part(metric)
        found = latencies_of_statistics(name, part, factor(part, MILLISECONDS), notes)
    if name == "tpot" and "tpot_p50_ms" not in found:
        notes.leave_out(
            f"decode speed: {metric} is missing or has no p50; a run without streaming has none", record.where
        )
    return found


def _counts(record: Record) -> dict:
    return known(
        {
            "n_completed": _count(record, "request_count"),
            "n_failed": failed(record),
            "mean_input_tokens": _optional(record, "input_sequence_length", "avg", TOKENS),
            "mean_output_tokens": _optional(record, "output_sequence_length", "avg", TOKENS),
            "input_tokens": _count(record, "total_isl"),
            "output_tokens": _count(record, "total_osl"),
        }
    )


def _count(record: Record, metric: str, least: int = 1) -> int | None:
    return record.part(metric).count("avg", least) if record.has(metric) else None


def failed(record: Record) -> int | None:
    """How many requests of a run failed, None where the file does not say it.

    The counter appears with the first error; without it, an empty summary of errors says that there was none.
    """
    errors = record.raw("error_summary")
    if record.has("error_request_count"):
        return _count(record, "error_request_count", least=0)
    if not isinstance(errors, list) or not all(isinstance(error, Mapping) for error in errors):
        return None
    return sum(Record(f"{record.where}, error_summary", error).count("count") for error in errors)


def _rates(record: Record) -> dict:
    requests_per_s = _optional(record, "request_throughput", "avg", REQUESTS_PER_S)
    mean_e2e_s = _optional(record, "request_latency", "avg", SECONDS)
    return known(
        {
            "logical_throughput_tok_per_s": _optional(record, "total_token_throughput", "avg", TOKENS_PER_S),
            "window_s": _optional(record, "benchmark_duration", "avg", SECONDS),
            "cache_hit_rate": _cache_hit_rate(record),
            # Little's law: what was in flight on average, which is not what was asked for.
            "achieved_concurrency": requests_per_s * mean_e2e_s if requests_per_s and mean_e2e_s else None,
        }
    )


def _cache_hit_rate(record: Record) -> float | None:
    """Share of the prompt tokens that the server read from its cache; the metric is absent where it reports none."""
    if not record.has(CACHED):
        return None
    share = factor(record.part(CACHED), SHARES) * record.part(CACHED).number("avg")
    if not 0 <= share <= 1:
        raise record.refuse(f"{CACHED}.avg", "a share of the prompt tokens")
    return share


def _say_how(record: Record, notes: Notes, point: dict) -> None:
    if "tpot_p50_ms" in point:
        notes.convert("inter_token_latency is (E2E - TTFT)/(tokens - 1) of each request: taken as TPOT", record.where)
    if "tpot_p90_ms" in point:
        notes.convert(
            "p90 decode speed is of the slow side, 1/p90(inter_token_latency); p90 of output_token_throughput_per_user "
            "is the fastest tenth of the requests and is not used",
            record.where,
        )
    if "itl_p50_ms" in point:
        notes.convert("inter_chunk_latency, the gaps between chunks, is taken as ITL", record.where)
    if record.has("warmup_metrics"):
        notes.convert("warm-up requests are not in these numbers", record.where)
    if record.raw("was_cancelled") is True:
        notes.leave_out("was_cancelled is true: the run was stopped early, so it is shorter than planned", record.where)
