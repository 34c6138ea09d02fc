"""How the points came about: in which order, in which processes, with which requests, after what warm-up."""

import math
from itertools import groupby, pairwise

from wholecurve.card.checks.check import Check, Rule
from wholecurve.card.facts import RunFacts
from wholecurve.card.wording import count, names, range_text, span, where
from wholecurve.curves.gates.conditions import LENGTHS_DIFFER

_UNLIKELY = 0.05

_ORDER = Rule("Order", "contenders alternate point by point, there and back again; load levels are shuffled per repeat")
_FRESH = Rule("Fresh starts", "a fresh process or server for each contender and repeat")
_SAME = Rule("Same requests", "every contender gets the same requests at a load and repeat")
_LENGTHS = Rule("Lengths", "prompts and outputs are as long as the plan says")
_WARM_UP = Rule("Warm-up", "at least as many requests as are in flight, sent before each point and discarded")
_RESTARTS = Rule("Restarts", "no server had to be started again within a repeat")


def alternated(facts: RunFacts) -> Check:
    if len({row["contender"] for row in facts.raced}) < 2:
        return _ORDER.not_checked("one contender alone has nothing to alternate with")
    if facts.plan.get("servers") == "one at a time":
        return _alternated_by_curve(facts)
    place = {name: i for i, name in enumerate(facts.contenders)}
    ways, level_orders, broken = [], [], []
    for repeat, rows in groupby(facts.raced, key=lambda row: row["repeat"]):
        visits = [(level, list(group)) for level, group in groupby(rows, key=lambda r: (r["workload"], r["load"]))]
        seen = [level for level, _ in visits]
        broken += [f"{w} {load:g} in repeat {repeat}" for w, load in dict.fromkeys(seen) if seen.count((w, load)) > 1]
        level_orders.append(tuple(dict.fromkeys(seen)))
        ways.append([_way([place[row["contender"]] for row in group]) for _, group in visits])
    mixed = sum(way == "mixed" for one in ways for way in one)
    flips = [before != after for one in ways for before, after in pairwise(one) if "alone" not in (before, after)]
    there, back = (sum(way == wanted for one in ways for way in one) for wanted in ("there", "back"))
    several_levels = any(len(levels) > 1 for levels in level_orders)
    # Few levels come in one order by chance; many, only where nobody shuffled them.
    by_chance = math.factorial(max(map(len, level_orders))) ** (1 - len(level_orders))
    shuffled = len(set(level_orders)) > 1 or by_chance > _UNLIKELY
    text = f"{count(len(flips), 'change')} of level, {sum(flips):,} of them turn round ({there} there, {back} back)"
    if several_levels:
        text += f"; {count(len(set(level_orders)), 'order')} of levels in {count(len(level_orders), 'repeat')}"
    if broken:
        text += f"; not measured in one go: {names(broken, 3)}"
    right = all(flips) and not mixed and not broken and shuffled
    return _ORDER.holds(right, text + (f"; {count(mixed, 'level')} in neither direction" if mixed else ""))


def _alternated_by_curve(facts: RunFacts) -> Check:
    """One server at a time: whole curves take turns, and every other repeat runs through the contenders backwards."""
    place = {name: i for i, name in enumerate(facts.contenders)}
    ways = []
    for _, rows in groupby(facts.raced, key=lambda row: row["repeat"]):
        ways.append(_way([place[name] for name, _ in groupby(rows, key=lambda row: row["contender"])]))
    right = "mixed" not in ways and all(before != after for before, after in pairwise(ways))
    text = "one server at a time: whole curves take turns, not points, so a drift within a repeat favours one side"
    return _ORDER.flags(f"{text} ({', '.join(ways)})" + ("" if right else "; their order does not alternate either"))


def _way(places: list[int]) -> str:
    if len(places) < 2:
        return "alone"
    if places == sorted(places):
        return "there"
    return "back" if places == sorted(places, reverse=True) else "mixed"


