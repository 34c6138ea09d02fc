"""The document that `wholecurve compare --json` prints: one comparison over every workload that both sides have."""

from dataclasses import dataclass

from wholecurve.curves.compare import Comparison, compare
from wholecurve.errors import UserError


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


def compare_sources(a, b, at_speed=(), at_throughput=()) -> FullComparison:
    """Compare two `readers.Source`: the decode-like workload that both have, and prefill where both have it.

    Raises UserError when they share no workload, or more than one besides prefill.
    """
    shared = [workload for workload in a.workloads() if workload in b.workloads()]
    if not shared:
        raise UserError(
            f"{a.spec} has workloads {a.workloads()}, {b.spec} has {b.workloads()}; they have none in common"
        )
    others = [workload for workload in shared if workload != "prefill"]
    if len(others) > 1:
        raise UserError(f"{a.spec} and {b.spec} share several workloads ({', '.join(others)}); split the files")
    decode = compare(a.curve(others[0]), b.curve(others[0]), at_speed, at_throughput) if others else None
    targets = ((), ()) if others else (at_speed, at_throughput)
    prefill = compare(a.curve("prefill"), b.curve("prefill"), *targets) if "prefill" in shared else None
    return FullComparison(decode, prefill)
