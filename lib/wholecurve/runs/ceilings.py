"""The ceilings of a run: measured several times, since a machine that is shared has other ones an hour later."""

FIRST = "before the first point"
_RATES = ("read_bytes_per_s", "gemm_flops_per_s")


def rounds_of(ceilings: dict) -> list[dict]:
    """Every measurement of a run's ceilings, each with `when` it was taken; a record of a single one has it first."""
    return ceilings.get("rounds") or [{"when": FIRST, **ceilings}]


def with_round(ceilings: dict | None, found: dict, when: str) -> dict:
    """The record with one more measurement. Its rates are the best of all: a ceiling is what was reached once."""
    rounds = [*(rounds_of(ceilings) if ceilings else []), {"when": when, **found}]
    best = {rate: max(one[rate] for one in rounds) for rate in _RATES}
    about = {name: found[name] for name in ("source", "dtype", "threads")}
    return {**about, **best, "rounds": rounds}
