"""One cell of a study of parts: both forms checked, then timed in turns, the native one with and without timers."""

import statistics
import time

import torch

from wholecurve.studies.steps.cell import checked_logits, proven_logits, require_same
from wholecurve.studies.steps.clock import FEWEST_SAMPLES
from wholecurve.studies.steps.context import WrongCache
from wholecurve.studies.steps.part_work import PARTS
from wholecurve.studies.steps.parts_record import TIMED

FORMS_TOLERANCE = 0.05  # of the largest logit, between two forms
SHORT_MS = 100.0  # a step below this runs once unrecorded before each sample
IDLE_S = 0.005  # before each sample, for the threads of the other form to fall asleep


@torch.inference_mode()
def measure_forms(steps: dict, samples: int, seconds: float) -> dict:
    """Raw times of a native and a torch step of one load, and of the native one's parts on every thread, in ms.

    steps: {"native": step, "torch": step}. A sample of each in every round, until there are `samples` or `seconds` are
    over and there are 3. WrongCache, and then there is no number, where a step does not run on its cached tokens, does
    not choose the largest logit, changes while it is timed, or where the forms disagree on an empty cache.
    """
    first = {form: proven_logits(step)[1] for form, step in steps.items()}
    require_agreement(steps, first)
    runs = {
        "native": lambda: forward(steps["native"]),
        TIMED: lambda: timed(steps["native"]),
        "torch": lambda: forward(steps["torch"]),
    }
    for step in steps.values():
        step.restart()
    steps_ms, parts_ms = {name: [] for name in runs}, {part: [] for part in PARTS}
    taken, deadline = 0, time.monotonic() + seconds
    while taken < samples and (taken < FEWEST_SAMPLES or time.monotonic() < deadline):
        for name, run in runs.items():
            found = sample(run, steps_ms[name])
            if name == TIMED:
                for part, seconds_of_threads in found.items():
                    parts_ms[part].append([round(1e3 * value, 6) for value in seconds_of_threads])
            elif not torch.equal(first[name].gather(1, found[:, None])[:, 0], first[name].amax(dim=1)):
                raise WrongCache(f"the {name} form does not choose the largest logit")
        taken += 1
    for form, step in steps.items():
        require_same(checked_logits(step), first[form], f"{form} form after the timed steps")
    times = {"steps_ms": steps_ms, "parts_ms": parts_ms, "method": "perf_counter, forms in turns"}
    return {"step_median_ms": statistics.median(steps_ms["native"])} | times


def require_agreement(steps: dict, first: dict) -> None:
    """WrongCache where forms that saw the same tokens differ by more than their numbers' rounding.

    Filled caches hold other random numbers in each form, so only steps without cached tokens are compared.
    """
    if steps["native"].filled.cached:
        return
    worst = (first["native"].float() - first["torch"].float()).abs().max().item()
    largest = first["torch"].abs().max().item()
    if not worst <= FORMS_TOLERANCE * largest:
        raise WrongCache(f"the forms give other logits: they differ by {worst:.3g} of {largest:.3g}")


def forward(step) -> torch.Tensor:
    """One forward pass. Returns the token of the largest logit per row: nobody reads the logits themselves."""
    batch = step.batch()
    batch.argmax_only = True
    logits = step.model(batch, step.filled.caches)
    return logits.argmax(dim=-1) if batch.argmax is None else batch.argmax


def timed(step) -> dict[str, list[float]]:
    """One forward pass of the native form: {part: [seconds of each thread]}."""
    batch = step.batch()
    batch.argmax_only = True
    return step.model.timed(batch, step.filled.caches)


def sample(run, taken_ms: list[float]):
    """Time one run and add it to those taken; returns what the run gave. A short one runs unrecorded before."""
    time.sleep(IDLE_S)
    if not taken_ms or taken_ms[-1] < SHORT_MS:
        run()
    start = time.perf_counter()
    found = run()
    taken_ms.append(round(1e3 * (time.perf_counter() - start), 6))
    return found
