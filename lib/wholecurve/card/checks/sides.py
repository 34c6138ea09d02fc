"""Were the sides treated alike: precision, threads and budgets, tuning, the same model, the same prefix caching."""

from wholecurve.card import settings
from wholecurve.card.checks.check import Check, Rule
from wholecurve.card.facts import RunFacts
from wholecurve.card.wording import count, names, span

# What must be alike before a ratio speaks of engines, under the names that contenders report it by.
_ALIKE = ("dtype", "kv_cache_dtype", "threads", "max_model_tokens", "max_batch_tokens", "max_sequences")
# Hit rates of two contenders that are further apart had different work to do.
_HIT_RATES_DIFFER = 0.05
_CACHED_SHARE = 0.01

_SETTINGS = Rule("Like settings", "precision, threads and budgets that contenders report are equal, and stay so")
_TUNING = Rule("Tuning", "every contender was tuned, and no other one was given fewer settings to try than the first")
_AGREEMENT = Rule(
    "Same model", "greedy tokens of every contender are those of a float32 reference, within the plan's limits"
)
_PREFIX = Rule("Prefix cache", "off on all sides with no hit, or on alike with its hit rate recorded")


def alike(facts: RunFacts) -> Check:
    reports = {name: settings.read_back(rows[-1]) for name in facts.contenders if (rows := facts.of(contender=name))}
    if not any(reports.values()):
        return _SETTINGS.not_checked("no contender reported its settings")
    equal, unlike, silent = [], [], []
    for key in _ALIKE:
        told = {name: report[key] for name, report in reports.items() if key in report}
        if len(told) < 2:
            continue
        if len(set(told.values())) == 1:
            equal.append(f"{key} {next(iter(told.values()))}")
        else:
            unlike.append(f"{key} is {_grouped(told)}")
        silent += [f"{key} of {name}" for name in reports if name not in told and key in ("dtype", "kv_cache_dtype")]
    moved = {name: settings.changed(facts.of(contender=name)) for name in reports}
    unlike += [f"{name} changed {names(keys, 2)} between its points" for name, keys in moved.items() if keys]
    if not equal and not unlike:
        return _SETTINGS.not_checked("no setting was reported by two contenders under one name")
    text = "; ".join([*unlike, f"equal where reported: {', '.join(equal)}" if equal else "nothing else is equal"])
    return _SETTINGS.holds(not unlike, text + (f"; not told: {names(silent, 3)}" if silent else ""))


def _grouped(told: dict[str, str]) -> str:
    """ "float16 (llama.cpp), else bfloat16": the rarer values with who has them."""
    by_value: dict[str, list[str]] = {}
    for name, text in told.items():
        by_value.setdefault(text, []).append(name)
    common = max(by_value, key=lambda text: len(by_value[text]))
    rare = [f"{text} ({names(owners, 3)})" for text, owners in by_value.items() if text != common]
    return f"{', '.join(rare)}, else {common}"


def tuned(facts: RunFacts) -> Check:
    own = [name for name in facts.contenders if name not in facts.controls]
    if facts.tuning is None and len(facts.operated) == len(facts.contenders):
        return _TUNING.not_checked("settings are those of whoever runs the servers")
    if facts.tuning is None:
        given = [name for name in own if facts.planned(name).get("settings")]
        extra = f"; settings of the plan: {names(given)}" if given else ""
        return _TUNING.flags(f"no contender was tuned; each runs with its defaults, with which it may be slow{extra}")
    tried = {name: number for name in own if (number := _tried(facts, name)) is not None}
    untuned = [name for name in own if name not in tried]
    fewer = [name for name, number in tried.items() if facts.first in tried and number < tried[facts.first]]
    text = ", ".join(f"{name} {number}" for name, number in tried.items()) + " settings tried"
    if untuned:
        text += f"; not tuned: {names(untuned)}"
    if fewer:
        text += f"; fewer than {facts.first}: {names(fewer)}"
    return _TUNING.holds(not untuned and not fewer, text)


