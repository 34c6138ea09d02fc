"""Where a row of InferenceX keeps a metric, and what its zeros mean."""

import math

from wholecurve.errors import UserError
from wholecurve.readers.found import Notes
from wholecurve.readers.record import Record

# Two fields that say the same thing must agree this well; rounding to two digits stays below it.
AGREES = 0.02

_LATENCY = ("ttft", "e2el", "itl", "tpot", "intvty", "e2e_norm_intvty")
_STATISTIC = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}
# Agentic aggregates from July 2026 on nest what other rows hold flat.
_NESTED = {
    f"{flat}_{metric}": f"request_metrics.latency.{metric}.{nested}"
    for metric in _LATENCY
    for flat, nested in _STATISTIC.items()
} | {
    "output_tput_tps": "request_metrics.throughput.output.tokens_per_second",
    "input_tput_tps": "request_metrics.throughput.input.tokens_per_second",
    "total_tput_tps": "request_metrics.throughput.total.tokens_per_second",
    "duration_seconds": "request_metrics.throughput.duration_seconds",
    "tput_per_gpu": "request_metrics.throughput.per_gpu.total_tput_tps",
    "output_tput_per_gpu": "request_metrics.throughput.per_gpu.output_tput_tps",
    "input_tput_per_gpu": "request_metrics.throughput.per_gpu.input_tput_tps",
    "mean_input_tokens": "request_metrics.tokens.input.mean",
    "mean_output_tokens_actual": "request_metrics.tokens.output_actual.mean",
}


def place(record: Record, name: str) -> str:
    """The field that holds a metric: flat, under ``metrics`` (dashboard rows) or nested (agentic aggregates)."""
    places = [name, f"metrics.{name}", *([_NESTED[name]] if name in _NESTED else [])]
    return next((field for field in places if record.state(field) != "missing"), name)


def has(record: Record, name: str) -> bool:
    """True when the row holds the metric and it is not null."""
    return record.has(place(record, name))


def needed(record: Record, name: str) -> float:
    """A metric that the point rests on: a finite number above 0, else UserError with its state."""
    return record.positive(place(record, name))


def wanted(record: Record, name: str, notes: Notes) -> float | None:
    """A metric that the point can do without: None when it is absent; named when it is there and not usable."""
    field = place(record, name)
    if not record.has(field):
        return None
    try:
        return record.positive(field)
    except UserError:
        state = record.state(field)
        why = "0, which these rows use for missing" if state == "0" else state
        notes.leave_out(f"{name} is {why}", record.where)
        return None


def flag(record: Record, name: str) -> bool | None:
    """True or false, also as the texts that some rows write; None when absent. UserError for anything else."""
    field = place(record, name)
    if not record.has(field):
        return None
    value = record.raw(field)
    known = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in known:
        return known[value.strip().lower()]
    raise record.refuse(field, "true or false")


def agree(one: float, other: float) -> bool:
    """True when two positive numbers differ by at most 2 %."""
    return math.isclose(one, other, rel_tol=AGREES)


def is_agentic(record: Record) -> bool:
    """True for a replay of agent sessions; all other rows have fixed prompt and output lengths."""
    kinds = (record.raw(name) for name in ("scenario_type", "benchmark_type"))
    return any(isinstance(kind, str) and kind.startswith("agentic") for kind in kinds)
