"""AIPerf's requests, one a line: profile_export.jsonl, {metadata, metrics {name: {value, unit}}, error}.

A request knows its own times but not the load that was set: that is read from the summary of the same run beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.readers.aiperf import summary as aiperf
from wholecurve.readers.aiperf.config import conditions
from wholecurve.readers.content import Content, read_content
from wholecurve.readers.found import Found, Notes, found, keep_percentiles
from wholecurve.readers.point import UNSTATED_DEVICES, known, latencies_of_requests, with_decode_speed
from wholecurve.readers.record import Record

FORMAT = "AIPerf records"
LOOKED_AT = 5


@dataclass(frozen=True)
class _Request:
    """One completed request: times in ms, ``itl_ms`` the gaps between its chunks."""

    output_tokens: int
    input_tokens: int | None
    cached_tokens: int | None
    e2e_ms: float
    ttft_ms: float | None
    tpot_ms: float | None
    itl_ms: tuple[float, ...]


def recognises(content: Content) -> bool:
    """True when one of the first records has the phase of a benchmark and metrics."""
    return any(_is_record(record) for record in content.records[:LOOKED_AT])


def summary_of(path: Path) -> Path | None:
    """The summary of the same run, which must not be counted beside these records; None when it is not there."""
    beside = (path.with_name(f"{path.stem}_aiperf.json"), path.with_suffix(".json"))
    return next((one for one in beside if one != path and one.is_file()), None)


def read(content: Content, notes: Notes) -> Found:
    """One point, recomputed from its requests.

    UserError for a record that is cut off or contradicts the summary (a part of the requests has another throughput),
    for a request without its numbers, and where nothing beside the file names the load.
    """
    if content.skipped:
        raise UserError(f"{content.skipped[0]}; throughput is right only over all records")
    measured = _measured(content.records, notes)
    done = [_request(record) for record in measured if not _failed(record)]
    if not done:
        raise UserError(f"{content.path}: none of {len(measured)} measured requests completed; no point can be made")
    window_s = _window_s(measured)
    point = {
        **UNSTATED_DEVICES,
        **_conditions(content.path, measured, done, notes),
        "output_throughput_tok_per_s": sum(r.output_tokens for r in done) / window_s,
        "window_s": window_s,
        "achieved_concurrency": sum(r.e2e_ms for r in done) / 1000 / window_s,
        "n_completed": len(done),
        "n_failed": len(measured) - len(done),
        **_tokens(done),
        **_latencies(content.path, done, notes),
    }
    notes.convert("percentiles and throughput were recomputed from the requests", str(content.path))
    if len(measured) > len(done):
        notes.convert(f"{len(measured) - len(done)} cancelled or failed requests count as failed", str(content.path))
    point = keep_percentiles(with_decode_speed(point), notes, str(content.path))
    return found(content.path, FORMAT, [point], notes)


def _is_record(record: Record) -> bool:
    return isinstance(record.raw("metadata"), dict) and record.has("metadata.benchmark_phase") and record.has("metrics")


def _measured(records: Sequence[Record], notes: Notes) -> list[Record]:
    phases = [record.part("metadata").text("benchmark_phase") for record in records]
    for record, phase in zip(records, phases):
        if phase not in ("warmup", "profiling"):
            raise record.refuse("metadata.benchmark_phase", "warmup or profiling")
    if "warmup" in phases:
        notes.convert(f"{phases.count('warmup')} warm-up requests are not counted", records[0].where)
    return [record for record, phase in zip(records, phases) if phase == "profiling"]


def _failed(record: Record) -> bool:
    cancelled = record.raw("metadata.was_cancelled")
    if not isinstance(cancelled, bool):
        raise record.refuse("metadata.was_cancelled", "true or false")
    return cancelled or record.has("error")


def _request(record: Record) -> _Request:
    metrics = record.part("metrics")
    return _Request(
        output_tokens=metrics.count("output_sequence_length.value", 1),
        input_tokens=metrics.optional_count("input_sequence_length.value", 1),
        cached_tokens=metrics.optional_count("usage_prompt_cache_read_tokens.value"),
        e2e_ms=_ms(metrics, "request_latency"),
        ttft_ms=_ms(metrics, "time_to_first_token") if metrics.has("time_to_first_token") else None,
        tpot_ms=_ms(metrics, "inter_token_latency") if metrics.has("inter_token_latency") else None,
        itl_ms=_gaps(metrics),
    )


def _ms(metrics: Record, name: str) -> float:
    metric = metrics.part(name)
    return metric.positive("value") * aiperf.factor(metric, aiperf.MILLISECONDS)


def _gaps(metrics: Record) -> tuple[float, ...]:
    if not metrics.has("inter_chunk_latency"):
        return ()
    metric = metrics.part("inter_chunk_latency")
    values = metric.raw("value")
    if not isinstance(values, list):
        raise metric.refuse("value", "a list of gaps")
    factor = aiperf.factor(metric, aiperf.MILLISECONDS)
    gaps = Record(metric.where, {f"gap {i}": gap for i, gap in enumerate(values, 1)})
    for name in gaps.fields:
        if gaps.number(name) < 0:
            raise gaps.refuse(name, "a finite number from 0 up")
    return tuple(factor * gaps.number(name) for name in gaps.fields)


def _window_s(measured: Sequence[Record]) -> float:
    starts = [record.part("metadata").count("request_start_ns", 1) for record in measured]
    ends = [record.part("metadata").count("request_end_ns", 1) for record in measured]
    for record, start, end in zip(measured, starts, ends):
        if end < start:
            raise UserError(f"{record.where}: request_end_ns is before request_start_ns; times that rise are needed")
    if max(ends) == min(starts):
        raise UserError(f"{measured[0].where}: all requests start and end at one time; a window above 0 is needed")
    return (max(ends) - min(starts)) / 1e9


def _conditions(path: Path, measured: Sequence[Record], done: Sequence[_Request], notes: Notes) -> dict:
    summary = summary_of(path)
    if summary is None:
        raise UserError(
            f"{path}: no record names the load, and no summary (profile_export_aiperf.json) lies beside it that does; "
            f"at most {_most_in_flight(measured)} requests were in flight, which is what was achieved, not what was set"
        )
    content = read_content(summary)
    if not aiperf.recognises(content):
        raise UserError(f"{summary}: is not a summary of AIPerf; the load of {path} is needed from it")
    counted = {"completed": content.first.optional_count("request_count.avg"), "failed": aiperf.failed(content.first)}
    for state, here in (("completed", len(done)), ("failed", len(measured) - len(done))):
        if counted[state] is not None and counted[state] != here:
            raise UserError(
                f"{path}: {here} {state} requests, but {summary.name} counts {counted[state]}; records of the whole "
                "run are needed"
            )
    notes.convert(f"load and model were read from {summary.name} beside it", str(path))
    return conditions(content.first)


def _most_in_flight(measured: Sequence[Record]) -> int:
    """The largest number of requests that were in flight at one time; one that ends as another starts makes room."""
    changes = [(record.part("metadata").count("request_start_ns"), 1) for record in measured]
    changes += [(record.part("metadata").count("request_end_ns"), -1) for record in measured]
    in_flight = most = 0
    for _, change in sorted(changes):
        in_flight += change
        most = max(most, in_flight)
    return most


def _tokens(done: Sequence[_Request]) -> dict:
    inputs = [r.input_tokens for r in done if r.input_tokens is not None]
    output = sum(r.output_tokens for r in done)
    gaps = sum(len(r.itl_ms) for r in done)
    counted = len(inputs) == len(done)
    return known(
        {
            "output_tokens": output,
            "mean_output_tokens": output / len(done),
            "input_tokens": sum(inputs) if counted else None,
            "mean_input_tokens": sum(inputs) / len(done) if counted else None,
            "cache_hit_rate": _cache_hit_rate(done) if counted else None,
            # One chunk more than gaps in each request.
            "tokens_per_chunk": output / (gaps + len(done)) if all(r.itl_ms for r in done) else None,
        }
    )


def _cache_hit_rate(done: Sequence[_Request]) -> float | None:
    """Share of the prompt tokens that the server read from its cache; None where it does not report it for all."""
    if any(r.cached_tokens is None or r.cached_tokens > r.input_tokens for r in done):
        return None
    return sum(r.cached_tokens for r in done) / sum(r.input_tokens for r in done)


def _latencies(path: Path, done: Sequence[_Request], notes: Notes) -> dict:
    # One token has no time per output token.
    several = [r for r in done if r.output_tokens > 1]
    tpot = [r.tpot_ms for r in several if r.tpot_ms is not None]
    ttft = [r.ttft_ms for r in done if r.ttft_ms is not None]
    for name, values, of in (("time_to_first_token", ttft, done), ("inter_token_latency", tpot, several)):
        if values and len(values) < len(of):
            raise UserError(f"{path}: {len(of) - len(values)} of {len(of)} requests have no {name}; all must have it")
    if tpot:
        notes.convert("inter_token_latency is (E2E - TTFT)/(tokens - 1) of each request: taken as TPOT", str(path))
    else:
        notes.leave_out("decode speed: no request has inter_token_latency; a run without streaming has none", str(path))
    itl = latencies_of_requests("itl", [gap for r in done for gap in r.itl_ms])
    for column in [column for column, gap in itl.items() if gap == 0]:
        del itl[column]
        notes.leave_out(f"{column}: 0, several chunks arrive together", str(path))
    return {
        **latencies_of_requests("ttft", ttft),
        **latencies_of_requests("tpot", tpot),
        **latencies_of_requests("e2e", [r.e2e_ms for r in done]),
        **itl,
    }
