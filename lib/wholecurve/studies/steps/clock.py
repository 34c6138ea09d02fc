"""Times of a step, one sample per step: CUDA events on a GPU, the performance counter on a CPU."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

FEWEST_SAMPLES = 3
WARM_UP_STEPS = 2


@dataclass(frozen=True)
class StepTimes:
    """samples_ms: one step each, in order. warm_up: steps before them. method: how time was taken."""

    samples_ms: list[float]
    warm_up: int
    method: str

    @property
    def median_ms(self) -> float:
        return statistics.median(self.samples_ms)

    def percentile_ms(self, share: float) -> float:
        """A percentile of the samples, linear between neighbours."""
        ordered = sorted(self.samples_ms)
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def time_steps(
    step: Callable[[], object], device: torch.device, *, samples: int, seconds: float, method: str = ""
) -> StepTimes:
    """Run `step` until there are `samples` times, or `seconds` are over and there are 3. method: for the record."""
    once = _event_ms if torch.device(device).type == "cuda" else _counter_ms
    taken, deadline = [], time.monotonic() + seconds
    while len(taken) < samples and (len(taken) < FEWEST_SAMPLES or time.monotonic() < deadline):
        taken.append(once(step))
    return StepTimes(taken, WARM_UP_STEPS, method)


def _counter_ms(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e3


def _event_ms(step: Callable[[], object]) -> float:
    from wholecurve.profiling.timing import milliseconds_of

    return milliseconds_of(step)
