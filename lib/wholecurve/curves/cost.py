"""What a multiplier in throughput is worth, in both of its readings: never one without the other."""

from wholecurve.errors import UserError


def capacity_gain(multiplier: float) -> float:
    """g - 1: how much more the same machines deliver at multiplier g (2.2 gives 1.2, "120 % more
    capacity")."""
    return _positive(multiplier) - 1


def cost_cut(multiplier: float) -> float:
    """1 - 1/g: how much less the same work costs at multiplier g (2.2 gives 0.545, "54.5 % lower cost")."""
    return 1 - 1 / _positive(multiplier)


def _positive(multiplier: float) -> float:
    if not 0 < multiplier < float("inf"):
        raise UserError(f"a multiplier of {multiplier} has no capacity or cost; a finite number above 0 is needed")
    return multiplier
