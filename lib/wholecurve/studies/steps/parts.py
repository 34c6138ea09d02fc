"""A step of the native form taken apart: what each part costs, against what its bytes and FLOPs must cost.

Decode steps of several numbers of requests over a filled context, and prefill steps of several lengths on an empty
cache, with the torch form's whole step beside them. Forms and timers run in turns.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch

from wholecurve.errors import UserError
from wholecurve.models.native import unsupported
from wholecurve.runs.provenance import hardware, usable_cores
from wholecurve.studies.steps.acceptance import Acceptance
from wholecurve.studies.steps.context import FilledContext, WrongCache
from wholecurve.studies.steps.decode import DecodeStep
from wholecurve.studies.steps.part_ceilings import measure_part_ceilings
from wholecurve.studies.steps.part_work import decode_part_work, prefill_part_work
from wholecurve.studies.steps.parts_cell import measure_forms
from wholecurve.studies.steps.parts_record import HARNESS, PartsRecord
from wholecurve.studies.steps.prefill import PrefillStep

CONCURRENCY = (1, 2, 4, 8, 16, 32, 64)
TOKENS = (128, 512, 2048, 4096)
CONTEXT = 160
NO_DRAFTS = Acceptance(0, 0.0, "conditional")


@dataclasses.dataclass(frozen=True)
class PartsOptions:
    """Loads, threads and effort. context: cached tokens per decoding request. threads: () for 1 and all cores.
    seconds: about how long one cell may take. ceilings: whether to measure the machine's, for bounds.
    """

    concurrency: tuple[int, ...] = CONCURRENCY
    tokens: tuple[int, ...] = TOKENS
    context: int = CONTEXT
    threads: tuple[int, ...] = ()
    samples: int = 15
    seconds: float = 8.0
    block_size: int = 16
    seed: int = 0
    ceilings: bool = True

    def __post_init__(self) -> None:
        if not self.concurrency and not self.tokens:
            raise UserError("nothing to measure: give --concurrency or --tokens")
        for field in ("concurrency", "tokens", "threads"):
            if min(getattr(self, field), default=1) < 1:
                raise UserError(f"{field} is {list(getattr(self, field))}; every value must be at least 1")
        for field in ("context", "samples", "block_size"):
            if getattr(self, field) < 1:
                raise UserError(f"{field} is {getattr(self, field)}; it must be at least 1")
        if not 0 < self.seconds < float("inf"):
            raise UserError(f"seconds is {self.seconds}; it must be a number above 0")
        if not 0 <= self.seed < 2**31:
            raise UserError(f"seed is {self.seed}; it must lie between 0 and 2**31 - 1")


@dataclasses.dataclass(frozen=True)
class Load:
    """One cell: `requests` that decode, or one prompt of `tokens`, on `threads` threads."""

    kind: str
    requests: int
    tokens: int
    threads: int

    @property
    def name(self) -> str:
        """Such as "decode-00008-t1"."""
        return f"{self.kind}-{self.tokens:05d}-t{self.threads}"


def loads_of(options: PartsOptions) -> list[Load]:
    """All cells in the order of measurement: one number of threads after the other."""
    loads = []
    for threads in sorted(set(options.threads or (1, usable_cores()))):
        loads += [Load("decode", count, count, threads) for count in sorted(set(options.concurrency))]
        loads += [Load("prefill", 1, count, threads) for count in sorted(set(options.tokens))]
    return loads


def parts_study(
    source, options: PartsOptions, out: Path | None = None, say: Callable[[str], None] = lambda _: None
) -> PartsRecord:
    """Measure every cell that the record does not have yet, and return the record.

    source: where both forms' weights come from, a CheckpointSource or a DummySource. UserError without a native form
    here, and for loads beyond the positions of the model.
    """
    if reason := unsupported(source.config, source.dtype):
        raise UserError(f"only the native form can be taken apart, and it cannot be had: {reason}")
    study = PartsStudy(source, options, PartsRecord(out), say)
    study.record.begin(study.plan)
    missing = [load for load in loads_of(options) if not study.record.has(load.name)]
    former = torch.get_num_threads()
    try:
        study.measure_all(missing)
    finally:
        torch.set_num_threads(former)
    return study.record


class PartsStudy:
    """One study: both forms of a model, the record that it fills, and where lines of progress go."""

    def __init__(self, source, options: PartsOptions, record: PartsRecord, say: Callable[[str], None]):
        self.source, self.options, self.record, self.say = source, options, record, say
        self.itemsize = source.dtype.itemsize
        longest = max([options.context + 1, *options.tokens])
        if longest > source.config.max_position:
            raise UserError(f"a sequence of {longest:,} tokens; the model has {source.config.max_position:,} positions")

    @property
    def plan(self) -> dict:
        """What the numbers depend on."""
        config = dataclasses.asdict(self.source.config)
        options = self.options
        return {
            "kind": "parts",
            "model": self.source.name,
            "weights": self.source.weights,
            "dtype": str(self.source.dtype).removeprefix("torch."),
            "config": config | {"eos_token_ids": list(self.source.config.eos_token_ids)},
            "cached_tokens": options.context,
            "block_size": options.block_size,
            "seed": options.seed,
            "ceilings": options.ceilings,
            "harness": HARNESS,
        }

    def measure_all(self, missing: list[Load]) -> None:
        """Ceilings, the cells, and the ceilings once more: what is slow for a while must not make a low ceiling."""
        if not missing:
            return
        threads = sorted({load.threads for load in missing})
        self.measure_ceilings("before", threads)
        plain = self.source.torch(torch.device("cpu"))
        for count in threads:
            torch.set_num_threads(count)
            forms = {"native": self.source.native(count), "torch": plain}
            self.measure_decodes(forms, [one for one in missing if (one.kind, one.threads) == ("decode", count)])
            self.measure_prefills(forms, [one for one in missing if (one.kind, one.threads) == ("prefill", count)])
        self.measure_ceilings("after", threads)
        self.record.write_table()

    def measure_ceilings(self, when: str, threads: list[int]) -> None:
        """Add the ceilings of so many threads to those of the record."""
        if not self.options.ceilings:
            return
        found = self.record.read("ceilings") or {}
        self.say(f"measuring the ceilings of this machine {when} the cells")
        measured = [measure_part_ceilings(self.source.dtype, count) for count in threads]
        self.record.write("ceilings", found | {when: [*found.get(when, []), *measured]})

    def measure_decodes(self, forms: dict, loads: list[Load]) -> None:
        """Cells over one filled context, of which each uses as many requests as it has."""
        if not loads:
            return
        filled = {
            form: self.filled(model, loads[-1].requests, self.options.context, 1) for form, model in forms.items()
        }
        for load in loads:
            given = (load.requests, NO_DRAFTS, self.options.seed)
            self.measure(load, {form: DecodeStep(model, filled[form], *given) for form, model in forms.items()})

    def measure_prefills(self, forms: dict, loads: list[Load]) -> None:
        """Cells with an empty cache each."""
        for load in loads:
            steps = {}
            for form, model in forms.items():
                empty = self.filled(model, 1, 0, load.tokens)
                steps[form] = PrefillStep(model, empty, [load.tokens], self.options.seed)
            self.measure(load, steps)

    def filled(self, model, requests: int, cached: int, new: int) -> FilledContext:
        """A cache in which each request has a context of its own."""
        options = dict(contexts=requests, block_size=self.options.block_size, seed=self.options.seed)
        return FilledContext(model, requests, cached, new, **options)

    def measure(self, load: Load, steps: dict) -> None:
        """Measure one cell and keep it; a cell whose steps are wrong has no numbers and says why."""
        cell = {
            "kind": load.kind,
            "model": self.source.name + (" (random weights)" if self.source.weights == "random" else ""),
            "source": "measured (cpu)",
            "device": hardware()["cpu"],
            "dtype": self.plan["dtype"],
            "threads": load.threads,
            "requests": load.requests,
            "new_tokens": load.tokens,
            "cached_tokens": self.options.context if load.kind == "decode" else 0,
            "step_median_ms": None,
        }
        try:
            cell |= measure_forms(steps, self.options.samples, self.options.seconds)
        except WrongCache as error:
            cell["note"] = f"no number: {str(error).splitlines()[0]}"
        cell["work"] = {part: [one.read_bytes, one.flops] for part, one in self.work(load).items()}
        self.record.add(load.name, cell)
        median = cell["step_median_ms"]
        self.say(f"{load.name}: {median:.3f} ms" if median else f"{load.name}: {cell['note']}")

    def work(self, load: Load) -> dict:
        """Bytes and FLOPs of each part of a cell."""
        if load.kind == "decode":
            return decode_part_work(self.source.config, self.itemsize, load.requests, self.options.context)
        return prefill_part_work(self.source.config, self.itemsize, load.tokens)
