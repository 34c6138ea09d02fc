"""When the sessions of an open loop are due."""

import math
from collections.abc import Sequence

import numpy as np

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.kinds import OpenLoad
from wholecurve.studies.serving.load.turns import Session


def due_times_s(load: OpenLoad, sessions: Sequence[Session]) -> list[float]:
    """When each session is due, in seconds from the start of the load, to the microsecond.

    The first drawn arrival is at 0. Gaps are drawn for a rate of one and stretched to `load.rate_per_s`, so the
    levels of a study differ in pace alone. Raises UserError where `load` cannot be kept, or where a recorded arrival
    is missing.
    """
    check_open_load(load)
    if load.arrivals == "recorded":
        return [round(_recorded_s(session) / load.rate_per_s, 6) for session in sessions]
    gaps = _unit_gaps(load, len(sessions) - 1)
    expected = np.concatenate([[0.0], np.cumsum(gaps)])
    return [round(float(at), 6) for at in _at_expected_count(expected, load.rate_per_s, load.ramp_s)]


def check_open_load(load: OpenLoad) -> None:
    """UserError, naming the field, where a load is impossible."""
    for name, value in (("rate_per_s", load.rate_per_s), ("burstiness", load.burstiness)):
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"open load: {name} is {value}; a finite number above 0 is needed")
    if not (math.isfinite(load.ramp_s) and load.ramp_s >= 0):
        raise UserError(f"open load: ramp_s is {load.ramp_s}; seconds of 0 or more are needed")
    if load.most_in_flight is not None and load.most_in_flight < 1:
        raise UserError(
            f"open load: most_in_flight is {load.most_in_flight}; at least 1 is needed, or none for no limit"
        )
    if load.arrivals not in ("poisson", "constant", "bursts", "recorded"):
        raise UserError(f"open load: arrivals are {load.arrivals!r}; poisson, constant, bursts or recorded are there")
    if load.arrivals == "recorded" and load.ramp_s:
        raise UserError(f"open load: ramp_s is {load.ramp_s}, but recorded arrivals bring their own pace; 0 is needed")


def _recorded_s(session: Session) -> float:
    at = session.start_s
    if at is None or not (math.isfinite(at) and at >= 0):
        raise UserError(
            f"session {session.session_id}: start_s is {at}; recorded arrivals need seconds from the start of the load"
        )
    return at


def _unit_gaps(load: OpenLoad, count: int) -> np.ndarray:
    """Gaps of mean 1."""
    rng = np.random.default_rng([load.seed, 6])
    if load.arrivals == "constant":
        return np.ones(count)
    if load.arrivals == "poisson":
        return rng.exponential(size=count)
    return rng.gamma(load.burstiness, 1 / load.burstiness, size=count)


def _at_expected_count(expected: np.ndarray, rate_per_s: float, ramp_s: float) -> np.ndarray:
    """The moments at which so many arrivals are expected, at a rate that rises linearly from 0 within the ramp.

    The expected count is rate·t²/(2·ramp) within the ramp and rate·(t − ramp/2) after it; this is its inverse.
    """
    in_ramp = expected <= rate_per_s * ramp_s / 2
    return np.where(in_ramp, np.sqrt(2 * ramp_s * expected / rate_per_s), expected / rate_per_s + ramp_s / 2)
