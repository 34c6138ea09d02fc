"""Drawing the lengths and waits of a plan."""

import math

import numpy as np

from wholecurve.studies.serving.workloads.plan_parts import Delay, Tokens


def draw_tokens(amount: Tokens, rng: np.random.Generator) -> int:
    """A whole number of tokens, both ends of a range included."""
    if isinstance(amount, list):
        return int(rng.integers(amount[0], amount[1] + 1))
    value = rng.lognormal(math.log(amount.median), amount.sigma)
    return int(min(max(round(value), math.ceil(amount.low)), math.floor(amount.high)))


def draw_seconds(amount: Delay, rng: np.random.Generator) -> float:
    """A wait in seconds."""
    if isinstance(amount, list):
        return float(rng.uniform(amount[0], amount[1]))
    return float(min(max(rng.lognormal(math.log(amount.median), amount.sigma), amount.low), amount.high))
