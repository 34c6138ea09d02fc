"""The plan of a run in words: what each contender is sent, and how a point comes about."""

from collections.abc import Mapping

from wholecurve.card.wording import count, names, numbers, range_text

_PREFIX_CACHE = {
    "off": "The plan asks for prefix caches that are off.",
    "cold": "The plan asks for prefix caches that are on, and that a point's own requests alone fill.",
    "warm": "The plan asks for prefix caches that are on, and that are filled before each point.",
}
_FORMS = {"ids": "as token ids", "text": "as text", "messages": "as chat messages"}
_ARRIVALS = {
    "poisson": "Poisson arrivals",
    "constant": "equal gaps",
    "bursts": "arrivals in bursts",
    "recorded": "recorded arrivals, sped up by the rate",
}


def workload_sentences(plan: Mapping) -> list[tuple[str, str]]:
    """(workload, what is sent) for each workload of a plan document."""
    if plan.get("kind") == "serving":
        made = plan.get("workload") or {}
        return [("Workload", f"{_requests(made)}; {_load(plan)}")]
    found = []
    if decode := plan.get("decode"):
        found.append(
            (
                "Decode",
                f"closed loop with {numbers(decode['concurrency'])} requests always in flight, "
                f"{decode['requests_per_slot']} for each; {range_text(decode['prompt_tokens'])} random tokens in, "
                f"{range_text(decode['output_tokens'])} out",
            )
        )
    if batch := plan.get("batch"):
        found.append(
            (
                "Batch",
                f"{numbers(batch['concurrency'])} requests start together on an idle engine, "
                f"{batch['prompt_tokens']:,} random tokens in, {batch['output_tokens']:,} out, again until "
                f"{batch['min_requests']} have run; throughput is over the time in which all of them decode",
            )
        )
    if prefill := plan.get("prefill"):
        found.append(
            (
                "Prefill",
                f"one prompt of {numbers(prefill['step_tokens'])} random tokens in one step on an empty cache, "
                f"{count(prefill['requests'], 'time')} a point; non-cached input tokens over TTFT",
            )
        )
    return found


def _requests(made: Mapping) -> str:
    """A serving workload in words: its kind, then every number that its plan states."""
    said = {"kind", "name", "prompts"}
    given = _FORMS.get(made.get("prompts", "ids"), made.get("prompts"))
    if made["kind"] == "lengths":
        shared = made.get("shared_prefix_tokens")
        text = f"requests of {_amount(made['prompt_tokens'])} tokens in, {_amount(made['output_tokens'])} out, {given}"
        return text + (f", {shared:,} of them shared on purpose" if shared else ", no prefix shared")
    stated = [f"{key.replace('_', ' ')} {_amount(value)}" for key, value in made.items() if key not in said and value]
    return f"{made['kind']}, {given}: {', '.join(stated)}"


def _amount(value) -> str:
    if isinstance(value, Mapping):
        if {"median", "sigma"} <= value.keys():
            low, high = value["low"], value["high"]
            return f"{range_text([low, high])} (log-normal, median {value['median']:g}, sigma {value['sigma']:g})"
        return "(" + ", ".join(f"{key.replace('_', ' ')} {_amount(one)}" for key, one in value.items()) + ")"
    if isinstance(value, list | tuple):
        if len(value) == 2 and all(isinstance(one, int | float) for one in value):
            return range_text(value)
        return (
            " ".join(map(_amount, value))
            if len(value) <= 8 and not isinstance(value[0], Mapping)
            else f"{len(value)} given"
        )
    return f"{value:g}" if isinstance(value, float) else str(value)


def _load(plan: Mapping) -> str:
    load = plan.get("load") or {}
    parts = []
    for kind, noun in (("closed", "requests"), ("sessions", "sessions")):
        if load.get(kind):
            parts.append(
                f"closed loop with {numbers(load[kind]['concurrency'])} {noun} always in flight{_ramp(load[kind])}"
            )
    if load.get("open"):
        given = load["open"]
        arrivals = _ARRIVALS.get(given.get("arrivals", "poisson"), given.get("arrivals"))
        parts.append(f"open loop, {numbers(given['rate_per_s'])} arrivals per second ({arrivals}){_ramp(given)}")
    if search := plan.get("maximum_load"):
        parts.append(
            f"largest {search['by']} that keeps the objectives, by bisection between {search['low']:g} and "
            f"{search['high']:g}"
        )
    return "; ".join(parts) or "load not recorded"


