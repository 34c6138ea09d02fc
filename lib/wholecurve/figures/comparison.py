"""The rows of a comparison as the figures need them: one table for each kind of multiplier."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from wholecurve.errors import UserError
from wholecurve.figures.style import OKABE_ITO
from wholecurve.figures.ticks import format_count

COLUMNS = ("load", "value", "low", "high", "bracket_low", "bracket_high", "floor", "n")


@dataclass(frozen=True)
class Kind:
    """One kind of multiplier: its frame in a comparison, its fields of value and interval, its look."""

    name: str
    frame: str
    value: str
    low: str
    high: str
    colour: str
    marker: str
    filled: bool


KINDS = (
    Kind("same speed", "same_speed", "estimate", "low", "high", OKABE_ITO["blue"], "o", False),
    Kind("same throughput", "same_throughput", "estimate", "low", "high", OKABE_ITO["vermillion"], "D", False),
    Kind("direct, throughput", "direct", "ratio", "low", "high", OKABE_ITO["sky"], "o", True),
    Kind("direct, speed", "direct", "speed_ratio", "speed_low", "speed_high", OKABE_ITO["orange"], "D", True),
)


@dataclass(frozen=True)
class Drawn:
    """Rows of one kind: `rows` with the columns COLUMNS, `refused` as (load, reason), `dodge` as a factor on
    the load.
    """

    kind: Kind
    rows: pd.DataFrame
    refused: tuple[tuple[float, str], ...]
    dodge: float


def comparison_frame(comparison, name: str) -> pd.DataFrame:
    """Return one frame of a comparison (attribute or key; a list of dicts is a frame too); a missing one is a
    UserError.
    """
    try:
        rows = comparison[name] if isinstance(comparison, dict) else getattr(comparison, name)
    except (KeyError, AttributeError):
        raise UserError(f"the comparison has no {name!r}; it needs direct, same_speed and same_throughput") from None
    return pd.DataFrame(rows)


def contender_name(comparison, side: str) -> str:
    """Return the name of side "a" or "b": a string, or something with a name; the letter where the comparison
    has none.
    """
    value = comparison.get(side) if isinstance(comparison, dict) else getattr(comparison, side, None)
    value = value.get("name") if isinstance(value, dict) else getattr(value, "name", value)
    return value if isinstance(value, str) else side.upper()


def drawn_kinds(frames: dict[str, pd.DataFrame]) -> list[Drawn]:
    """Return the kinds that have rows or refusals at a measured load of B, set side by side around it."""
    found = []
    for kind in KINDS:
        frame = frames[kind.frame]
        if "load_b" not in frame or kind.value not in frame:
            continue
        frame = frame[frame["load_b"].notna()]
        refused = frame["refused"].notna() if "refused" in frame else pd.Series(False, index=frame.index)
        source = {"load": "load_b", "value": kind.value, "low": kind.low, "high": kind.high}
        if kind.value == "speed_ratio":
            source |= dict.fromkeys(
                ("bracket_low", "bracket_high", "floor"), ""
            )  # these belong to the throughput ratio
        taken = {name: frame.get(source.get(name, name), np.nan) for name in COLUMNS}
        rows = pd.DataFrame(taken, index=frame.index).astype(float)[~refused & frame[kind.value].notna()]
        reasons = tuple((float(row["load_b"]), str(row["refused"])) for _, row in frame[refused].iterrows())
        if kind.value == "speed_ratio":
            reasons = ()
        if len(rows) or reasons:
            found.append((kind, rows.sort_values("load"), reasons))
    every = sorted({load for _, rows, reasons in found for load in (*rows["load"], *(at for at, _ in reasons))})
    step = 0.17 * min(np.diff(np.log2(every)), default=1.0)
    middle = (len(found) - 1) / 2
    return [Drawn(*one, dodge=2 ** (step * (index - middle))) for index, one in enumerate(found)]


def refusal_notes(drawn: list[Drawn]) -> list[str]:
    """One sentence for each kind and reason, with the loads that it concerns."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in drawn:
        for load, reason in one.refused:
            groups.setdefault((one.kind.name, reason), []).append(format_count(load))
    return [f"{name} at {', '.join(loads)}: {reason.rstrip('.')}" for (name, reason), loads in groups.items()]