def _tried(facts: RunFacts, name: str) -> int | None:
    found = facts.tuning["contenders"].get(facts.planned_name(name))
    return None if found is None else len(found["candidates"])


def agreement(facts: RunFacts) -> Check:
    if not facts.agreement:
        return _AGREEMENT.not_checked("the run has no greedy answers that a reference judged")
    limits = facts.plan.get("agreement") or {}
    judged = {n: one for n, one in facts.agreement.items() if "best_share" in one}
    unjudged = {name: one for name, one in facts.agreement.items() if name not in judged}
    silent = [name for name in facts.contenders if name not in facts.agreement]
    least, most = limits.get("min_best_share", 0.9), limits.get("max_gap", 0.5)
    wrong = [name for name, one in judged.items() if one["best_share"] < least or one["max_gap"] > most]
    parts = []
    if judged:
        tokens, gaps = (span((one[key] for one in judged.values()), d) for key, d in (("tokens", 0), ("max_gap", 3)))
        best = span((100 * one["best_share"] for one in judged.values()), 1)
        parts.append(
            f"{count(len(judged), 'contender')}: {best} % of {tokens} tokens are the reference's best (at least "
            f"{100 * least:g} % needed), the worst lie {gaps} logits below it (at most {most:g} allowed)"
        )
    if how := {one["how"] for one in judged.values() if one.get("how")}:
        parts.append(f"tokens had from {names(sorted(how))}")
    parts += [f"outside the limits: {names(wrong)}"] if wrong else []
    parts += [f"{name} not checked: {_reason(one)}" for name, one in unjudged.items()]
    parts += [f"not checked: {names(silent)}"] if silent else []
    if wrong:
        return _AGREEMENT.flags("; ".join(parts))
    return (_AGREEMENT.not_checked if unjudged or silent else _AGREEMENT.passes)("; ".join(parts))


def _reason(entry: dict) -> str:
    return str(entry.get("why") or "no reason was recorded")


def hit_rates(facts: RunFacts, name: str) -> dict[str, float]:
    """Highest share of a point's prompt tokens that came from a server's cache, by who tells; empty where nobody does.

    Engines in their own processes are not asked: the zero in their traces is what the harness assumes.
    """
    if not facts.is_serving:
        return {}
    rows = facts.of(contender=name)
    orders, found = {row["order"] for row in rows}, {}
    told = [one for one in facts.traces.values() if one.order in orders and one.cached is not None and one.prompt]
    if told:
        found["usage"] = max(one.cached / one.prompt for one in told)
    counted = [rate for row in rows if (rate := row.get("server_cache_hit_rate")) is not None]
    if counted:
        found["its counters"] = max(counted)
    return found


def prefix_cache(facts: RunFacts) -> Check:
    wanted = facts.plan.get("prefix_cache", "off")
    present = [name for name in facts.contenders if facts.of(contender=name)]
    states = {name: settings.read_back(facts.of(contender=name)[-1]).get("prefix_cache") for name in present}
    rates = {name: hit_rates(facts, name) for name in present}
    highest = {name: max(found.values()) for name, found in rates.items() if found}
    silent = [name for name in present if name not in highest]
    on = [name for name, state in states.items() if state == "on"]
    untold = [name for name, state in states.items() if state is None]
    reported = f"reported on: {names(on)}" if on else "none reports it on"
    text = f"planned {wanted}; {reported}" + (f" ({names(untold)} does not say)" if untold and not on else "")
    if highest:
        told = ", ".join(f"{name} {100 * rate:.1f} %" for name, rate in highest.items())
        text += f"; highest measured hit rates: {told}"
    if wanted == "off" and (on or any(rate > _CACHED_SHARE for rate in highest.values())):
        return _PREFIX.flags(text)
    if wanted != "off" and highest and max(highest.values()) - min(highest.values()) > _HIT_RATES_DIFFER:
        return _PREFIX.flags(f"{text}: they had different work to do")
    if silent or not present:
        who = "no contender's" if not highest else f"{names(silent)}:"
        return _PREFIX.not_checked(f"{text}; {who} hits were {'measured' if not highest else 'not measured'}")
    return _PREFIX.passes(text)
