"""The order of a study: repeats, shuffled load levels, contenders there and back again (ABBA)."""

from dataclasses import dataclass

import numpy as np

from wholecurve.files import slug
from wholecurve.studies.plan import Plan


@dataclass(frozen=True)
class PointSpec:
    """One point to measure. `order` is its place in the study, from 0."""

    order: int
    contender: str
    workload: str  # "decode", "prefill" or "batch"
    load: int
    repeat: int  # from 1

    @property
    def point_id(self) -> str:
        """File name of the point: readable and unique within a study."""
        return f"{self.workload}-{slug(self.contender)}-{self.load:05d}-r{self.repeat}"


def schedule(plan: Plan) -> list[PointSpec]:
    """All points in the order of measurement.

    Within a repeat the levels of all workloads are shuffled by the seed. From level to level the contenders run
    forwards, then backwards (A B, B A), so that a drift of the machine does not favour one of them; the next repeat
    begins with the other direction.
    """
    levels = [("decode", c) for c in plan.decode.concurrency] if plan.decode else []
    levels += [("prefill", n) for n in plan.prefill.step_tokens] if plan.prefill else []
    levels += [("batch", c) for c in plan.batch.concurrency] if plan.batch else []
    names = [contender.name for contender in plan.contenders]
    points: list[PointSpec] = []
    for repeat in range(1, plan.repeats + 1):
        shuffled = np.random.default_rng([plan.seed, 4, repeat]).permutation(len(levels))
        for place, index in enumerate(shuffled):
            workload, load = levels[index]
            backwards = (place + repeat) % 2 == 0
            for name in reversed(names) if backwards else names:
                points.append(PointSpec(len(points), name, workload, load, repeat))
    return points
