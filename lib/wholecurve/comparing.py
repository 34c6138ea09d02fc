"""From specs on the command line to comparisons: one baseline, several, or frontiers over configurations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wholecurve.curves import FullComparison, compare_sources
from wholecurve.curves.baselines import BaselineComparison, best_baseline
from wholecurve.curves.documents import MEASURED_POINTS, Control, Targets
from wholecurve.curves.frontier import Frontier
from wholecurve.curves.frontier_compare import FrontierComparison, compare_frontiers
from wholecurve.curves.gates.conditions import check_frontiers
from wholecurve.errors import UserError
from wholecurve.readers.specs import Source, named_apart, read_control, read_source, read_sources


@dataclass(frozen=True)
class Comparisons:
    """One contender against each of several baselines, in the order given; ``best`` is over the better of them per
    reading, a composite, where there are several and all have decode curves."""

    comparisons: list[FullComparison]
    best: BaselineComparison | None = None

    def to_document(self) -> dict:
        """The document of the comparison, or with several baselines a list of them and the labelled composite."""
        documents = [one.to_document() for one in self.comparisons]
        if len(documents) == 1:
            return documents[0]
        composite = self.best.to_document()["best_baseline"] if self.best else None
        return {"a": documents[0]["a"], "comparisons": documents, "best_baseline": composite}


@dataclass(frozen=True)
class Options:
    """How specs are read and what is allowed: ``workload`` to compare, ``across`` different conditions, and the number
    of GPUs for files that do not state it."""

    workload: str | None = None
    across: bool = False
    gpus_a: int | None = None
    gpus_b: int | None = None


AS_STATED = Options()


def compare_specs(
    a: str,
    b: Sequence[str],
    targets: Targets = MEASURED_POINTS,
    options: Options = AS_STATED,
    control: str | None = None,
) -> Comparisons:
    """Compare A with every B.

    ``control`` is a spec of A measured a second time; without it the A/A control of A's own run is taken where the run
    has one. Raises UserError for specs that cannot be read or must not be compared.
    """
    source_a = read_source(a, options.gpus_a)
    again = Control(source_a, read_source(control, options.gpus_a)) if control else read_control(a)
    found = []
    for source_b in named_apart([read_source(spec, options.gpus_b) for spec in b]):
        if (source_b.spec, source_b.contender) == (source_a.spec, source_a.contender):
            raise UserError(f"{source_b.spec}: is compared with itself; two different contenders are needed")
        # A control says nothing about itself: compared with it, A is the noise.
        bound = None if again and again.again.contender == source_b.contender else again
        found.append(compare_sources(source_a, source_b, targets, options.workload, options.across, bound))
    best = None
    if len(found) > 1 and all(one.decode for one in found):
        best = best_baseline([one.decode for one in found], targets.speed, targets.throughput)
    return Comparisons(found, best)


def compare_frontier_specs(a: str, b: Sequence[str], options: Options = AS_STATED) -> list[FrontierComparison]:
    """Compare the frontier over every contender of A with the one over every contender of each B.

    Raises UserError for specs without a shared decode-like workload, and for different conditions without ``across``.
    """
    sources_a = read_sources(a, options.gpus_a)
    found = []
    for spec in b:
        sources_b = read_sources(spec, options.gpus_b)
        workload = options.workload or _shared_workload([*sources_a, *sources_b], f"{a} and {spec}")
        curves_a, curves_b = ([one.curve(workload) for one in sources] for sources in (sources_a, sources_b))
        warnings = check_frontiers(curves_a, curves_b, options.across)
        compared = compare_frontiers(Frontier.from_curves(curves_a, a), Frontier.from_curves(curves_b, spec))
        found.append(replace(compared, warnings=[str(warning) for warning in warnings]))
    return found


def _shared_workload(sources: Sequence[Source], names: str) -> str:
    per_source = [[name for name in source.workloads() if not source.is_prefill(name)] for source in sources]
    shared = [name for name in per_source[0] if all(name in names for names in per_source)]
    if len(shared) != 1:
        raise UserError(
            f"{names}: their contenders share {len(shared)} decode workloads ({', '.join(shared) or 'none'}); one is "
            "needed, chosen with --workload"
        )
    return shared[0]
