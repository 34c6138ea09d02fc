"""What was counted: do tokens, time and concurrency fit together, who failed, and which percentiles may be printed."""

from collections import Counter

from wholecurve.card.checks.check import Check, Rule
from wholecurve.card.facts import RunFacts
from wholecurve.card.wording import count, names, numbers, places, span, where
from wholecurve.curves import Curve
from wholecurve.curves.gates.one_curve import (
    GATES,
    LITTLE_HIGH,
    LITTLE_LOW,
    OCCUPANCY_HIGH,
    OCCUPANCY_LOW,
    REQUESTS_FOR,
)
from wholecurve.curves.serving_flags import FLAGS, GROWTH
from wholecurve.errors import UserError

_OCCUPANCY = Rule("Occupancy", f"throughput ÷ (load × speed) is at most {OCCUPANCY_HIGH}; above, a count is wrong")
_LITTLE = Rule("Little's law", f"Σ E2E ÷ window is {LITTLE_LOW}–{LITTLE_HIGH} of the load that was set")
_BACKLOG = Rule(
    "Backlog", f"under arrivals by the clock, latency per token grows at most {GROWTH:g}× from first to last third"
)
_FAILURES = Rule("Failures", "every request was completed; those that were not enter no latency")
_SHORT = Rule("Short outputs", "every completed request brought the tokens that it asked for")
_TOKENS = Rule("Token counts", "tokens are the server's own count, from one source for all contenders")
_PERCENTILES = Rule("Percentiles", "p90 from 30 completed requests on, p99 from 300 on")
_DENOMINATOR = Rule("Denominator", "throughput is per all devices of a contender, and all have devices of one kind")
_WINDOWS = Rule("Windows", "at a load, the throughput of all contenders is over the same kind of window")
_SHAPE = Rule("Shape", "speed falls and throughput rises with load")
_OWN_FLAGS = Rule("Flags of the study", "no point was flagged for anything else when it was measured")
# Flags of a point that a check of this card asks about as well.
_ASKED_ABOVE = set(FLAGS) - {"not-sent", "long-outputs", "client-tail", "window"} | {"prefix-cache", "warm-up"}


def occupancy(facts: RunFacts) -> Check | None:
    # A load of sessions or of arrivals per second is no number of requests that decode at once.
    rows = [row for row in facts.rows if row["load_kind"] == "concurrency" and row["workload"] != "agents"]
    if not rows:
        return None
    known = [row for row in rows if row.get("occupancy") is not None]
    if not known:
        return _OCCUPANCY.not_checked("no point has one")
    high = [row for row in known if row["occupancy"] > OCCUPANCY_HIGH]
    low = [row for row in known if row["occupancy"] < OCCUPANCY_LOW]
    text = f"{span(row['occupancy'] for row in known)} over {count(len(known), 'point')}"
    text += f"; above {OCCUPANCY_HIGH}: {places(high)}" if high else ""
    if low:
        who = names(row["contender"] for row in low)
        text += f"; below {OCCUPANCY_LOW} at {count(len(low), 'point')} ({who}): time goes to prefill or waiting there"
    return _OCCUPANCY.holds(not high, text + _without(len(rows) - len(known)))


def _without(number: int) -> str:
    return f"; {count(number, 'point')} without one" if number else ""


def littles_law(facts: RunFacts) -> Check | None:
    rows = [row for row in facts.rows if row["load_kind"] in ("concurrency", "sessions")]
    if not rows:
        return None
    share = {}
    for row in rows:
        key = "achieved_sessions" if row["load_kind"] == "sessions" else "achieved_concurrency"
        if row.get(key) is not None:
            share[row["order"]] = row[key] / row["load"]
    if not share:
        if all(row["workload"] == "batch" for row in rows):
            return _LITTLE.not_checked(
                "requests start together and none follows: the load holds while all decode, by construction"
            )
        return _LITTLE.not_checked("no point records how many were in flight")
    off = [row for row in rows if row["order"] in share and not LITTLE_LOW <= share[row["order"]] <= LITTLE_HIGH]
    text = f"{span(share.values())} of the load at {count(len(share), 'point')}"
    return _LITTLE.holds(not off, text + (f"; off at {places(off)}" if off else "") + _without(len(rows) - len(share)))


