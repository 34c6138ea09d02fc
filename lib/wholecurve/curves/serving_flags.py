"""What the numbers of one point under load say against itself, each flag as "name: what, and what follows"."""

from collections.abc import Callable, Mapping

from wholecurve.curves.gates.one_curve import LAG_SHARE, LITTLE_HIGH, LITTLE_LOW, OCCUPANCY_HIGH, REQUESTS_FOR

# Latency that doubles from the first to the last third of the requests is a queue that grows.
GROWTH = 2.0


def point_flags(row: Mapping) -> list[str]:
    """Every flag of a row of `reduce_serving`, in a fixed order; an empty list means that nothing was found."""
    return [f"{name}: {text}" for name, check in FLAGS.items() if (text := check(row))]


def _failures(row: Mapping) -> str | None:
    if not row["n_failed"]:
        return None
    kinds = ", ".join(f"{n} {kind}" for kind, n in row["outcomes"].items() if kind != "completed")
    return f"{row['n_failed']} of {row['n_requests']} requests did not complete ({kinds}); latencies are the others'"


def _not_sent(row: Mapping) -> str | None:
    if not row["n_not_sent"]:
        return None
    return f"{row['n_not_sent']} turns were never sent, because turns that they wait for failed or time ran out"


def _short(row: Mapping) -> str | None:
    if not row["n_short"]:
        return None
    return f"{row['n_short']} of {row['n_completed']} replies have fewer tokens than were asked for: another workload"


def _long(row: Mapping) -> str | None:
    if not row["n_long"]:
        return None
    return f"{row['n_long']} of {row['n_completed']} replies have more tokens than were asked for: a count is wrong"


def _token_sources(row: Mapping) -> str | None:
    sources = row["token_sources"]
    if len(sources) < 2 and "chunks" not in sources:
        return None
    counted = ", ".join(f"{n} by {source}" for source, n in sources.items())
    return f"tokens of requests are counted in different ways or by chunks ({counted})"


def _client_lag(row: Mapping) -> str | None:
    lag, tpot = row["client_lag_ms"], row["tpot_p50_ms"]
    if not tpot or lag <= LAG_SHARE * tpot:
        return None
    return f"the client is late by {lag:.2f} ms in the median, above {LAG_SHARE:.0%} of a TPOT of {tpot:.2f} ms"


def _client_tail(row: Mapping) -> str | None:
    tail, tpot = row.get("client_loop_delay_p99_ms"), row["tpot_p50_ms"]
    if tail is None or not tpot or tail <= tpot:
        return None
    return f"the client's own p99 delay of {tail:.1f} ms is above a TPOT of {tpot:.1f} ms: tails of ITL are partly its"


def _occupancy(row: Mapping) -> str | None:
    if row["occupancy"] is None or row["occupancy"] <= OCCUPANCY_HIGH:
        return None
    return f"{row['occupancy']:.2f} is above {OCCUPANCY_HIGH}: more tokens than requests × speed allow"


def _littles_law(row: Mapping) -> str | None:
    if row["load_kind"] == "request_rate":
        return None
    sessions = row["load_kind"] == "sessions"
    achieved = row["achieved_sessions"] if sessions else row["achieved_concurrency"]
    if achieved is None or LITTLE_LOW <= achieved / row["load"] <= LITTLE_HIGH:
        return None
    what = "sessions" if sessions else "requests"
    return f"{achieved:.3g} {what} were in flight where {row['load']:g} were set: the point belongs to another load"


def _backlog(row: Mapping) -> str | None:
    growth = row["latency_growth"]
    if growth is None or growth <= GROWTH:
        return None
    return f"latency per token grew {growth:.1f} times over the run: the server falls behind, and nothing is steady"


def _window(row: Mapping) -> str | None:
    if row["window"] != "full":
        return None
    return "throughput is over the full run, start and drain included, because no steady part was found"


def _percentiles(row: Mapping) -> str | None:
    # A missing p99 is a dash in a table, as planned; without a p90 the slow side is not there at all.
    needed = REQUESTS_FOR["p90"]
    if row["n_completed"] >= needed:
        return None
    return f"p90 needs {needed} completed requests, there are {row['n_completed']}: no percentile above it is printed"


def _cache_told(row: Mapping) -> str | None:
    if row["n_cache_told"] in (0, row["n_completed"]):
        return None
    return f"{row['n_cache_told']} of {row['n_completed']} requests tell their cached tokens: no hit rate from usage"


FLAGS: dict[str, Callable[[Mapping], str | None]] = {
    "failures": _failures,
    "not-sent": _not_sent,
    "short-outputs": _short,
    "long-outputs": _long,
    "token-sources": _token_sources,
    "client-lag": _client_lag,
    "client-tail": _client_tail,
    "occupancy": _occupancy,
    "littles-law": _littles_law,
    "backlog": _backlog,
    "window": _window,
    "percentiles": _percentiles,
    "cache-told": _cache_told,
}