def fresh(facts: RunFacts) -> Check:
    starts: dict[str, dict[str, set[int]]] = {}
    for row in facts.rows:
        started = row.get("server_started") or row.get("worker_started")
        if started is not None:
            starts.setdefault(row["contender"], {}).setdefault(started, set()).add(row["repeat"])
    if not starts:
        return _FRESH.not_checked("the points do not say when what they measured was started")
    reused = [name for name, by_start in starts.items() if any(len(repeats) > 1 for repeats in by_start.values())]
    silent = [name for name in dict.fromkeys(row["contender"] for row in facts.rows) if name not in starts]
    text = f"each contender was started {span((len(by_start) for by_start in starts.values()), 0)} times"
    if reused:
        text = f"{names(reused)} ran on from one repeat into the next, so these repeats are one run"
    if silent:
        text += f"; {names(silent)} did not say"
    if facts.operated and not reused and not silent:
        return _FRESH.not_checked(f"{names(facts.operated)}: run by somebody else, and never started anew by the study")
    return _FRESH.holds(not reused and not silent, text)


def same_requests(facts: RunFacts) -> Check:
    groups: dict[tuple, dict[str, dict]] = {}
    for point_id, row in _rows_with_traces(facts):
        asked = facts.traces[point_id].asked
        groups.setdefault((row["workload"], row["load"], row["repeat"]), {})[row["contender"]] = asked
    shared = {key: by_name for key, by_name in groups.items() if len(by_name) > 1}
    if not shared:
        return _SAME.not_checked("no two contenders have traces at one load and repeat")
    unlike, requests = [], 0
    by_time = bool((facts.plan.get("requests") or {}).get("seconds"))
    counted = facts.is_serving and facts.plan["workload"].get("prompts", "ids") != "ids"
    apart = LENGTHS_DIFFER if counted else 0.0
    for key, by_name in shared.items():
        first, *others = by_name.items()
        requests += len(first[1])
        for name, asked in others:
            if (why := _unlike(first[1], asked, by_time, apart)) is not None:
                unlike.append(f"{first[0]} and {name} at {key[0]} {key[1]:g}, repeat {key[2]}: {why}")
    text = f"{count(requests, 'request')} at {len(shared)} loads and repeats: equal in id, prompt and output length"
    if counted:
        text += f"; each server counts the text's tokens for itself, at most {100 * apart:.0f} % apart"
    if unlike:
        text = f"{count(len(unlike), 'pair')} of points differ, as {unlike[0]}"
    return _SAME.holds(not unlike, text)


def _rows_with_traces(facts: RunFacts):
    by_place = {row["order"]: row for row in facts.raced}
    for point_id, trace in facts.traces.items():
        if not trace.missing and trace.order in by_place:
            yield point_id, by_place[trace.order]


def _unlike(a: dict, b: dict, by_time: bool, apart: float) -> str | None:
    """In what two lists of requests differ; prompts that servers count for themselves may be `apart` in length."""
    both = a.keys() & b.keys()
    # In a fixed time a faster server is sent more of the same list.
    if a.keys() != b.keys() and not (by_time and both):
        return f"{len(a)} and {len(b)} requests, {len(both)} of them in common"
    for request in sorted(both):
        (prompt_a, output_a), (prompt_b, output_b) = a[request], b[request]
        if abs(prompt_a - prompt_b) > apart * max(prompt_a, prompt_b):
            return f"request {request} has {prompt_a} and {prompt_b} prompt tokens"
        if None not in (output_a, output_b) and output_a != output_b:
            return f"request {request} wants {output_a} and {output_b} tokens"
    return None