def backlog(facts: RunFacts) -> Check | None:
    rows = [row for row in facts.rows if row["load_kind"] == "request_rate"]
    if not rows:
        return None
    known = [row for row in rows if row.get("latency_growth") is not None]
    if not known:
        return _BACKLOG.not_checked("no point has enough requests to tell its beginning from its end")
    grown = [row for row in known if row["latency_growth"] > GROWTH]
    text = f"{span(row['latency_growth'] for row in known)}× at {count(len(known), 'point')}"
    return _BACKLOG.holds(not grown, text + (f"; the server falls behind: {places(grown)}" if grown else ""))


def failures(facts: RunFacts) -> Check:
    known = [row for row in facts.rows if row.get("n_failed") is not None]
    if not known:
        return _FAILURES.not_checked("no point counts failures")
    failed = [row for row in known if row["n_failed"]]
    completed = sum(row["n_completed"] for row in known)
    if not failed:
        return _FAILURES.passes(f"{count(completed, 'request')} completed, 0 failed")
    outcomes = Counter()
    for row in failed:
        outcomes.update(
            {k: v for k, v in (row.get("outcomes") or {"failed": row["n_failed"]}).items() if k != "completed"}
        )
    kinds = ", ".join(f"{number} {kind}" for kind, number in outcomes.most_common())
    who = Counter()
    for row in failed:
        who[row["contender"]] += row["n_failed"]
    by_name = ", ".join(f"{name} {number}" for name, number in who.most_common())
    total = sum(who.values())
    return _FAILURES.flags(
        f"{completed:,} completed, {total:,} failed ({by_name}; {kinds}); latencies are those of the rest"
    )


def short_outputs(facts: RunFacts) -> Check:
    told = [row for row in facts.rows if row.get("n_short") is not None]
    if told:
        short = [row for row in told if row["n_short"]]
        if not short:
            return _SHORT.passes(f"0 of {count(sum(row['n_completed'] for row in told), 'completed request')}")
        total = sum(row["n_short"] for row in short)
        return _SHORT.flags(f"{count(total, 'short request')}: {places(short)}")
    if facts.is_serving:
        return _SHORT.not_checked("no point counts them")
    # A study of engines stops at the first request with another number of tokens.
    tokens = [row for row in facts.rows if row["workload"] in ("decode", "batch")]
    if not tokens:
        return _SHORT.not_checked("prefill asks for one token each")
    return _SHORT.passes("none: such a study stops at the first request that brings another number of tokens")


def token_counts(facts: RunFacts) -> Check:
    sources = Counter()
    for trace in facts.traces.values():
        sources.update(trace.sources)
    chunks = [row["tokens_per_chunk"] for row in facts.rows if row.get("tokens_per_chunk") is not None]
    per_chunk = f"; {span(chunks)} tokens per chunk" if chunks else ""
    if not sources:
        if facts.is_serving:
            return _TOKENS.not_checked(f"no request says what its count rests on{per_chunk}")
        return _TOKENS.passes(f"counted as the token ids that each engine returned{per_chunk}")
    text = ", ".join(f"{source}: {number:,}" for source, number in sources.most_common()) + " requests" + per_chunk
    by_usage = all(source.startswith("usage") for source in sources)
    families = {"usage" if source.startswith("usage") else source for source in sources}
    return _TOKENS.holds(by_usage and len(families) == 1, text)


def percentiles(facts: RunFacts) -> Check:
    wrong, printed = [], Counter()
    for row in facts.rows:
        for part, needed in REQUESTS_FOR.items():
            # What the client says of itself is sampled every few milliseconds, not once a request.
            named = (key for key in row if f"_{part}_" in key and not key.startswith("client_"))
            if any(row[key] is not None for key in named):
                printed[part] += 1
                if row["n_completed"] < needed:
                    wrong.append((part, row))
    text = ", ".join(f"{part} at {printed[part]:,}" for part in REQUESTS_FOR) + f" of {count(len(facts.rows), 'point')}"
    text += f"; {span((row['n_completed'] for row in facts.rows), 0)} completed requests a point" if facts.rows else ""
    if wrong:
        part, row = wrong[0]
        text += f"; too few for {part}: {where(row)} ({row['n_completed']})" + (
            f", {len(wrong) - 1} more" if wrong[1:] else ""
        )
    return _PERCENTILES.holds(not wrong, text)


