"""The decode study: one cell per number of requests, all at the same cached context."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.kernels.decode_attention.spec import SPLIT_TOKENS
from wholecurve.studies.steps.acceptance import Acceptance
from wholecurve.studies.steps.clock import FEWEST_SAMPLES, WARM_UP_STEPS
from wholecurve.studies.steps.context import blocks_needed
from wholecurve.studies.steps.decode import DecodeStep
from wholecurve.studies.steps.model import StepModel
from wholecurve.studies.steps.record import StepRecord
from wholecurve.studies.steps.scaling import Limit, halved_to_fit, require_fit
from wholecurve.studies.steps.study import Settings, StepStudy, fill_fields
from wholecurve.studies.steps.work import decode_work

CONCURRENCY = (8, 16, 32, 64, 128, 256)
CONTEXT = 131_072


@dataclasses.dataclass(frozen=True)
class DecodeOptions:
    """concurrency: requests per cell. context: cached tokens per request, None for 131,072 scaled to the machine.
    contexts: None for a context per request, else how many different ones all requests share.
    """

    acceptance: Acceptance
    concurrency: tuple[int, ...] = CONCURRENCY
    context: int | None = None
    contexts: int | None = None

    def __post_init__(self) -> None:
        if not self.concurrency or min(self.concurrency) < 1:
            raise UserError(f"concurrency is {list(self.concurrency)}; every cell needs at least 1 request")
        for field in ("context", "contexts"):
            if getattr(self, field) is not None and getattr(self, field) < 1:
                raise UserError(f"{field} is {getattr(self, field)}; it must be at least 1")


def decode_study(
    model: StepModel,
    options: DecodeOptions,
    settings: Settings,
    out: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> StepRecord:
    """Measure every cell that the record does not have yet, and return the record."""
    study = StepStudy(model, settings, out, say)
    cached, scaling = scaled_context(study, options)
    for note in scaling.values():
        say(note)
    acceptance = options.acceptance
    about = {
        "kind": "decode",
        "drafts": acceptance.drafts,
        "acceptance": acceptance.rate if acceptance.drafts else None,
        "reading": acceptance.reading if acceptance.drafts else None,
        "tokens_per_step": acceptance.tokens_per_step,
    }
    plan = {**about, "tokens_of_a_step": acceptance.label, "cached_tokens": cached, "contexts": options.contexts}
    study.begin({**plan, "name": settings.name}, scaling)
    cells = {cell_name(requests, settings.repeat): requests for requests in sorted(set(options.concurrency))}
    missing = {cell: requests for cell, requests in cells.items() if not study.record.has(cell)}
    if missing:
        rows = 1 + acceptance.drafts
        filled = study.filled(max(missing.values()), cached, rows, options.contexts)
        for cell, requests in missing.items():
            work = decode_work(
                model.config, model.dtype.itemsize, requests, cached, acceptance.drafts, options.contexts
            )

            def rates(median_ms: float, requests: int = requests) -> dict:
                speed = 1e3 * acceptance.tokens_per_step / median_ms
                return {"decode_speed_tok_per_s": speed, "output_throughput_tok_per_s": requests * speed}

            step = DecodeStep(model.model, filled, requests, acceptance, settings.seed)
            shape = {"requests": requests, "new_tokens": requests * rows, **fill_fields(requests, options.contexts)}
            study.measure(cell, step, about | shape, work, rates)
    return study.record


def cell_name(requests: int, repeat: int) -> str:
    """Such as "decode-c0008-r1"."""
    return f"decode-c{requests:04d}-r{repeat}"


def scaled_context(study: StepStudy, options: DecodeOptions) -> tuple[int, dict[str, str]]:
    """(cached tokens per request, notes): what was asked for or fails, else what the record has or what fits."""
    if options.context is not None:
        require_fit("context", options.context, context_limits(study, options))
        return options.context, {}
    former = study.record.plan
    if former is not None:
        return former["cached_tokens"], {}
    scaled = halved_to_fit("context", CONTEXT, [*context_limits(study, options), time_limit(study, options)])
    return scaled.size, {"context": scaled.note} if scaled.note else {}


def context_limits(study: StepStudy, options: DecodeOptions) -> list[Limit]:
    """What bounds the context: positions of the model, and memory."""
    most, rows = max(options.concurrency), 1 + options.acceptance.drafts
    positions, memory = study.model.config.max_position, study.memory_bytes
    return [
        Limit(lambda context: context + rows <= positions, f"the model has {positions:,} positions"),
        Limit(
            lambda context: decode_bytes(study, options, context) <= memory,
            f"{most} requests may take {memory / 2**30:.1f} GiB of memory here",
        ),
    ]


def time_limit(study: StepStudy, options: DecodeOptions) -> Limit:
    """What bounds the default context, where ceilings are known: the fewest steps of the largest cell."""
    model, most, seconds = study.model, max(options.concurrency), study.settings.seconds
    steps = WARM_UP_STEPS + FEWEST_SAMPLES

    def within(context: int) -> bool:
        work = decode_work(
            model.config, model.dtype.itemsize, most, context, options.acceptance.drafts, options.contexts
        )
        return study.ceilings is None or steps * work.seconds(study.ceilings)[0] <= seconds

    return Limit(within, f"a step of {most} requests must leave time for {steps} in {seconds:g} s")


def decode_bytes(study: StepStudy, options: DecodeOptions, context: int) -> int:
    """Bytes of the cache and of what a step works with, for the largest cell."""
    model, most, rows = study.model, max(options.concurrency), 1 + options.acceptance.drafts
    (spec,) = model.model.cache_specs
    contexts = most if options.contexts is None else min(options.contexts, most)
    blocks = blocks_needed(most, context, rows, contexts, study.settings.block_size)
    cache = blocks * study.settings.block_size * spec.entry_bytes(model.dtype)
    config, logits = model.config, 3 * 4 * most * rows * model.config.vocab_size  # float32; two copies for comparing
    if model.device.type == "cuda":  # attention keeps a result per split of a context
        splits = most * rows * config.num_heads * -(-context // SPLIT_TOKENS)
        return cache + logits + 4 * splits * (config.head_dim + 2)
    # the torch form of a CPU gathers keys and values of one layer, padded by up to a third
    gathered = 2 * most * context * config.kv_bytes_per_token(model.dtype.itemsize) // config.num_layers
    return cache + logits + (gathered if model.form == "torch" else 0)
