"""One cell of a step study: checked, timed, checked again."""

import dataclasses

import torch

from wholecurve.engine.replay import replay_for
from wholecurve.studies.steps.clock import StepTimes, time_steps
from wholecurve.studies.steps.context import WrongCache

GRAPH_TOLERANCE = 0.02  # of the largest logit: a graph may be given another product by the library


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long a cell is measured: most samples, about how many seconds, and whether in a CUDA graph."""

    samples: int = 15
    seconds: float = 20.0
    graph: bool = False


def measure_step(step, effort: Effort) -> dict:
    """Columns of a DecodeStep's or PrefillStep's times, of its cached tokens, and of what came out of it.

    WrongCache, and then there is no number, where the step does not run on its cached tokens: their count is taken
    from the batch, and another value in a cached token must change the logits of its sequence. Logits are compared
    with those of the first step after a graph was captured and again after all steps.
    """
    filled = step.filled
    cached, first = proven_logits(step)
    run = step.work
    if effort.graph:
        run = replay_for(filled.device, step.work).replay
        step.restart()
        require_same(run()[0], first, "replayed in a graph")
    step.restart()
    method = method_of(filled.device, effort.graph)
    times = time_steps(run, filled.device, samples=effort.samples, seconds=effort.seconds, method=method)
    outcome = step.outcome()
    require_same(checked_logits(step), first, "after the timed steps")
    return {"cached_tokens": cached, **outcome, **time_fields(times)}


def proven_logits(step) -> tuple[int, torch.Tensor]:
    """(cached tokens, logits of the first step); WrongCache for a step that does not run on its cached tokens."""
    filled = step.filled
    cached = filled.require_cached(step.batch())
    first = checked_logits(step)
    if cached:
        with filled.changed_values(step.requests):
            step.restart()
            changed = step.work()[0].unflatten(0, (step.requests, step.rows))
        unchanged = (changed == first.unflatten(0, (step.requests, step.rows))).flatten(1).all(dim=1)
        if unchanged.any():
            raise WrongCache(f"{int(unchanged.sum())} sequences give the same logits after a cached value was changed")
    return cached, first


def checked_logits(step) -> torch.Tensor:
    """A copy of the logits of the first step; WrongCache where one of them is not finite."""
    step.restart()
    logits = step.work()[0].clone()
    if not logits.isfinite().all():
        raise WrongCache("logits are not finite: the step reads what is not cached, or overflows")
    return logits


def require_same(logits: torch.Tensor, first: torch.Tensor, when: str) -> None:
    """WrongCache where logits differ from those of the first step by more than rounding."""
    worst, largest = (logits - first).abs().max().item(), first.abs().max().item()
    if not worst <= GRAPH_TOLERANCE * largest:
        raise WrongCache(f"{when}, the first step gives other logits: they differ by {worst:.3g} of {largest:.3g}")


def method_of(device: torch.device, graph: bool) -> str:
    """How times are taken, in words."""
    if device.type != "cuda":
        return "perf_counter"
    return f"CUDA events around {'the replay of a graph' if graph else 'eager launches'}"


def time_fields(times: StepTimes) -> dict:
    """The columns of measured times."""
    return {
        "step_median_ms": times.median_ms,
        "step_p10_ms": times.percentile_ms(0.1),
        "step_p90_ms": times.percentile_ms(0.9),
        "n_samples": len(times.samples_ms),
        "warm_up_steps": times.warm_up,
        "method": times.method,
        "samples_ms": times.samples_ms,
    }
