"""How sure a difference is: repeats, the same contender twice, ends of intervals that nothing bounds."""

import math

import pandas as pd

from wholecurve.card.checks.check import Check, Rule
from wholecurve.card.facts import RunFacts
from wholecurve.card.wording import count, names, numbers
from wholecurve.curves.gates.pair import OUTSIDE_SHARE
from wholecurve.curves.multipliers import MIN_REPEATS

# So many misses, or more, of a control's intervals come by chance once in twenty controls.
_UNLIKELY = 0.05
_MISS = 0.05

_REPEATS = Rule("Repeats", f"at least {MIN_REPEATS} runs of every contender at every load, paired by number")
_CONTROL = Rule("A/A control", "the same contender twice shows no difference: 1 in 20 of its 95 % intervals misses 1")
_ENDS = Rule(
    "Open ends", f"no matched multiplier has more than {100 * OUTSIDE_SHARE:g} % of its resamples outside the overlap"
)
_CONDITIONS = Rule("Like curves", "contenders have the same loads, repeats, sources and definitions")

# Warnings of a comparison that no other check of the card has looked at.
_PAIR_GATES = ("loads-differ", "unpaired-repeats", "sources-differ", "device-counts", "conditions-differ")


def repeats(facts: RunFacts) -> Check:
    found = {}
    for row in facts.raced:
        found.setdefault((row["contender"], row["workload"], row["load"]), set()).add(row["repeat"])
    if not found:
        return _REPEATS.not_checked("no point is finished yet")
    few = [f"{name}, {workload} {load:g}" for (name, workload, load), seen in found.items() if len(seen) < MIN_REPEATS]
    text = f"{numbers(len(seen) for seen in found.values())} at every load"
    text += f"; too few for an interval: {names(few, 3)}" if few else "; intervals are 95 %"
    return _REPEATS.holds(not few, text)


def control(facts: RunFacts) -> Check:
    controls = [one for _, one in facts.over_control]
    if not controls:
        return _CONTROL.flags("no contender ran twice, so nothing bounds how much of a difference is noise")
    intervals = pd.concat([one.direct[["ratio", "low", "high"]] for one in controls])
    ratios, known = intervals["ratio"].dropna(), intervals.dropna()
    if ratios.empty:
        return _CONTROL.not_checked("nothing of it could be read")
    missed = int(((known["low"] > 1) | (known["high"] < 1)).sum())
    text = f"{controls[0].b.name} differs at equal load by {ratios.min():.2f}× to {ratios.max():.2f}×"
    if known.empty:
        return _CONTROL.not_checked(f"{text}; n < {MIN_REPEATS}, so there is no interval")
    chance = at_least(missed, len(known), _MISS)
    text += f"; {missed} of {len(known)} intervals miss 1"
    return _CONTROL.holds(
        chance >= _UNLIKELY, text if chance >= _UNLIKELY else f"{text}, by chance once in {1 / chance:.0f}"
    )


def at_least(hits: int, draws: int, chance: float) -> float:
    """Probability of ``hits`` or more of ``draws`` independent events of probability ``chance``."""
    return 1 - sum(math.comb(draws, k) * chance**k * (1 - chance) ** (draws - k) for k in range(hits))


def open_ends(facts: RunFacts) -> Check | None:
    frames = [
        frame.assign(over=one.b.name)
        for _, one in facts.over_peers
        for frame in (one.same_speed, one.same_throughput)
        if len(frame)
    ]
    if not frames:
        return None
    matched = pd.concat(frames)
    known = matched[matched["estimate"].notna() & matched["outside_share"].notna()]
    if known.empty:
        return None
    left = known[known["outside_share"] > OUTSIDE_SHARE]
    text = f"{len(left)} of {count(len(known), 'matched multiplier')}"
    if len(left):
        worst = left["outside_share"].max()
        text += f" ({names(left['over'])}), at worst {100 * worst:.0f} % of the resamples: their open ends say nothing"
    return _ENDS.holds(left.empty, text)


def unlike_conditions(facts: RunFacts) -> Check | None:
    if len(facts.contenders) < 2:
        return None
    failed = [f"{workload}: {why}" for workload, why in facts.comparisons.items() if isinstance(why, str)]
    compared = [one for _, one in facts.compared]
    found = [w for one in compared for w in one.warnings if w.startswith(_PAIR_GATES)]
    if failed:
        return _CONDITIONS.flags(f"no multiplier could be computed: {'; '.join(failed)}")
    if not compared:
        clocked = facts.rows and all(row["load_kind"] == "request_rate" for row in facts.raced)
        why = "under arrivals by the clock throughput is what was asked for, so no curves are compared"
        return _CONDITIONS.not_checked(why if clocked else "no two contenders have points of one workload")
    text = names(found, 2) if found else f"{count(len(compared), 'comparison')}, none differs"
    return _CONDITIONS.holds(not found, text)
