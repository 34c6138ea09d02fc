"""The document that `wholecurve compare --json` prints: one comparison over every workload that both sides have."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from wholecurve.curves.compare import Comparison, compare, fewest_resamples
from wholecurve.curves.gates.conditions import UNSTATED_WORKLOAD, check_alike
from wholecurve.errors import UserError


@dataclass(frozen=True)
class Targets:
    """Where multipliers are read besides B's points: at speeds [tok/s/user], throughputs [tok/s/device], loads."""

    speed: Sequence[float] = ()
    throughput: Sequence[float] = ()
    concurrency: Sequence[float] = ()


MEASURED_POINTS = Targets()


@dataclass(frozen=True)
class Control:
    """One contender measured twice, both as `readers.Source`: what differs between them is noise."""

    first: object
    again: object


@dataclass(frozen=True)
class FullComparison:
    """Decode and prefill comparisons of the same two contenders; one of them may be None."""

    decode: Comparison | None
    prefill: Comparison | None

    def to_document(self) -> dict:
        """Decode rows under `direct`, `same_speed`, `same_throughput`; prefill rows, direct only, under `prefill`.

        A workload that the two do not share is absent: empty lists and an empty summary, or None for prefill.
        """
        prefill = self.prefill.to_document() if self.prefill else None
        if self.decode:
            main = self.decode.to_document()
        else:
            empty = {"direct": [], "same_speed": [], "same_throughput": [], "summary": {}, "warnings": []}
            main = {"a": prefill["a"], "b": prefill["b"], **empty}
        kept = ("direct", "summary", "warnings")
        return {**main, "prefill": {name: prefill[name] for name in kept} if prefill else None}


def compare_sources(
    a,
    b,
    targets: Targets = MEASURED_POINTS,
    workload: str | None = None,
    across: bool = False,
    control: Control | None = None,
) -> FullComparison:
    """Compare two `readers.Source`: the decode-like workload that both have, and prefill where both have it.

    ``workload`` names the one to compare where they share several. ``across`` compares under different conditions all
    the same, and names them; ``control`` is one contender measured twice, which bounds the noise. Raises UserError when
    they share no workload, or differ in conditions without ``across``.
    """
    decode, prefill = _pair(a, b, workload, across)
    if not decode and (targets.speed or targets.throughput or targets.concurrency):
        raise UserError(
            f"a target was given, but {a.spec} and {b.spec} share prefill only; prefill curves have no speed to match"
        )
    return FullComparison(
        _compare(a, b, decode, targets, across, control) if decode else None,
        _compare(a, b, prefill, MEASURED_POINTS, across, control) if prefill else None,
    )


def _pair(a, b, workload: str | None, across: bool) -> tuple[tuple[str, str] | None, tuple[str, str] | None]:
    """Names of the decode-like workload on both sides, and of prefill; None for what they do not share."""
    if workload is not None:
        for source in (a, b):
            if workload not in source.workloads():
                raise UserError(f"{source.spec}: no workload {workload!r}; there is: {', '.join(source.workloads())}")
        return (None, (workload, workload)) if a.is_prefill(workload) else ((workload, workload), None)
    shared = [name for name in a.workloads() if name in b.workloads()]
    decode = [(name, name) for name in shared if not a.is_prefill(name)]
    prefill = [(name, name) for name in shared if a.is_prefill(name)]
    if not decode:
        alone = [[name for name in source.workloads() if not source.is_prefill(name)] for source in (a, b)]
        if all(len(names) == 1 for names in alone) and (across or UNSTATED_WORKLOAD in (alone[0][0], alone[1][0])):
            decode = [(alone[0][0], alone[1][0])]
    for found in (decode, prefill):
        if len(found) > 1:
            raise UserError(
                f"{a.spec} and {b.spec} share several workloads ({', '.join(name for name, _ in found)}); choose one "
                "with --workload"
            )
    if not decode and not prefill:
        raise UserError(
            f"{a.spec} has workloads {a.workloads()}, {b.spec} has {b.workloads()}; they have none in common"
            + ("" if across else " (--across compares one with the other all the same)")
        )
    return decode[0] if decode else None, prefill[0] if prefill else None


def _compare(a, b, names: tuple[str, str], targets: Targets, across: bool, control: Control | None) -> Comparison:
    label_a, label_b = _labels(a, b)
    curve_a, curve_b = a.curve(names[0], label_a), b.curve(names[1], label_b)
    unlike = check_alike(curve_a, curve_b, across)
    bound = None
    if control and all(names[0] in source.workloads() for source in (control.first, control.again)):
        again = control.again.curve(names[0], f"{control.again.contender} (A/A)")
        # Its ratios alone are the bound, so its intervals need not be good ones.
        bound = compare(control.first.curve(names[0]), again, resamples=fewest_resamples())
    comparison = compare(
        curve_a,
        curve_b,
        targets.speed,
        targets.throughput,
        at_concurrency=targets.concurrency,
        control=bound,
        requests_a=a.requests(names[0]),
        requests_b=b.requests(names[1]),
    )
    found = [*unlike, *a.incomplete(names[0]), *b.incomplete(names[1])]
    return replace(comparison, warnings=[*map(str, found), *comparison.warnings])


def _labels(a, b) -> tuple[str, str]:
    """The contenders' names, with their files where both are called the same."""
    if a.contender != b.contender:
        return a.contender, b.contender
    short = [PurePath(source.spec).name for source in (a, b)]
    places = short if short[0] != short[1] else [a.spec, b.spec]
    return f"{a.contender} [{places[0]}]", f"{b.contender} [{places[1]}]"