def planned_lengths(plan: dict, workload: str, load: float) -> tuple[list[int] | None, list[int]] | None:
    """([shortest, longest] prompt, [shortest, longest] output) of a workload in tokens; None where a plan has none.

    Text and messages are counted by each server as it makes tokens of them: such prompts have no planned length.
    """
    if plan.get("kind") == "serving":
        made = plan["workload"]
        if made["kind"] != "lengths":
            return None
        prompt = ends(made["prompt_tokens"]) if made.get("prompts", "ids") == "ids" else None
        return prompt, ends(made["output_tokens"])
    if workload == "prefill":
        return [int(load)] * 2, [1, 1]
    made = plan.get(workload)
    if not made:
        return None
    prompt, output = made["prompt_tokens"], made["output_tokens"]
    return (prompt, output) if workload == "decode" else ([prompt] * 2, [output] * 2)


def ends(amount) -> list[int]:
    """[lowest, highest] of an amount, which is such a list or a heavy tail with both."""
    return [amount["low"], amount["high"]] if isinstance(amount, dict) else amount


def lengths(facts: RunFacts) -> Check:
    seen: dict[str, list[tuple[int, int]]] = {}
    outside, unplanned = [], set()
    for point_id, row in _rows_with_traces(facts):
        planned = planned_lengths(facts.plan, row["workload"], row["load"])
        if planned is None:
            unplanned.add(row["workload"])
            continue
        for prompt, output in facts.traces[point_id].asked.values():
            seen.setdefault(row["workload"], []).append((prompt, output))
            if not _inside(prompt, planned[0]) or not _inside(output, planned[1]):
                outside.append(f"{where(row)}: {prompt} prompt and {output} output tokens")
    if not seen:
        why = "its traces are missing" if not unplanned else f"the plan gives no range for {names(sorted(unplanned))}"
        return _LENGTHS.not_checked(why)
    text = "; ".join(f"{workload}: {_lengths_text(asked)}" for workload, asked in seen.items())
    if outside:
        text += f"; outside the plan: {count(len(outside), 'request')}, as {outside[0]}"
    return _LENGTHS.holds(not outside, text)


def _inside(value: int | None, ends: list[int] | None) -> bool:
    return value is None or ends is None or ends[0] <= value <= ends[1]


def _lengths_text(asked: list[tuple[int, int]]) -> str:
    prompts, outputs = zip(*asked)
    outputs = [n for n in outputs if n is not None] or [0]
    # A closed loop of fixed lengths moves in step: all requests of a wave prefill at once.
    kind = "fixed, so requests end together" if min(outputs) == max(outputs) > 1 else ""
    text = f"{range_text([min(prompts), max(prompts)])} in, {range_text([min(outputs), max(outputs)])} out"
    return f"{text} ({kind})" if kind else text


def warm_up(facts: RunFacts) -> Check:
    told = [row for row in facts.rows if row.get("n_warm_up") is not None]
    if not told:
        return _WARM_UP.not_checked("the harness sends them, but its points do not record how many")
    # An open load has no number in flight that was set.
    short = [row for row in told if row["load_kind"] != "request_rate" and row["n_warm_up"] < row["load"]]
    failed = sum(row.get("n_warm_up_failed") or 0 for row in told)
    text = f"{span((row['n_warm_up'] for row in told), 0)} requests before {count(len(told), 'point')}"
    if short:
        text += f"; fewer than are in flight before {count(len(short), 'point')}, as {where(short[0])}"
    text += f"; {failed} of them failed" if failed else ""
    return _WARM_UP.holds(not short and not failed and len(told) == len(facts.rows), text)


def restarts(facts: RunFacts) -> Check | None:
    if not facts.is_serving:
        return None
    told = [row for row in facts.rows if row.get("restarts") is not None]
    if not told:
        return _RESTARTS.not_checked("the points do not say whether a server was started again")
    again = [row for row in told if row["restarts"]]
    if not again:
        return _RESTARTS.passes(f"none at {count(len(told), 'point')}")
    total = sum(row["restarts"] for row in again)
    return _RESTARTS.flags(f"{count(total, 'restart')}; the points were measured again: {names(map(where, again), 3)}")
