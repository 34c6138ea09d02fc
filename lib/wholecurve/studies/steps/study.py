"""A step study from its settings to its record: load the model, scale the sizes, fill the cache, measure the cells."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch

from wholecurve.errors import UserError
from wholecurve.models.bounds import Ceilings
from wholecurve.studies.steps.cell import Effort, measure_step
from wholecurve.studies.steps.context import FilledContext, WrongCache
from wholecurve.studies.steps.model import StepModel
from wholecurve.studies.steps.record import HARNESS, StepRecord
from wholecurve.studies.steps.scaling import free_bytes
from wholecurve.studies.steps.work import bound_fields


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decode and prefill studies share. memory_bytes: for cache and workspace, None for what is free.
    ceilings: whether to measure the machine's, for bounds and for scaling by time; known_ceilings: where that has been
    done, a document as of `measured_ceilings`.
    """

    block_size: int = 16
    seed: int = 0
    repeat: int = 1
    name: str | None = None
    samples: int = 15
    seconds: float = 20.0
    memory_bytes: int | None = None
    ceilings: bool = True
    known_ceilings: dict | None = None

    def __post_init__(self) -> None:
        for field in ("block_size", "repeat", "samples"):
            if getattr(self, field) < 1:
                raise UserError(f"{field} is {getattr(self, field)}; it must be at least 1")
        if not 0 < self.seconds < float("inf"):
            raise UserError(f"seconds is {self.seconds}; it must be a number above 0")
        if not 0 <= self.seed < 2**31:
            raise UserError(f"seed is {self.seed}; it must lie between 0 and 2**31 - 1")


class StepStudy:
    """One study on a loaded model. say: where lines of progress go."""

    def __init__(
        self, model: StepModel, settings: Settings, out: Path | None = None, say: Callable[[str], None] = lambda _: None
    ):
        self.model, self.settings, self.say = model, settings, say
        self.record = StepRecord(out)
        self.ceilings = self._ceilings() if settings.ceilings else None
        self.memory_bytes = settings.memory_bytes or free_bytes(model.device)

    def _ceilings(self) -> Ceilings:
        """Those of the record where it has them: a study that goes on keeps its bounds."""
        found = self.record.read("ceilings") or self.settings.known_ceilings
        if found is None:
            self.say("measuring the ceilings of this machine")
            found = measured_ceilings(self.model)
        self.found_ceilings = found
        return Ceilings(found["read_bytes_per_s"], found["gemm_flops_per_s"])

    def begin(self, plan: dict, scaling: dict) -> None:
        """Write what is measured, and what was scaled, before anything is measured."""
        settings = self.settings
        shared = {"block_size": settings.block_size, "seed": settings.seed, "harness": HARNESS}
        self.record.begin({**self.model.plan, **shared, "ceilings": settings.ceilings, **plan})
        if self.ceilings is not None:
            self.record.write("ceilings", self.found_ceilings)
        if scaling or self.record.read("scaling") is None:
            self.record.write("scaling", scaling)

    def filled(self, requests: int, cached: int, new: int, contexts: int | None) -> FilledContext:
        """The cache of the study; `contexts` None for one per request."""
        own = requests if contexts is None else min(contexts, requests)
        shape = f"{requests} sequences of {cached:,} cached tokens ({cache_fill(contexts)}), room for {new:,} new ones"
        self.say(f"filling the cache without prefill: {shape}")
        settings = self.settings
        options = dict(contexts=own, block_size=settings.block_size, seed=settings.seed)
        try:
            return FilledContext(self.model.model, requests, cached, new, **options)
        except torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"the cache does not fit ({reason}); give a smaller context or fewer requests") from None

    def measure(self, cell: str, step, about: dict, work, rates) -> dict:
        """Measure one cell and keep it. work: its StepWork. rates: columns that follow from the median step [ms].

        A cell whose step did not run on its cached tokens, or ran out of memory, has no numbers and says why.
        """
        settings = self.settings
        effort = Effort(settings.samples, settings.seconds, self.model.graphs and about["kind"] == "decode")
        try:
            times = measure_step(step, effort)
        except (WrongCache, torch.OutOfMemoryError) as error:
            times = {"note": f"no number: {str(error).splitlines()[0]}"}
        median = times.get("step_median_ms")
        row = {
            **about,
            "contender": settings.name or self.model.contender(about),
            "repeat": settings.repeat,
            **self.model.row,
            **bound_fields(work, self.ceilings, median),
            **times,
            **(rates(median) if median else {}),
        }
        self.record.add(cell, row)
        self.say(f"{cell}: {median:.3f} ms" if median else f"{cell}: {row['note']}")
        return row


def cache_fill(contexts: int | None) -> str:
    """In words how cached tokens came to be."""
    random = "random keys and values written to the cache"
    if contexts is None:
        return f"{random}, own to each request"
    return f"{random}, {contexts} context{'s' * (contexts > 1)} shared through the block tables"


def fill_fields(requests: int, contexts: int | None) -> dict:
    """Columns that say how the cached tokens of a cell came to be."""
    different = requests if contexts is None else min(contexts, requests)
    return {"cached_contexts": different, "cache_fill": cache_fill(contexts if different < requests else None)}


def measured_ceilings(model: StepModel) -> dict:
    """Bytes read per second and FLOPs per second of a product on the model's device, with their source."""
    if model.device.type == "cuda":
        from wholecurve.profiling.gpu import measure_gpu_ceilings, this_gpu

        found, samples = measure_gpu_ceilings(this_gpu())
        by_kind = {ceiling.kind: ceiling for ceiling in found}
        return {
            "source": "measured (gpu)",
            "dtype": "bfloat16",
            "read_bytes_per_s": by_kind["measured read"].value,
            "gemm_flops_per_s": by_kind["measured GEMM"].value,
            "trials": samples,
        }
    from wholecurve.profiling.ceilings import measure_cpu_ceilings

    return measure_cpu_ceilings(str(model.dtype).removeprefix("torch."), torch.get_num_threads())
