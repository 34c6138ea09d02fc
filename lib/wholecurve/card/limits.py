"""What a run does not show: the limits that follow from its own record."""

from wholecurve.card.facts import RunFacts
from wholecurve.card.wording import count, span

_OURS = "wholecurve"


def limit_sentences(facts: RunFacts) -> list[str]:
    """Sentences, each of them true of this run alone."""
    found = [_machine(facts), _noise(facts), _workload(facts)]
    if any((one.get("engine") or one.get("server")) == _OURS for one in facts.plan["contenders"]):
        found.append(
            "Whether an independent hand would find the same: wholecurve is measured by its own harness. Plan, traces "
            "and code are there to be run again."
        )
    if "batch" in facts.workloads:
        found.append(
            "Two results at equal load in a batch: while all requests decode, throughput is concurrency × speed, so "
            "both ratios are one."
        )
    if not facts.is_serving:
        found.append("What a server adds: scheduling of arrivals, HTTP, streaming and tokenisation are in no number.")
    elif any(row["load_kind"] != "request_rate" for row in facts.rows):
        found.append(
            "How queues grow: a closed loop waits for its answers and never sends more than the server can take."
        )
    if any("best_share" in one for one in (facts.agreement or {}).values()):
        found.append("That outputs are good: greedy tokens were judged against a reference, for few and short answers.")
    found.append(
        "What the machine did beside it: clocks, throttling and the load of other processes are not in the record."
    )
    return found


def _machine(facts: RunFacts) -> str:
    model = facts.plan.get("model") or "as each server calls it"
    if facts.operated:
        return (
            f"Other models and machines: one model ({model}) ran, in part on machines that this record does not know."
        )
    machine = facts.provenance.get("hardware") or {}
    gpus = machine.get("gpus") or []
    what = (
        f"{len(gpus)} × {gpus[0]['name']}" if gpus else f"{count(machine.get('cores', 1), 'core')} of one CPU, no GPU"
    )
    return f"Other models and machines: one model ({model}) ran on {what}."


def _noise(facts: RunFacts) -> str:
    days = sorted(
        {str(start)[:10] for row in facts.rows if (start := row.get("server_started") or row.get("worker_started"))}
    )
    when = "on one day" if len(days) == 1 else f"on {len(days)} days" if days else "at times that were not recorded"
    repeats = count(facts.plan["repeats"], "repeat")
    return (
        f"What changes between machines and days: {repeats} {when}; intervals cover what differs between fresh starts."
    )


def _workload(facts: RunFacts) -> str:
    if facts.is_serving:
        kind = (facts.plan.get("workload") or {}).get("kind", "the plan's")
        return f"Other traffic: the requests are of one kind ({kind}), and their texts mean nothing to the model."
    longest = span([_longest(facts)], 0)
    return f"Real traffic: prompts are random tokens, none longer than {longest}, and outputs are cut at a set length."


def _longest(facts: RunFacts) -> int | None:
    prompts = [asked[0] for trace in facts.traces.values() for asked in trace.asked.values()]
    return max(prompts) if prompts else None
