"""The multipliers of a run with their intervals and operating points, and where the first contender does not lead."""

from collections.abc import Iterator

import pandas as pd

from wholecurve.card.facts import RunFacts
from wholecurve.card.wording import numbers
from wholecurve.curves import Comparison, multiplier_text
from wholecurve.curves.multipliers import AHEAD_B, NO_DIFFERENCE, UNDECIDED

COLUMNS = ("workload", "over", "held equal, read", "lowest", "median", "highest", "not ahead")

# Key of the summary, words, frame, value, ends of the interval, verdict.
_READ = (
    ("direct", "load, throughput", "direct", "ratio", "low", "high", "verdict"),
    ("direct_speed", "load, speed", "direct", "speed_ratio", "speed_low", "speed_high", "speed_verdict"),
    ("same_speed", "speed, throughput", "same_speed", "estimate", "low", "high", "verdict"),
    ("same_throughput", "throughput, speed", "same_throughput", "estimate", "low", "high", "verdict"),
)
_BEHIND = {AHEAD_B: "behind", NO_DIFFERENCE: "no difference", UNDECIDED: "undecided"}


def multiplier_rows(facts: RunFacts) -> list[tuple[str, ...]]:
    """The first contender over each other one, under `COLUMNS`; every load is that of the other one."""
    return [(workload, one.b.name, *cells) for workload, one in facts.over_peers for cells in _cells(one, workload)]


def _cells(one: Comparison, workload: str) -> Iterator[tuple[str, ...]]:
    for key, words, frame, value, low, high, verdict in _READ:
        # While all of a batch decode, throughput is concurrency × speed on both sides: one result, not two.
        if (key == "direct_speed" and workload == "batch") or (key != "direct" and not one.a.has_speed):
            continue
        rows = getattr(one, frame)
        rows = rows[~rows["stated"].astype(bool)]
        found = one.summary[key]
        if found["min"] is None:
            yield words, "not measured", "", "", _not_ahead(rows, value, verdict)
            continue
        ends = [_at(rows, found[part]["points"][0]["load_b"], value, low, high) for part in ("min", "max")]
        middle = f"{found['median']['value']:.2f}× at {numbers(one['load_b'] for one in found['median']['points'])}"
        yield words, ends[0], middle, ends[1], _not_ahead(rows, value, verdict)


def _at(rows: pd.DataFrame, load: float, value: str, low: str, high: str) -> str:
    row = rows[rows["load_b"] == load].iloc[0]
    return f"{multiplier_text(row[value], row[low], row[high], int(row['n']))} at {load:g}"


def _not_ahead(rows: pd.DataFrame, value: str, verdict: str) -> str:
    loads = rows["load_b"].where(rows["load_b"].notna(), rows["load_a"])
    parts = []
    for says, words in _BEHIND.items():
        if (there := rows[value].notna() & (rows[verdict] == says)).any():
            parts.append(f"{words} at {numbers(loads[there])}")
    if (refused := rows[value].isna()).any():
        parts.append(f"not measured at {numbers(loads[refused])}")
    return "; ".join(parts) or "nowhere"


def maximum_loads(facts: RunFacts) -> list[str]:
    """What the search for the largest load found, a sentence for each contender; every repeat searches anew."""
    found = []
    for name, repeats in (facts.maximum_load or {}).get("contenders", {}).items():
        says = [f"repeat {repeat} {result['says']}" for repeat, result in sorted(repeats.items())]
        found.append(f"Largest load that keeps the objectives, {name}: {'; '.join(says)}.")
    return found


def refused_text(facts: RunFacts) -> str | None:
    """How many readings were refused, by kind of reason, and that nothing was extrapolated; None where none was."""
    frames = [
        rows[~rows["stated"].astype(bool)]
        for _, one in facts.over_peers
        for rows in (one.direct, one.same_speed, one.same_throughput)
        if len(rows)
    ]
    reasons = pd.concat([rows["refused"] for rows in frames]) if frames else pd.Series(dtype=object)
    refused = reasons.dropna()
    if refused.empty:
        return None
    kinds = {
        "outside what was measured": refused.str.contains("not extrapolated").sum(),
        "where a curve is flat": refused.str.contains("hardly moves|flat stretch").sum(),
        "with more than one solution": refused.str.contains("more than one load").sum(),
    }
    rest = len(refused) - refused.str.contains("not extrapolated|hardly moves|flat stretch|more than one load").sum()
    kinds["measured by one side alone"] = rest
    text = ", ".join(f"{number} {words}" for words, number in kinds.items() if number)
    return f"{len(refused)} of {len(reasons)} readings were refused, not extrapolated or clamped: {text}."
