"""What only agentic rows of InferenceX hold: replayed agent sessions, whose input is mostly cached."""

from wholecurve.readers.found import Notes
from wholecurve.readers.inferencex.fields import has, wanted
from wholecurve.readers.record import Record

_HIT_RATES = (
    "server_metrics.cache.overall_cache_hit_rate",
    "server_metrics.cache.gpu_cache_hit_rate",
    "server_gpu_cache_hit_rate",
)


def agentic_metrics(record: Record, completed: int | None, notes: Notes) -> dict:
    """Columns that a point of an agentic row has beside those of any row; None where the row does not say."""
    notes.convert("conc counts live session trees of agents, not GPUs and not requests in flight")
    notes.convert("tokens of agentic rows include cached input: their total is logical throughput, never output")
    notes.convert("ITL of agentic rows is a time per output token of one request, as TPOT is: it is not shown as ITL")
    seconds, latency = wanted(record, "duration_seconds", notes), wanted(record, "mean_e2el", notes)
    in_flight = latency * completed / seconds if None not in (seconds, latency, completed) else None
    return {
        "window_s": seconds,
        "mean_input_tokens": wanted(record, "mean_input_tokens", notes),
        "mean_output_tokens": wanted(record, "mean_output_tokens_actual", notes),
        "cache_hit_rate": _cache_hit_rate(record, notes),
        "achieved_concurrency": in_flight,
        "e2e_speed_p90_tok_per_s": _slow_e2e_speed(record, notes),
    }


def _cache_hit_rate(record: Record, notes: Notes) -> float | None:
    """The share of input tokens that the server took from a cache, as it measured it."""
    if has(record, "theoretical_cache_hit_rate") or record.has("request_metrics.cache.theoretical_cache_hit_rate"):
        notes.leave_out("theoretical_cache_hit_rate is what the sessions would allow, not what was measured")
    name = next((name for name in _HIT_RATES if has(record, name)), None)
    rate = wanted(record, name, notes) if name else None
    if rate is not None and rate > 1:
        notes.leave_out(f"{name} is above 1", record.where)
        return None
    if rate is not None and "gpu" in name:
        notes.convert("cache_hit_rate is that of the GPU's own cache, without offloaded tokens", record.where)
    return rate


def _slow_e2e_speed(record: Record, notes: Notes) -> float | None:
    """p90 of the E2E-normalised speed: 1/p90(E2E per output token), the slow side."""
    slow, median = (wanted(record, f"{s}_e2e_norm_intvty", notes) for s in ("p90", "median"))
    if slow is None:
        return None
    if median is not None and slow > median:
        notes.leave_out("p90_e2e_norm_intvty is above its median: it is of the fast side", record.where)
        return None
    notes.convert(
        "e2e_norm_intvty is tokens per second over the whole request, TTFT included; its p90 is the slow side"
    )
    return slow