def _ramp(given: Mapping) -> str:
    return f", the first ones spread over {given['ramp_s']:g} s" if given.get("ramp_s") else ""


def objectives(slo: Mapping | None) -> str | None:
    """ "90 % of requests, failed ones included, keep TTFT ≤ 500 ms" of the plan's objectives; None without any."""
    if not slo:
        return None
    limits = [f"{name.upper()} ≤ {slo[f'{name}_ms']:g} ms" for name in ("ttft", "tpot", "e2e") if slo.get(f"{name}_ms")]
    return f"{100 * slo.get('share', 1):g} % of requests, failed ones included, keep {' and '.join(limits)}"


def protocol_sentences(document: Mapping) -> list[str]:
    """How the points of a run come about, from `plan.json`: sentences, each true of every point of the run."""
    plan = document["plan"]
    serving = plan.get("kind") == "serving"
    unit = "server" if serving else "process"
    contenders, repeats = plan["contenders"], plan["repeats"]
    operated = [one["name"] for one in contenders if one.get("url")]
    started = f"a fresh {unit} for each contender in each" + (f", but for {names(operated)}" if operated else "")
    found = [
        f"The plan {plan['name']} was written first (hash {document['plan_hash'][:12]}, harness version "
        f"{document['harness_version']}); a changed plan or harness makes another run.",
        f"{count(repeats, 'repeat')}: {started}. {_turns(plan)}; levels are shuffled anew by the seed.",
        f"Requests are drawn from seed {plan.get('seed', 0)} alone: the same for every contender, others at each load "
        "and repeat. Before each point at least as many as are in flight are sent and discarded.",
    ]
    if serving:
        found.append(_PREFIX_CACHE[plan["prefix_cache"]])
        found.append(_how_many(plan["requests"], bool((plan.get("load") or {}).get("open"))))
        if text := objectives(plan.get("slo")):
            found.append(f"Objectives: {text}.")
    if controls := [f"{one['name']} is {one['control_of']} once more" for one in contenders if one.get("control_of")]:
        found.append(f"A/A control: {names(controls)}; what lies within its spread is noise.")
    if tuning := plan.get("tuning"):
        found.append(_tuning(tuning, serving))
    if agreement := plan.get("agreement"):
        found.append(
            f"Before anything is timed, a float32 reference judges {agreement['tokens']} greedy tokens of each answer "
            "of every contender."
        )
    return found


def _turns(plan: Mapping) -> str:
    if plan.get("servers") == "one at a time":
        return "One server runs at a time and measures all levels; every other repeat runs through them backwards"
    return "Within a repeat all stay loaded and take turns at each load level, there and back again (A B, B A)"


def _how_many(requests: Mapping, by_clock: bool) -> str:
    least = f"at least {requests['at_least']:,}"
    most = f", at most {requests['at_most']:,}" if requests.get("at_most") else ""
    if by_clock:
        arrive = f"what arrives in {requests['seconds']:g} s, " if requests.get("seconds") else ""
        return f"A point has {arrive}{least}{most} sessions."
    if requests.get("seconds"):
        return f"A point starts sessions for {requests['seconds']:g} s; what runs then is finished."
    return f"A point has {requests['per_slot']} sessions for each in flight, {least}{most}."


def _tuning(tuning: Mapping, serving: bool) -> str:
    if serving:
        given = [
            f"{name} by {' × '.join(f'{option} ({len(values)})' for option, values in grid['grid'].items())}"
            for name, grid in tuning["contenders"].items()
        ]
        return (
            f"Tuning before the race at load {numbers(tuning['levels'])}, at most {tuning['budget']} settings each: "
            f"{'; '.join(given)}. The finalists race."
        )
    levels = [*(f"batch {load:g}" for load in tuning.get("concurrency", []))]
    levels += [f"prefill {load:g}" for load in tuning.get("step_tokens", [])]
    return (
        f"Tuning before the race at {', '.join(levels)}: at most {tuning['budget']} settings for each contender, its "
        "own included; the highest geometric mean of throughput races."
    )
