"""Is the record whole: the plan that was hashed, every point of it, each point from its trace, code at a commit."""

import hashlib
import json

from wholecurve.card.checks.check import Check, Rule
from wholecurve.card.facts import RunFacts
from wholecurve.card.wording import count, names, numbers

_PLAN = Rule("Plan", "plan and harness version give the recorded hash")
_COMPLETE = Rule("Complete", "every contender × load × repeat of the plan has its point, and no other")
_TRACES = Rule("Points from traces", "every metric of a point can be computed again from its trace")
_COMMIT = Rule("Code", "measured at a commit, without uncommitted changes")
_SOURCE = Rule("Source", "every point was measured; none is modelled or published")


def plan_is_the_one_hashed(facts: RunFacts) -> Check:
    stored = {name: value for name, value in facts.document.items() if name != "plan_hash"}
    digest = hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()
    recorded = facts.document["plan_hash"]
    version = f"harness version {facts.document['harness_version']}"
    if digest == recorded:
        return _PLAN.passes(f"hash {recorded[:12]}, {version}")
    return _PLAN.flags(
        f"the plan on disk has hash {digest[:12]}, recorded is {recorded[:12]}: it was changed afterwards"
    )


def levels(plan: dict) -> dict[str, list[float]]:
    """Load levels of the race by workload, as a plan lists them; empty for a plan that only searches its loads."""
    if plan.get("kind") != "serving":
        fields = {"decode": "concurrency", "prefill": "step_tokens", "batch": "concurrency"}
        return {name: plan[name][field] for name, field in fields.items() if plan.get(name)}
    load = plan.get("load") or {}
    listed = next((load[kind] for kind in ("closed", "sessions", "open") if load.get(kind)), None)
    workload = "agents" if plan["workload"]["kind"] == "agents" else "serving"
    return {workload: listed.get("concurrency") or listed["rate_per_s"]} if listed else {}


def complete(facts: RunFacts) -> Check:
    probes = len(facts.rows) - len(facts.raced)
    if not (planned := levels(facts.plan)):
        return _COMPLETE.not_checked(f"the plan searches its loads; {count(probes, 'probe')} are there")
    wanted = {
        (name, workload, float(load), repeat)
        for name in facts.contenders
        for workload, loads in planned.items()
        for load in loads
        for repeat in range(1, facts.plan["repeats"] + 1)
    }
    there = {(row["contender"], row["workload"], float(row["load"]), row["repeat"]) for row in facts.raced}
    missing, extra = sorted(wanted - there), sorted(there - wanted)
    unplanned = [name for name in facts.contenders if not facts.planned(name)]
    lost = _finalists_lost(facts)
    parts = [f"{len(wanted & there):,} of {count(len(wanted), 'planned point')}", *lost]
    parts += [f"missing: {_which(missing)}"] if missing else []
    parts += [f"not in the plan: {_which(extra)}"] if extra else []
    parts += [f"not in the plan: {names(unplanned)}"] if unplanned else []
    faults = [f"{one['point']}: {one['what']}" for one in (facts.faults or {}).get("faults", [])]
    parts += [f"the diary of faults: {names(faults, 2)}"] if faults else []
    parts += [f"{count(probes, 'probe')} of the search beside it"] if probes else []
    return _COMPLETE.holds(not (missing or extra or unplanned or lost), "; ".join(parts))


def _finalists_lost(facts: RunFacts) -> list[str]:
    """A sentence for each tuned contender of a serving plan of which fewer settings raced than the plan wants."""
    if not facts.is_serving or not facts.plan.get("tuning"):
        return []
    found = []
    for name, grid in facts.plan["tuning"]["contenders"].items():
        raced = sum(racer.planned == name for racer in facts.race.racers)
        if raced < grid.get("finalists", 1):
            found.append(f"{raced} of {grid['finalists']} finalists of {name} raced")
    return found


def _which(points: list[tuple]) -> str:
    """ "vllm decode 4 (repeat 1, 2)" of (contender, workload, load, repeat)."""
    grouped: dict[tuple, list[int]] = {}
    for contender, workload, load, repeat in points:
        grouped.setdefault((contender, workload, load), []).append(repeat)
    return names(f"{c} {w} {load:g} (repeat {numbers(repeats)})" for (c, w, load), repeats in grouped.items())


def follows_from_traces(facts: RunFacts) -> Check:
    missing = [point_id for point_id, trace in facts.traces.items() if trace.missing]
    wrong = {point_id: trace.differs for point_id, trace in facts.traces.items() if trace.differs}
    if not facts.traces:
        return _TRACES.not_checked("no point is finished yet")
    if len(missing) == len(facts.traces):
        return _TRACES.not_checked("the run has no traces")
    requests = sum(len(trace.asked) for trace in facts.traces.values())
    right = len(facts.traces) - len(missing) - len(wrong)
    text = f"{right:,} of {count(len(facts.traces), 'point')}, from {count(requests, 'request')}"
    if wrong:
        point_id, fields = next(iter(wrong.items()))
        text += f"; {point_id} differs in {names(fields, 2)}" + (f", {len(wrong) - 1} more" if len(wrong) > 1 else "")
    if missing:
        text += f"; no trace: {names(missing, 2)}"
    return _TRACES.holds(not wrong and not missing, text)


def of_a_commit(facts: RunFacts) -> Check:
    git = facts.provenance.get("git")
    if not git or not git.get("commit"):
        return _COMMIT.not_checked("measured outside a checkout: the code has no commit, only the versions of packages")
    if git.get("dirty"):
        return _COMMIT.flags(f"commit {git['commit'][:12]} with uncommitted changes, which the record does not have")
    return _COMMIT.passes(f"commit {git['commit'][:12]}, clean")


def measured(facts: RunFacts) -> Check:
    sources = dict.fromkeys(row["source"] for row in facts.rows)
    if not sources:
        return _SOURCE.not_checked("no point is finished yet")
    return _SOURCE.holds(all(one.startswith("measured") for one in sources), ", ".join(sources))
