"""The largest load at which a server keeps the objectives, found by bisection; every probe is kept."""

from dataclasses import dataclass, field
from math import sqrt

from wholecurve.studies.serving.plan_parts import MaximumLoadPlan


@dataclass
class Bisection:
    """One search of one contender. Ask `next_load`, measure it, tell `record`; None ends it.

    It assumes that what is kept at a load is kept at every lower one. Probes that contradict this are named in
    `result`. Given the same answers it asks for the same loads, so a stopped search goes on by telling it again.
    """

    plan: MaximumLoadPlan
    probes: list[tuple[float, bool]] = field(default_factory=list)

    def next_load(self) -> float | None:
        """The load to probe now; None when nothing more is to be learned, or may be spent."""
        known = dict(self.probes)
        if self.plan.low not in known:
            return self.plan.low
        if not known[self.plan.low]:
            return None
        if self.plan.high not in known:
            return self.plan.high
        if known[self.plan.high] or len(self.probes) >= self.plan.steps:
            return None
        met, missed = self.best_met, self.least_missed
        if self.plan.by == "concurrency":
            middle = (met + missed) // 2
            return middle if met < middle < missed else None
        # Four digits are a rate that a person can read, and finer than any tolerance.
        middle = float(f"{sqrt(met * missed):.4g}")
        return middle if missed / met > 1 + self.plan.tolerance and met < middle < missed else None

    def record(self, load: float, met: bool) -> None:
        """The answer to one probe."""
        self.probes.append((load, met))

    @property
    def best_met(self) -> float | None:
        """The largest load below every missed one at which the objectives were kept."""
        return max((load for load, met in self.probes if met and load < (self.least_missed or load + 1)), default=None)

    @property
    def least_missed(self) -> float | None:
        """The smallest load at which they were not kept."""
        return min((load for load, met in self.probes if not met), default=None)

    def result(self) -> dict:
        """`met_at`, `missed_at` (None where there is none), `probes` in their order, and one sentence."""
        met, missed = self.best_met, self.least_missed
        unit = "requests per second" if self.plan.by == "rate" else "in flight"
        if met is None:
            says = f"not kept at {missed:g} {unit}, the lowest load of the plan"
        elif missed is None:
            says = f"kept at {met:g} {unit}, the highest load of the plan; the maximum is not lower"
        else:
            says = f"kept at {met:g}, not at {missed:g} {unit}"
        probes = [{"load": load, "met": kept} for load, kept in self.probes]
        return {"met_at": met, "missed_at": missed, "says": says, "probes": probes}
