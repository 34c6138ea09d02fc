"""From the trace of a point under load to its numbers: closed loops, sessions of turns, arrivals by the clock."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from wholecurve.curves.metrics import (
    full_window,
    latency_metrics,
    mean_in_flight,
    percentile,
    rate,
    speed_metrics,
    tokens_in,
    tokens_per_chunk,
)
from wholecurve.curves.serving_flags import point_flags
from wholecurve.curves.serving_window import (
    SessionSpan,
    Window,
    delivered_tokens,
    mean_sessions_in_flight,
    measured_window,
    sessions_of,
)
from wholecurve.curves.slo import Slo, divide
from wholecurve.errors import UserError
from wholecurve.trace import OUTCOMES, RequestTrace

LOAD_KINDS = ("concurrency", "sessions", "request_rate")
# What a load generator tells of itself; each goes into the row as client_<name>.
LAG_FIELDS = (
    *("send_late_p50_ms", "send_late_p99_ms", "send_late_max_ms"),
    *("loop_delay_p50_ms", "loop_delay_p99_ms", "loop_delay_max_ms"),
    *("cpu_s", "wall_s", "processes", "clock_uncertainty_ms"),
)


def reduce_serving(
    traces: Sequence[RequestTrace],
    load_kind: str,
    load: float,
    *,
    slo: Slo | None = None,
    lag: Mapping | None = None,
    planned: Mapping[str, int] | None = None,
    devices: int = 1,
    device_kind: str = "cpu",
) -> dict:
    """The point-row metrics of one point of a server under load: those of `reduce_trace`, and what only a server has.

    ``load`` counts requests in flight ("concurrency"), sessions in flight ("sessions") or sessions started per second
    ("request_rate"). ``window`` names what throughputs are over (`measured_window`); tokens of requests that the client
    cancelled count in it, tokens of failed ones do not, and neither enters a latency. ``lag`` is what the load
    generator says of itself, ``planned`` the number of turns of each session by name: then turns that were never sent
    are counted, and a session is completed only when all of them are.

    Occupancy divides by ``load`` for "concurrency", else by the requests that were in flight. Input throughput counts
    tokens that no cache gave, of requests whose first token came in the window; it and the hit rate are None unless
    every request tells its cached tokens. ITL is the gap between chunks with content. ``slo_share`` has every failure
    in its denominator, goodput counts requests that kept the SLO. What cannot be known is None, never 0. Raises
    UserError for no requests, an unknown kind of load, a load that is no positive number, or a contradictory trace.
    """
    _check(traces, load_kind, load, devices)
    done, spans = [r for r in traces if r.completed], sessions_of(traces)
    name, window = measured_window(traces, load_kind, load)
    full = full_window(traces)
    throughput = rate(delivered_tokens(traces, window), window)
    speeds, in_flight = speed_metrics(done), mean_in_flight(traces, window)
    row = {
        "load_kind": load_kind,
        "load": load,
        "devices": devices,
        "device_kind": device_kind,
        **speeds,
        "output_throughput_tok_per_s": throughput,
        "window": name,
        "window_s": window[1] - window[0],
        "output_throughput_full_tok_per_s": rate(delivered_tokens(traces, full), full),
        "full_window_s": full[1] - full[0],
        "request_throughput_per_s": _per_second(done, window),
        **_input_metrics(done, window),
        **latency_metrics(done),
        **_itl(done),
        "n_requests": len(traces),
        "n_completed": len(done),
        "n_failed": len(traces) - len(done),
        "outcomes": _outcomes(traces),
        **_lengths(done),
        "tokens_per_chunk": tokens_per_chunk(done),
        "token_sources": dict(Counter(r.token_source or "not stated" for r in done)),
        "occupancy": _occupancy(throughput, load if load_kind == "concurrency" else in_flight, speeds),
        "achieved_concurrency": in_flight,
        **_session_metrics(spans, window, planned),
        "latency_growth": _latency_growth(done) if load_kind == "request_rate" else None,
        **_goodput(traces, slo, window),
        **_client(traces, lag or {}),
    }
    return {**row, "flags": point_flags(row)}


def _input_metrics(done: Sequence[RequestTrace], window: Window) -> dict:
    """New and logical input tokens. Whether a prompt token is new is known only where the server tells its cache."""
    told = [r for r in done if r.cached_tokens is not None]
    counted, known = all(r.prompt_tokens for r in done), bool(done) and len(told) == len(done)
    begun = [r for r in done if window[0] < r.first_token_s <= window[1]]
    prompts = sum(r.prompt_tokens for r in done) if counted else 0
    cached = sum(r.cached_tokens for r in done) if known else None
    new = sum(r.prompt_tokens - r.cached_tokens for r in begun) if known and counted else 0
    return {
        "input_throughput_tok_per_s": rate(new, window),
        "logical_input_throughput_tok_per_s": rate(sum(r.prompt_tokens for r in begun) if counted else 0, window),
        "input_tokens": prompts or None,
        "mean_input_tokens": prompts / len(done) if prompts else None,
        "cached_input_tokens": cached,
        "cache_hit_rate": cached / prompts if known and prompts else None,
        "n_cache_told": len(told),
    }


def _itl(done: Sequence[RequestTrace]) -> dict[str, float | None]:
    """Percentiles of the gaps between chunks in ms. Gaps of one request are alike, so requests must be many enough."""
    gaps = [later - earlier for r in done for earlier, later in pairwise(_content_times(r))]
    enough = {50: 1, 90: 30, 99: 300}
    found = {q: percentile(gaps, q) if len(done) >= least else None for q, least in enough.items()}
    return {f"itl_p{q}_ms": None if gap is None else 1e3 * gap for q, gap in found.items()}


def _content_times(request: RequestTrace) -> list[float]:
    return [at for at, n in zip(request.arrivals_s, request.arrival_tokens) if n > 0]


def _outcomes(traces: Sequence[RequestTrace]) -> dict[str, int]:
    """How many ended in which way, in the order of OUTCOMES; an engine without outcomes completes or fails."""
    counts = Counter(r.outcome or ("completed" if r.completed else "failed") for r in traces)
    return {name: counts[name] for name in (*OUTCOMES, "failed") if counts[name]}


def _lengths(done: Sequence[RequestTrace]) -> dict:
    tokens, asked = sum(r.output_tokens for r in done), [r for r in done if r.wanted_tokens is not None]
    thoughts = [r.reasoning_tokens for r in done if r.reasoning_tokens is not None]
    return {
        "output_tokens": tokens,
        "mean_output_tokens": tokens / len(done) if done else None,
        "reasoning_tokens": sum(thoughts) if thoughts else None,
        "n_short": sum(r.output_tokens < r.wanted_tokens for r in asked),
        "n_long": sum(r.output_tokens > r.wanted_tokens for r in asked),
    }


def _occupancy(throughput: float | None, slots: float | None, speeds: dict) -> float | None:
    speed = speeds["decode_speed_tok_per_s"]
    return throughput / (slots * speed) if throughput and slots and speed else None


def _session_metrics(spans: Mapping[str, SessionSpan], window: Window, planned: Mapping[str, int] | None) -> dict:
    completed = {name: sum(r.completed for r in span.requests) for name, span in spans.items()}
    wanted = {name: (planned or {}).get(name, len(span.requests)) for name, span in spans.items()}
    return {
        "n_sessions": len(spans),
        "sessions_completed": sum(completed[name] >= wanted[name] for name in spans),
        "n_not_sent": sum(wanted[name] - len(spans[name].requests) for name in spans) if planned is not None else None,
        "achieved_sessions": mean_sessions_in_flight(list(spans.values()), window),
    }


def _latency_growth(done: Sequence[RequestTrace]) -> float | None:
    """Median E2E per token of the last third of the requests over that of the first third; None for fewer than 30."""
    if len(done) < 30:
        return None
    per_token = [r.e2e_s / r.output_tokens for r in sorted(done, key=lambda r: r.scheduled_s)]
    third = len(done) // 3
    return float(np.median(per_token[-third:]) / np.median(per_token[:third]))


def _goodput(traces: Sequence[RequestTrace], slo: Slo | None, window: Window) -> dict:
    if slo is None:
        return dict.fromkeys(("slo_share", "slo_met", "n_slo_unknown", "goodput_per_s", "goodput_tok_per_s"))
    found, length = divide(traces, slo), window[1] - window[0]
    known = found.share is not None and length > 0
    return {
        "slo_share": found.share,
        "slo_met": None if found.share is None else found.share >= slo.share,
        "n_slo_unknown": len(found.unknown),
        # Nothing in time is a measured zero: requests were there, and none kept the SLO.
        "goodput_per_s": _ended(found.kept, window) / length if known else None,
        "goodput_tok_per_s": tokens_in(found.kept, window) / length if known else None,
    }


def _per_second(done: Sequence[RequestTrace], window: Window) -> float | None:
    return rate(_ended(done, window), window)


def _ended(done: Sequence[RequestTrace], window: Window) -> int:
    return sum(window[0] < r.end_s <= window[1] for r in done)


def _client(traces: Sequence[RequestTrace], lag: Mapping) -> dict:
    """``client_lag_ms``: the larger of the median lateness of sending and the median delay of the client's loop.

    The generator knows better than the traces how late it was: a request may wait for a free place by intent.
    """
    late = lag.get("send_late_p50_ms")
    if late is None:
        late = 1e3 * float(np.median([r.sent_s - r.scheduled_s for r in traces]))
    return {
        "client_lag_ms": max(late, lag.get("loop_delay_p50_ms") or 0.0),
        **{f"client_{name}": lag[name] for name in LAG_FIELDS if name in lag},
    }


def _check(traces: Sequence[RequestTrace], load_kind: str, load: float, devices: int) -> None:
    if load_kind not in LOAD_KINDS:
        raise UserError(f"load_kind is {load_kind!r}; it must be one of {', '.join(LOAD_KINDS)}")
    if not 0 < load < math.inf or (load_kind != "request_rate" and load != int(load)):
        wanted = "a finite number above 0" if load_kind == "request_rate" else "a whole number above 0"
        raise UserError(f"{load_kind} is {load}; {wanted} is needed (no limit at all is not a load)")
    if devices < 1:
        raise UserError(f"devices is {devices}; it must be at least 1")
    if not traces:
        raise UserError("the trace has no requests; a point needs at least one")
    for r in traces:
        r.check()
        if r.outcome is not None and r.outcome not in OUTCOMES:
            raise UserError(f"request {r.request}: outcome is {r.outcome!r}; it must be one of {', '.join(OUTCOMES)}")
        if r.outcome is not None and (r.outcome == "completed") != r.completed:
            raise UserError(
                f"request {r.request}: outcome {r.outcome!r} with {r.output_tokens} tokens and error {r.error!r}; "
                "completed means tokens and no error, everything else is a failure"
            )
