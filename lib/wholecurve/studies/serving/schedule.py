"""The order of a serving study: repeats, shuffled load levels, contenders there and back again (ABBA)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wholecurve.files import slug
from wholecurve.studies.serving.plan import ServingPlan

# Repeats of the race count from 1. Tuning and the search draw prompts of their own from further ones.
TUNING_REPEAT = 1001
SEARCH_REPEAT = 4000
SEARCH_WORKLOAD = "maximum_load"


@dataclass(frozen=True)
class ServingPoint:
    """One point to measure. `order` is its place in the study, from 0."""

    order: int
    contender: str
    workload: str  # "serving" or "agents"; "maximum_load" for a probe of the search
    load_kind: str  # "concurrency", "sessions" or "request_rate"
    load: float
    repeat: int  # from 1

    @property
    def point_id(self) -> str:
        """File name of the point: readable and unique within a study."""
        load = f"{int(self.load):05d}" if self.load == int(self.load) else f"{self.load:.10g}"
        unit = "-per-s" if self.load_kind == "request_rate" else ""
        return f"{self.workload.replace('_', '-')}-{slug(self.contender)}-{load}{unit}-r{self.repeat}"

    @property
    def prompts_of(self) -> int:
        """The repeat that its prompts are drawn from: a probe never sends what the race sent."""
        return self.repeat if self.workload != SEARCH_WORKLOAD else SEARCH_REPEAT + self.repeat


def schedule(plan: ServingPlan, contenders: Sequence[str]) -> list[ServingPoint]:
    """All points of the race in the order of measurement; `contenders` are those that take part, in the plan's order.

    Within a repeat the levels are shuffled by the seed. From level to level the contenders run forwards, then
    backwards (A B, B A), so that a drift of the machine does not favour one of them; the next repeat begins with the
    other direction. With servers "one at a time" each contender measures all levels before the next one, and every
    other repeat runs through the contenders backwards.
    """
    if plan.load is None:
        return []
    points: list[ServingPoint] = []
    for repeat in range(1, plan.repeats + 1):
        shuffled = np.random.default_rng([plan.seed, 5, repeat]).permutation(len(plan.load.levels))
        levels = [plan.load.levels[index] for index in shuffled]
        for name, load in _turns(levels, list(contenders), repeat, plan.servers == "together"):
            points.append(ServingPoint(len(points), name, plan.workload_name, plan.load.kind, load, repeat))
    return points


def _turns(levels: list[float], names: list[str], repeat: int, together: bool) -> list[tuple[str, float]]:
    if not together:
        return [(name, load) for name in (names if repeat % 2 else names[::-1]) for load in levels]
    turns = []
    for place, load in enumerate(levels):
        backwards = (place + repeat) % 2 == 0
        turns += [(name, load) for name in (names[::-1] if backwards else names)]
    return turns
