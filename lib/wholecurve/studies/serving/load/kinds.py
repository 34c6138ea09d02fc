"""The loads that a point can have."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ClosedLoad:
    """``concurrency`` sessions always in flight: the next one starts when one is over.

    The first ones start evenly over ``ramp_s``.
    """

    concurrency: int
    ramp_s: float = 0.0


@dataclass(frozen=True)
class OpenLoad:
    """Sessions start by the clock, whatever the server does; their times are drawn from ``seed``.

    "poisson": gaps exponential. "constant": gaps equal. "bursts": gaps of a gamma distribution with shape
    ``burstiness`` (1 is Poisson, below it they come in bursts). "recorded": each session's own ``start_s``, divided
    by ``rate_per_s`` as a speed-up (1 is as recorded). Within ``ramp_s`` the rate rises linearly from 0.
    """

    rate_per_s: float
    arrivals: Literal["poisson", "constant", "bursts", "recorded"] = "poisson"
    burstiness: float = 1.0
    ramp_s: float = 0.0
    seed: int = 0
    most_in_flight: int | None = None  # sessions that are due wait beyond it, and their wait counts


Load = ClosedLoad | OpenLoad
