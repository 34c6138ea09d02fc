"""What was compared: one row per contender, with its version, its own settings, and how it came by them."""

import re

from wholecurve.card import settings
from wholecurve.card.facts import RunFacts

_FINALIST = re.compile(r"\(finalist (?P<place>\d+) of \d+\)$")

COLUMNS = ("contender", "engine", "version", "what it ran with, where that differs", "how it was chosen")


def reports(facts: RunFacts) -> dict[str, dict[str, str]]:
    """What each contender with points reported of itself, read back after its last start."""
    return {name: settings.read_back(rows[-1]) for name in facts.contenders if (rows := facts.of(contender=name))}


def contender_rows(facts: RunFacts) -> list[tuple[str, ...]]:
    """The rows under `COLUMNS`; the first contender is the one that is compared with each other one."""
    read = reports(facts)
    common = settings.shared(read)
    rows = []
    for name in facts.contenders:
        own = {key: text for key, text in read.get(name, {}).items() if key not in common}
        of = facts.controls.get(name)
        own_text = "the same" if name in read and read[name] == read.get(of) else settings.listed(own)
        planned = facts.planned(name)
        engine = planned.get("engine") or planned.get("server") or "not in the plan"
        if planned.get("url"):
            engine += f" at {planned['url']}"
        version = settings.version(facts.of(contender=name))
        rows.append((name, engine, version, own_text or _nothing(name in read), chosen(facts, name)))
    return rows


def _nothing(has_points: bool) -> str:
    return "nothing else" if has_points else "no point is finished"


def chosen(facts: RunFacts, name: str) -> str:
    """How a contender came by its settings: tuned (of how many, and what that gained), given, or its defaults."""
    if (of := facts.controls.get(name)) is not None:
        return f"A/A control: {of} once more"
    if name in facts.operated:
        return "as its operator runs it"
    planned = facts.planned(name)
    found = ((facts.tuning or {}).get("contenders") or {}).get(facts.planned_name(name))
    if found and found.get("winner") is not None:
        place = _FINALIST.search(name)
        index = found["finalists"][int(place["place"]) - 1] if place else found["winner"]
        return _tuned(found["candidates"], index, f"finalist {place['place']}" if place else "best")
    given = settings.listed(
        {key: settings.setting_text(value) for key, value in (planned.get("settings") or {}).items()}
    )
    return f"as the plan says: {given}" if given else "its defaults"


def _tuned(candidates: list[dict], index: int, rank: str) -> str:
    refused = sum(one.get("refused") is not None for one in candidates)
    best = settings.listed({k: settings.setting_text(v) for k, v in candidates[index]["settings"].items()})
    text = f"{rank} of {len(candidates)} settings tried: {best or 'its own'}"
    score, own = candidates[index].get("score_tok_per_s"), candidates[0].get("score_tok_per_s")
    if index and score and own:
        text += f" ({score / own:.3f}× its own)"
    return text + (f"; {refused} did not run" if refused else "")
