"""What lies above its bound, by the best ceilings of a run, and by those rounds alone that keep their raw trials."""

from wholecurve.runs import RunFolder
from wholecurve.runs.bounds import above_bound
from wholecurve.runs.ceilings import rounds_of

_RATES = ("read_bytes_per_s", "gemm_flops_per_s")


class _WithCeilings(RunFolder):
    """The same run, as if these ceilings had been measured in it."""

    def __init__(self, run: RunFolder, ceilings: dict):
        super().__init__(run.path)
        self._ceilings = ceilings

    def read(self, name: str) -> dict:
        return self._ceilings if name == "ceilings" else super().read(name)


def kept_rounds(ceilings: dict) -> list[dict]:
    """The rounds of a run's ceilings that keep their raw trials."""
    return [one for one in rounds_of(ceilings) if one.get("trials")]


def above_bounds(run: RunFolder, rows: list[dict]) -> tuple[list[str], list[str]]:
    """Measurements above their bound: by the best ceilings of all rounds, and by the best of those with raw trials."""
    if not rows or not run.has("ceilings"):
        return [], []
    ceilings = run.read("ceilings")
    kept = kept_rounds(ceilings)
    if not kept:
        return above_bound(run), []
    best = {rate: max(one[rate] for one in kept) for rate in _RATES}
    return above_bound(run), above_bound(_WithCeilings(run, {**ceilings, **best}))
