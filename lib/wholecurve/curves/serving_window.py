"""The part of a run under load that its throughput is taken from: everybody has started, nobody is missing yet."""

from collections.abc import Sequence
from dataclasses import dataclass

from wholecurve.curves.metrics import full_window
from wholecurve.trace import RequestTrace

Window = tuple[float, float]


@dataclass(frozen=True)
class SessionSpan:
    """One session as its requests show it: its first one, and when the last of them ended [s]."""

    first: RequestTrace
    requests: tuple[RequestTrace, ...]
    end_s: float


def sessions_of(traces: Sequence[RequestTrace]) -> dict[str, SessionSpan]:
    """Sessions by name, in order of their first request; a request that names none is a session of its own."""
    grouped: dict[str, list[RequestTrace]] = {}
    for request in sorted(traces, key=lambda r: (r.sent_s, r.scheduled_s)):
        grouped.setdefault(request.session or f"request {request.request}", []).append(request)
    return {name: SessionSpan(own[0], tuple(own), max(r.end_s for r in own)) for name, own in grouped.items()}


def measured_window(traces: Sequence[RequestTrace], load_kind: str, load: float) -> tuple[str, Window]:
    """("steady" | "arrivals" | "full", (start, end)) in seconds.

    Closed loops of requests or sessions: from the last first token of the first wave (the first ``load`` sessions) to
    the start of the last session, after which slots run empty; there is no such window with fewer than 2 x ``load``
    sessions. By the clock ("request_rate"): from the first scheduled session to the last one, the drain excluded.
    Where there is none, or no token came in it: the full run, from the first scheduled request to the last one's end.
    """
    spans = list(sessions_of(traces).values())
    if load_kind == "request_rate":
        starts = [span.first.scheduled_s for span in spans]
        name, window = "arrivals", (min(starts), max(starts))
    else:
        name, window = "steady", _steady(spans, int(load))
    if window is not None and window[1] > window[0] and delivered_tokens(traces, window):
        return name, window
    return "full", full_window(traces)


def _steady(spans: Sequence[SessionSpan], slots: int) -> Window | None:
    if len(spans) < 2 * slots:
        return None
    firsts = [span.first.first_token_s for span in spans[:slots] if span.first.completed]
    return (max(firsts), max(span.first.sent_s for span in spans)) if firsts else None


def delivered_tokens(traces: Sequence[RequestTrace], window: Window) -> int:
    """Content tokens that arrived in (start, end] of requests that the server did not fail.

    Those that the client cancelled at the end of its window were served up to then, so they count; otherwise a run
    that is cut off would show less than was delivered.
    """
    start, end = window
    served = (r for r in traces if r.completed or r.outcome == "cancelled")
    return sum(n for r in served for at, n in zip(r.arrivals_s, r.arrival_tokens) if start < at <= end)


def mean_sessions_in_flight(spans: Sequence[SessionSpan], window: Window) -> float | None:
    """Sessions in flight on average: from a session's first scheduled request to its last end, pauses included."""
    start, end = window
    if end <= start:
        return None
    inside = (max(0.0, min(span.end_s, end) - max(span.first.scheduled_s, start)) for span in spans)
    return sum(inside) / (end - start)
