"""One point of one contender: warm-up, counters, the load, counters, and what came out of it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import monotonic, sleep

from wholecurve.curves.serving_metrics import reduce_serving
from wholecurve.errors import UserError
from wholecurve.runs.folder import rounded
from wholecurve.studies.serving.bench import Bench
from wholecurve.studies.serving.live import LiveServer
from wholecurve.studies.serving.load.run import LoadResult, run_load
from wholecurve.studies.serving.plan_parts import RUNNING, RequestsPlan
from wholecurve.studies.serving.schedule import ServingPoint
from wholecurve.trace import RequestTrace

# How requests of a server end whose process is gone, and how long after that is seen.
_LOST = ("disconnected", "not connected", "truncated")
_GONE_WITHIN_S = 3.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class Measured:
    """A finished point. ``died``: the server's process ended before the last answer."""

    row: dict
    traces: list[RequestTrace]
    died: bool


def measure(
    bench: Bench,
    live: LiveServer,
    point: ServingPoint,
    requests: RequestsPlan | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Measured | None:
    """Measure one point; None when the server died before anything was measured.

    What a server does is an outcome of a request, never an error; UserError is for what the plan asks in vain.
    """
    began = monotonic()
    prepared = bench.prepared(point, requests)
    endpoint, sessions = live.endpoint(), prepared.sessions
    processes, seconds = bench.plan.client.processes, (requests or bench.plan.requests).seconds
    with live.awake():
        warm_up, warm_load = bench.warm_up(point, sessions)
        warmed = run_load(endpoint, warm_up, warm_load)
        if _has_died(live, warmed.traces):
            return None
        before = _counters(live)
        result = run_load(
            endpoint,
            sessions,
            bench.load(point),
            processes=processes,
            until_s=seconds if point.load_kind != "request_rate" else None,
            on_progress=on_progress,
        )
        died = _has_died(live, result.traces)
        after = None if died else _counters(live)
        resident = None if died else live.server.resident_bytes()
    if not result.traces:
        raise UserError(
            f"contender {live.contender.name}: no request was sent ({result.gave_up or 'no session began'})"
        )
    traces = [rounded(trace) for trace in result.traces]
    contender = live.contender
    row = {
        **asdict(point),
        "source": contender.source,
        "hardware": None if contender.runs_on in ("cpu", "unknown") else contender.runs_on,
        **reduce_serving(
            traces,
            point.load_kind,
            point.load,
            slo=bench.slo,
            lag=result.lag,
            planned={session.session_id: len(session.turns) for session in sessions},
            devices=contender.devices,
            device_kind=contender.counted_per,
        ),
        **_cache(before, after),
        "prefix_cache": bench.plan.prefix_cache,
        "usd_per_hour": contender.usd_per_hour,
        "resident_bytes": resident,
        "n_warm_up": len(warmed.traces),
        "n_warm_up_failed": sum(not trace.completed for trace in warmed.traces),
        "workload_notes": prepared.notes,
        "gave_up": result.gave_up,
        "restarts": live.restarts,
        "server_started": live.started,
        "took_s": round(monotonic() - began, 3),
        "settings": {**live.server.described, "idle": live.idle},
    }
    row["flags"] = [*row["flags"], *_flags(row, died, result)]
    return Measured(row, traces, died)


def _has_died(live: LiveServer, traces: list[RequestTrace]) -> bool:
    """Whether its process ended. Connections end a moment before it is seen to be gone, so lost ones are waited on."""
    if live.contender.server == RUNNING:
        return False
    until = monotonic() + (_GONE_WITHIN_S if any(trace.outcome in _LOST for trace in traces) else 0.0)
    while live.is_alive() and monotonic() < until:
        sleep(_LOOK_S)
    return not live.is_alive()


def _counters(live: LiveServer) -> object | None:
    """The server's counters; None where it has none, or does not answer."""
    try:
        return live.server.counters()
    except UserError:
        return None


def _cache(before, after) -> dict:
    """What the server's own counters say of the load; None where they are not there at both ends of it."""
    between = after.since(before) if before is not None and after is not None else None
    return {
        "counters": asdict(between) if between is not None else None,
        "server_cache_hit_rate": between.hit_rate if between is not None else None,
    }


def _flags(row: dict, died: bool, result: LoadResult) -> list[str]:
    """What the study knows against a point, beside what its numbers say against themselves."""
    flags = []
    if died:
        flags.append("server-died: its process ended before the last answer, also after it was started anew")
    if result.gave_up:
        flags.append(f"gave-up: {result.gave_up}")
    rates = {"usage": row["cache_hit_rate"], "the server's counters": row["server_cache_hit_rate"]}
    for source, rate in rates.items():
        if row["prefix_cache"] == "off" and rate:
            flags.append(f"prefix-cache: it is off, yet {rate:.1%} of prompt tokens came from it by {source}")
    if row["prefix_cache"] == "warm" and not any(rates.values()):
        flags.append("prefix-cache: it was warmed, and no hit is seen; the server does not tell, or does not reuse")
    if row["n_warm_up_failed"]:
        flags.append(f"warm-up: {row['n_warm_up_failed']} of {row['n_warm_up']} requests failed")
    return flags
