"""Everything that a card is made from, read once: the documents of a run, its points, and what its traces say."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pandas as pd

from wholecurve.card.traces import PointTrace, read_traces
from wholecurve.curves import Comparison
from wholecurve.errors import UserError
from wholecurve.runs import RunFolder

if TYPE_CHECKING:
    from wholecurve.figures.race import Race

_NEEDED = ("contender", "workload", "load", "repeat", "order", "source", "load_kind")
_OPTIONAL = ("model", "ceilings", "agreement", "tuning", "faults", "maximum_load")
# Probes of a search for the largest load: each has a load of its own, so they are no part of the race.
SEARCHED = "maximum_load"


@dataclass(frozen=True)
class RunFacts:
    """One run as it lies on disk. ``rows`` are its points in the order of measurement, ``traces`` are by point id.

    ``rows`` have what a later harness derives from the traces and the recorded point lacks; nothing is replaced. A
    document that the run does not have is None. ``bounds`` are by workload, from the best ceilings of all rounds, and
    ``above`` names what lies above them; ``above_kept`` is the same for the rounds alone that keep their raw trials.
    ``comparisons`` are by workload: the first contender over each other one, or the sentence that says why there are
    none.
    """

    name: str
    document: dict
    provenance: dict
    race: "Race"
    rows: list[dict]
    traces: dict[str, PointTrace]
    model: dict | None
    ceilings: dict | None
    agreement: dict | None
    tuning: dict | None
    faults: dict | None
    maximum_load: dict | None
    bounds: dict[str, pd.DataFrame]
    above: list[str]
    above_kept: list[str]
    comparisons: dict[str, list[Comparison] | str]

    @property
    def plan(self) -> dict:
        return self.document["plan"]

    @property
    def is_serving(self) -> bool:
        """True where servers were asked over HTTP, False where engines were called in their own processes."""
        return self.plan.get("kind") == "serving"

    @cached_property
    def raced(self) -> list[dict]:
        """The rows without the probes of a search."""
        return [row for row in self.rows if row["workload"] != SEARCHED]

    @cached_property
    def points(self) -> pd.DataFrame:
        """The raced rows as a tidy frame."""
        return pd.DataFrame(self.raced)

    @cached_property
    def workloads(self) -> list[str]:
        """Names of the workloads that were raced, in the order in which they were first measured."""
        return list(dict.fromkeys(row["workload"] for row in self.raced))

    @cached_property
    def contenders(self) -> list[str]:
        """Names under which contenders raced, in the plan's order; a planned one without points keeps its name."""
        names = [racer.name for racer in self.race.racers]
        return names + [name for name in dict.fromkeys(row["contender"] for row in self.rows) if name not in names]

    @property
    def first(self) -> str:
        """The contender that is compared with each other one."""
        return self.race.ours

    @cached_property
    def controls(self) -> dict[str, str]:
        """Contenders that repeat another one, and which."""
        return {racer.name: racer.control_of for racer in self.race.racers if racer.control_of is not None}

    @property
    def peers(self) -> list[str]:
        """Contenders of another engine or configuration than the first one's, without controls."""
        return self.race.peers

    def planned_name(self, name: str) -> str:
        """What the plan calls a contender: of a finalist, the one that was tuned."""
        return next((racer.planned for racer in self.race.racers if racer.name == name), name)

    def planned(self, name: str) -> dict:
        """The plan's entry of a contender; empty for a name that the plan does not have."""
        return next((one for one in self.plan["contenders"] if one["name"] == self.planned_name(name)), {})

    @cached_property
    def operated(self) -> list[str]:
        """Contenders that somebody else runs: the study neither started nor set them."""
        return [name for name in self.contenders if self.planned(name).get("url")]

    def of(self, **wanted) -> list[dict]:
        """The rows with these values, as `of(workload="decode")`."""
        return [row for row in self.rows if all(row[key] == value for key, value in wanted.items())]

    @cached_property
    def compared(self) -> list[tuple[str, Comparison]]:
        """(workload, comparison) of every pair that could be compared, controls included."""
        return [(w, one) for w, found in self.comparisons.items() if not isinstance(found, str) for one in found]

    @cached_property
    def over_peers(self) -> list[tuple[str, Comparison]]:
        """(workload, comparison) of the first contender over each one that repeats none."""
        return [(workload, one) for workload, one in self.compared if one.b.name not in self.controls]

    @cached_property
    def over_control(self) -> list[tuple[str, Comparison]]:
        """(workload, comparison) of the first contender over its own repetition."""
        return [(w, one) for w, one in self.compared if self.controls.get(one.b.name) == self.first]


def read_facts(run: RunFolder) -> RunFacts:
    """Read a run; UserError names the file where a document is broken or a point lacks what every point has."""
    # Figures load matplotlib, which the reader of a --help does not need.
    from wholecurve.card.ceilings import above_bounds
    from wholecurve.figures.race import race_of
    from wholecurve.runs.bounds import BOUNDED, run_bounds

    document = run.read("plan")
    for name in ("plan", "plan_hash", "harness_version"):
        if name not in document:
            raise UserError(f"{run.path / 'plan.json'}: has no {name}; it is not the plan of a run")
    recorded = {point_id: _row(run, point_id) for point_id in run.point_ids()}
    traces = read_traces(run, recorded, document["plan"])
    rows = sorted(({**traces[i].derived, **row} for i, row in recorded.items()), key=lambda row: row["order"])
    workloads = [name for name in dict.fromkeys(row["workload"] for row in rows) if name != SEARCHED]
    above, above_kept = above_bounds(run, rows)
    return RunFacts(
        name=run.path.resolve().name,
        document=document,
        provenance=run.provenance,
        race=race_of(run),
        rows=rows,
        traces=traces,
        bounds={name: run_bounds(run, name) for name in workloads if name in BOUNDED},
        above=above,
        above_kept=above_kept,
        comparisons={name: _comparisons(run, name) for name in workloads},
        **{name: run.read(name) if run.has(name) else None for name in _OPTIONAL},
    )


def _row(run: RunFolder, point_id: str) -> dict:
    row = run.read(f"points/{point_id}")
    if missing := [name for name in _NEEDED if name not in row]:
        raise UserError(f"{run.path / 'points' / point_id}.json: has no {missing[0]}; every point of a run has one")
    return row


def _comparisons(run: RunFolder, workload: str) -> list[Comparison] | str:
    from wholecurve.figures.run_figures import comparisons

    try:
        return comparisons(run, workload)
    except UserError as error:
        return str(error)