def one_denominator(facts: RunFacts) -> Check:
    devices = {n: sorted({row.get("devices") for row in facts.of(contender=n)}, key=str) for n in facts.contenders}
    kinds = dict.fromkeys(str(row.get("device_kind")) for row in facts.rows)
    if not facts.rows or {"None", "unknown"} & kinds.keys():
        return _DENOMINATOR.not_checked("a point does not say what it ran on")
    several = [name for name, numbers_of in devices.items() if len(numbers_of) > 1]
    counts = {number for found in devices.values() for number in found}
    text = f"{' and '.join(kinds)}, {numbers(counts)} of each contender"
    text += f"; {names(several)} changed the number between points" if several else ""
    return _DENOMINATOR.holds(len(kinds) == 1 and not several, text)


def windows(facts: RunFacts) -> Check:
    kinds: dict[tuple, set[str]] = {}
    for row in facts.rows:
        if row.get("window") is not None:
            kinds.setdefault((row["workload"], row["load"]), set()).add(row["window"])
    if not kinds:
        return _WINDOWS.not_checked("no point names its window")
    mixed = [f"{workload} {load:g}" for (workload, load), found in kinds.items() if len(found) > 1]
    used = {
        w: sorted({kind for (name, _), found in kinds.items() if name == w for kind in found}) for w in facts.workloads
    }
    text = "; ".join(f"{workload}: {' and '.join(found)}" for workload, found in used.items() if found)
    shortest = min(row["window_s"] for row in facts.rows if row.get("window_s") is not None)
    text += f"; the shortest lasts {shortest:.2g} s"
    return _WINDOWS.holds(not mixed, text + (f"; mixed at {names(mixed)}" if mixed else ""))


def shape(facts: RunFacts) -> Check:
    found, curves = [], 0
    for workload in facts.workloads:
        for name in facts.contenders:
            curve = _curve(facts, name, workload)
            if curve is None or not curve.has_speed or len(curve.by_load()) < 2:
                continue
            curves += 1
            found += GATES["not-monotone"](name, curve)
    if not curves:
        return _SHAPE.not_checked("no curve with a speed has two loads")
    return _SHAPE.holds(not found, "; ".join(found[:3]) if found else f"{count(curves, 'curve')}, all monotone")


def _curve(facts: RunFacts, name: str, workload: str) -> Curve | None:
    """The contender's curve, of the points that have both axes; None where there are none."""
    rows = facts.points[(facts.points["contender"] == name) & (facts.points["workload"] == workload)]
    axes = [c for c in ("decode_speed_tok_per_s", "output_throughput_tok_per_s") if c in rows]
    rows = rows if set(rows["load_kind"]) == {"step_tokens"} else rows.dropna(subset=axes)
    try:
        return Curve.from_points(rows, name, workload) if len(rows) else None
    except UserError:
        return None


def own_flags(facts: RunFacts) -> Check | None:
    told = [row for row in facts.rows if row.get("flags") is not None]
    if not told:
        return None
    texts: dict[str, list[str]] = {}
    for row in told:
        for flag in row["flags"]:
            texts.setdefault(flag.partition(":")[0], []).append(f"{where(row)}: {flag.partition(':')[2].strip()}")
    own = {kind: found for kind, found in texts.items() if kind not in _ASKED_ABOVE}
    others = sum(len(found) for kind, found in texts.items() if kind in _ASKED_ABOVE)
    more = f"; {count(others, 'flag')} of kinds that the other checks ask about" if others else ""
    if not own:
        return _OWN_FLAGS.passes(f"none at {count(len(told), 'point')}{more}")
    listed = "; ".join(f"{kind} at {count(len(found), 'point')}, as {found[0]}" for kind, found in own.items())
    return _OWN_FLAGS.flags(listed + more)
