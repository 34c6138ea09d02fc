"""The prefill study: one cell per number of new tokens in a step, all on top of the same cached context."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.studies.steps.clock import FEWEST_SAMPLES, WARM_UP_STEPS
from wholecurve.studies.steps.context import blocks_needed
from wholecurve.studies.steps.model import StepModel
from wholecurve.studies.steps.prefill import PrefillStep, chunks_of
from wholecurve.studies.steps.record import StepRecord
from wholecurve.studies.steps.scaling import Limit, halved_to_fit, require_fit
from wholecurve.studies.steps.study import Settings, StepStudy, fill_fields
from wholecurve.studies.steps.work import prefill_work

TOKENS = (4096, 8192, 16384, 32768, 65536)
CHUNK, CACHED = 4096, 8192


@dataclasses.dataclass(frozen=True)
class PrefillOptions:
    """tokens: new tokens per step and cell, None for 4,096 … 65,536 scaled to the machine. chunk: new tokens of one
    sequence; a step takes as many sequences as it needs. cached: tokens that each has cached before; both None for
    what the model holds of 4,096 and 8,192. contexts: as in a decode study.
    """

    tokens: tuple[int, ...] | None = None
    chunk: int | None = None
    cached: int | None = None
    contexts: int | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None and (not self.tokens or min(self.tokens) < 1):
            raise UserError(f"tokens is {list(self.tokens)}; every cell needs at least 1 new token")
        for field, least in (("chunk", 1), ("cached", 0), ("contexts", 1)):
            if getattr(self, field) is not None and getattr(self, field) < least:
                raise UserError(f"{field} is {getattr(self, field)}; it must be at least {least}")


def prefill_study(
    model: StepModel,
    options: PrefillOptions,
    settings: Settings,
    out: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> StepRecord:
    """Measure every cell that the record does not have yet, and return the record."""
    study = StepStudy(model, settings, out, say)
    sizes, scaling = scaled_sizes(study, options)
    for note in scaling.values():
        say(note)
    plan = {"kind": "prefill", "cached_tokens": sizes.cached, "chunk_tokens": sizes.chunk}
    study.begin({**plan, "contexts": options.contexts, "name": settings.name}, scaling)
    cells = {cell_name(tokens, settings.repeat): tokens for tokens in sorted(set(sizes.tokens))}
    missing = {cell: tokens for cell, tokens in cells.items() if not study.record.has(cell)}
    if missing:
        most = len(chunks_of(max(missing.values()), sizes.chunk))
        filled = study.filled(most, sizes.cached, min(sizes.chunk, max(missing.values())), options.contexts)
        for cell, tokens in missing.items():
            chunks = chunks_of(tokens, sizes.chunk)
            work = prefill_work(model.config, model.dtype.itemsize, chunks, sizes.cached, options.contexts)
            about = {"kind": "prefill", "requests": len(chunks), "new_tokens": tokens, "chunk_tokens": max(chunks)}
            about |= fill_fields(len(chunks), options.contexts)

            def rates(median_ms: float, tokens: int = tokens) -> dict:
                return {"input_throughput_tok_per_s": 1e3 * tokens / median_ms}

            study.measure(cell, PrefillStep(model.model, filled, chunks, settings.seed), about, work, rates)
    return study.record


def cell_name(tokens: int, repeat: int) -> str:
    """Such as "prefill-n004096-r1"."""
    return f"prefill-n{tokens:06d}-r{repeat}"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of all cells of a study. tokens: new tokens per step; chunk: of one sequence; cached: before them."""

    tokens: tuple[int, ...]
    chunk: int
    cached: int


def scaled_sizes(study: StepStudy, options: PrefillOptions) -> tuple[Sizes, dict[str, str]]:
    """(Sizes, notes): what was asked for or fails, else what the record has or what fits."""
    positions, former, notes = study.model.config.max_position, study.record.plan or {}, {}
    held = f"the model has {positions:,} positions"
    chunk, cached = options.chunk or former.get("chunk_tokens"), options.cached
    cached = former.get("cached_tokens") if cached is None else cached
    if chunk is None:
        scaled = halved_to_fit("chunk", CHUNK, [Limit(lambda size: size + (cached or 1) <= positions, held)])
        chunk, notes["chunk"] = scaled.size, scaled.note
    if cached is None:
        scaled = halved_to_fit("cached tokens", CACHED, [Limit(lambda size: size + chunk <= positions, held)])
        cached, notes["cached"] = scaled.size, scaled.note
    if chunk + cached > positions:
        raise UserError(f"chunk {chunk:,} + cached {cached:,} tokens do not fit: {held}")
    memory = memory_limit(study, chunk, cached, options.contexts)
    if options.tokens is not None:
        require_fit("tokens", max(options.tokens), [memory])
        return Sizes(options.tokens, chunk, cached), {name: note for name, note in notes.items() if note}
    limits = [memory, time_limit(study, chunk, cached, options.contexts)]
    scaled = halved_to_fit("new tokens per step", max(TOKENS), limits, smallest=max(TOKENS) // min(TOKENS))
    factor, notes["tokens"] = max(TOKENS) // scaled.size, scaled.note
    tokens = tuple(size // factor for size in TOKENS)
    return Sizes(tokens, chunk, cached), {name: note for name, note in notes.items() if note}


def memory_limit(study: StepStudy, chunk: int, cached: int, contexts: int | None) -> Limit:
    """What bounds the new tokens of a step that was asked for."""
    memory = study.memory_bytes
    return Limit(
        lambda tokens: prefill_bytes(study, tokens, chunk, cached, contexts) <= memory,
        f"a step may take {memory / 2**30:.1f} GiB of memory here",
    )


def time_limit(study: StepStudy, chunk: int, cached: int, contexts: int | None) -> Limit:
    """What bounds the default sizes, where ceilings are known: the fewest steps of the largest cell."""
    model, seconds, steps = study.model, study.settings.seconds, WARM_UP_STEPS + FEWEST_SAMPLES

    def within(tokens: int) -> bool:
        work = prefill_work(model.config, model.dtype.itemsize, chunks_of(tokens, chunk), cached, contexts)
        return study.ceilings is None or steps * work.seconds(study.ceilings)[0] <= seconds

    return Limit(within, f"a step must leave time for {steps} in {seconds:g} s")


def prefill_bytes(study: StepStudy, tokens: int, chunk: int, cached: int, contexts: int | None) -> int:
    """Bytes of the cache and of the activations of a step."""
    config, model = study.model.config, study.model
    (spec,) = model.model.cache_specs
    sequences = len(chunks_of(tokens, chunk))
    different = sequences if contexts is None else min(contexts, sequences)
    blocks = blocks_needed(sequences, cached, min(chunk, tokens), different, study.settings.block_size)
    heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    # residual, normed input and output, the heads and their rotated copy, gate and up and their product
    per_token = 4 * config.hidden_size + 2 * heads + 3 * config.intermediate_size
    logits = 3 * 4 * sequences * config.vocab_size
    cache = blocks * study.settings.block_size * spec.entry_bytes(model.dtype)
    return cache + tokens * per_token * model.dtype.itemsize + logits
