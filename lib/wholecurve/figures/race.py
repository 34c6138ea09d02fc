"""Who takes part in a run under which name: a tuned contender of a serving study runs as its finalists."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pandas as pd

from wholecurve.figures.style import HOME_COLOURS, OKABE_ITO, contender_colours
from wholecurve.runs import RunFolder

_FINALIST = re.compile(r"(?P<name>.+) \(finalist (?P<place>\d+) of (?P<tried>\d+)\)")


@dataclass(frozen=True)
class Racer:
    """``name`` is what its points say, ``planned`` what the plan calls it, ``control_of`` the racer it repeats.

    ``tried`` is the number of settings that a finalist was chosen from, None for one that was not tuned.
    """

    name: str
    planned: str
    control_of: str | None
    tried: int | None = None


@dataclass(frozen=True)
class Race:
    """The racers of a run, in the order of the plan; finalists of one contender best first."""

    racers: tuple[Racer, ...]

    @property
    def ours(self) -> str:
        """The contender that is compared with the others: the first of the plan, with the best of its settings."""
        return self.racers[0].name

    @property
    def controls(self) -> list[str]:
        """Racers that repeat another one."""
        return [racer.name for racer in self.racers if racer.control_of is not None]

    @property
    def left_out(self) -> list[str]:
        """No peers of `ours`: controls, and its other finalists."""
        own = [racer.name for racer in self.racers[1:] if racer.planned == self.racers[0].planned]
        return list(dict.fromkeys([*own, *self.controls]))

    @property
    def peers(self) -> list[str]:
        """Racers of other contenders, every finalist of them."""
        return [racer.name for racer in self.racers[1:] if racer.name not in self.left_out]

    @property
    def best_peers(self) -> list[str]:
        """One name for each other contender of the plan: its best finalist."""
        best = {racer.planned: racer.name for racer in reversed(self.racers)}
        return [name for name in self.peers if name in best.values()]

    @property
    def labels(self) -> dict[str, str]:
        """Names as figures write them: the plan's, unless several finalists of one contender have to be told apart."""
        planned = [racer.planned for racer in self.racers]
        return {r.name: r.planned if planned.count(r.planned) == 1 else r.name for r in self.racers}

    @property
    def tuning_text(self) -> str:
        """How many settings each tuned contender tried before the race, as a sentence; empty where nobody was tuned."""
        tried = {racer.planned: racer.tried for racer in self.racers if racer.tried}
        counts = ", ".join(f"{name} {n}" for name, n in tried.items())
        return f"Settings tried before the race: {counts}." if counts else ""

    @property
    def colours(self) -> dict[str, str]:
        """A colour per racer; the best finalist of a known engine has the engine's own."""
        names = [racer.name for racer in self.racers if racer.control_of is None]
        found = contender_colours([], self.controls)
        for racer in self.racers:
            home = HOME_COLOURS.get(racer.planned.lower())
            if racer.name in names and home is not None and home not in found.values():
                found[racer.name] = home
        free = [colour for colour in OKABE_ITO.values() if colour not in found.values()]
        return found | dict(zip((name for name in names if name not in found), free))


def labelled(race: Race, points: pd.DataFrame) -> tuple[Race, pd.DataFrame]:
    """The same race and points under `labels`, for figures and tables where a long name has no room."""
    labels = race.labels
    renamed = [replace(r, name=labels[r.name], control_of=labels.get(r.control_of, r.control_of)) for r in race.racers]
    return Race(tuple(renamed)), points.assign(contender=points["contender"].map(lambda name: labels.get(name, name)))


def race_of(run: RunFolder) -> Race:
    """The racers that a run's points name; where it has none yet, the contenders of its plan."""
    points = run.points()
    present = list(dict.fromkeys(points["contender"])) if len(points) else []
    racers, first = [], {}
    for contender in run.plan["plan"]["contenders"]:
        planned = contender["name"]
        names = _names_of(planned, present)
        first[planned] = next(iter(names))
        repeated = contender["control_of"]
        control_of = None if repeated is None else first.get(repeated, repeated)
        racers += [Racer(name, planned, control_of, tried) for name, tried in names.items()]
    return Race(tuple(racers))


def _names_of(planned: str, present: Iterable[str]) -> dict[str, int | None]:
    """The names under which a contender of the plan ran, each with the number of settings that were tried."""
    if planned in present:
        return {planned: None}
    found = [match for name in present if (match := _FINALIST.fullmatch(name)) and match["name"] == planned]
    ordered = sorted(found, key=lambda match: int(match["place"]))
    return {match.group(): int(match["tried"]) for match in ordered} or {planned: None}
