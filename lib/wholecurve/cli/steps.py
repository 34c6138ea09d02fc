"""Steps of a model without scheduler and server: step decode, step prefill, step parts, step compare."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from wholecurve.cli.app import app, console
from wholecurve.errors import UserError

step_app = typer.Typer(
    no_args_is_help=True, help="Time a model's step alone, over a cache that is filled without prefill."
)
app.add_typer(step_app, name="step")

Model = Annotated[str | None, typer.Argument(help="Embedded name, .gguf file, folder, or hub name.")]
Dummy = Annotated[str | None, typer.Option(help="Random weights of a size instead, such as smollm2-135m or llama-8b.")]
Dtype = Annotated[str, typer.Option(help="bfloat16, float16 or float32.")]
DeviceName = Annotated[str | None, typer.Option("--device", help="cpu or cuda; the GPU where there is one.")]
Form = Annotated[str, typer.Option(help="native (one C++ call per step), torch, or auto: native on a CPU that has it.")]
Threads = Annotated[int | None, typer.Option(help="Threads of a CPU; all cores that may be used.")]
Contexts = Annotated[
    int | None, typer.Option(help="Share so many cached contexts among the requests; each its own by default.")
]
BlockSize = Annotated[int, typer.Option(help="Tokens per cache block.")]
Samples = Annotated[int, typer.Option(help="Most timed steps per cell; at least 3 are taken.")]
Seconds = Annotated[float, typer.Option(help="About how long one cell may take.")]
MemoryGib = Annotated[float | None, typer.Option(help="Memory for cache and workspace; a share of the free one.")]
Ceilings = Annotated[bool, typer.Option(help="Measure the machine's ceilings first, for bounds and scaling by time.")]
Seed = Annotated[int, typer.Option(help="Seed of weights, cache, tokens and acceptance.")]
Repeat = Annotated[int, typer.Option(help="Number of this run, where a record gets several.")]
Name = Annotated[str | None, typer.Option(help="Contender's name in tables; made from form, dtype and drafts.")]
Out = Annotated[
    Path | None, typer.Option(help="Record folder, resumed where it has cells: JSON, rows.csv, points.csv.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]


@step_app.command("decode")
def step_decode(
    model: Model = None,
    dummy: Dummy = None,
    concurrency: Annotated[
        list[int] | None, typer.Option("--concurrency", "-c", help="Requests of a cell; may be repeated.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Cached tokens per request; 131,072 scaled to model and machine.")
    ] = None,
    drafts: Annotated[int, typer.Option(help="Drafts that each request verifies per step.")] = 0,
    acceptance: Annotated[float, typer.Option(help="Acceptance of a draft, 0 to 1.")] = 0.75,
    reading: Annotated[
        str, typer.Option(help="conditional (1 + a + a² + …) or marginal (1 + k·a) tokens per step.")
    ] = "conditional",
    contexts: Contexts = None,
    dtype: Dtype = "bfloat16",
    device: DeviceName = None,
    form: Form = "auto",
    graphs: Annotated[bool | None, typer.Option(help="CUDA graphs on a GPU; on by default.")] = None,
    threads: Threads = None,
    block_size: BlockSize = 16,
    samples: Samples = 15,
    seconds: Seconds = 20.0,
    memory_gib: MemoryGib = None,
    ceilings: Ceilings = True,
    seed: Seed = 0,
    repeat: Repeat = 1,
    name: Name = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Per-user speed and throughput of a decode step, with drafts or without."""
    from wholecurve.studies.steps.acceptance import Acceptance
    from wholecurve.studies.steps.decode_study import CONCURRENCY, DecodeOptions, decode_study

    settings = _settings(block_size, seed, repeat, name, samples, seconds, memory_gib, ceilings)
    wanted = Acceptance(drafts, acceptance, reading)
    options = DecodeOptions(wanted, tuple(concurrency or CONCURRENCY), context, contexts)
    loaded = _load(model, dummy, dtype, device, form, graphs, threads, seed)
    _run(partial(decode_study, loaded, options, settings), out, as_json)


@step_app.command("prefill")
def step_prefill(
    model: Model = None,
    dummy: Dummy = None,
    tokens: Annotated[
        list[int] | None,
        typer.Option(
            "--tokens", "-n", help="New tokens of a step; may be repeated. 4,096 … 65,536 scaled to the machine."
        ),
    ] = None,
    chunk: Annotated[
        int | None, typer.Option(help="New tokens of one sequence; 4,096 or what the model holds.")
    ] = None,
    cached: Annotated[
        int | None, typer.Option(help="Cached tokens before them; 8,192 or what the model holds.")
    ] = None,
    contexts: Contexts = None,
    dtype: Dtype = "bfloat16",
    device: DeviceName = None,
    form: Form = "auto",
    threads: Threads = None,
    block_size: BlockSize = 16,
    samples: Samples = 15,
    seconds: Seconds = 20.0,
    memory_gib: MemoryGib = None,
    ceilings: Ceilings = True,
    seed: Seed = 0,
    repeat: Repeat = 1,
    name: Name = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Throughput of new tokens of a prefill step on top of a cached context."""
    from wholecurve.studies.steps.prefill_study import PrefillOptions, prefill_study

    settings = _settings(block_size, seed, repeat, name, samples, seconds, memory_gib, ceilings)
    options = PrefillOptions(tuple(tokens) if tokens else None, chunk, cached, contexts)
    loaded = _load(model, dummy, dtype, device, form, None, threads, seed)
    _run(partial(prefill_study, loaded, options, settings), out, as_json)


@step_app.command("parts")
def step_parts(
    model: Model = None,
    dummy: Dummy = None,
    concurrency: Annotated[
        list[int] | None, typer.Option("--concurrency", "-c", help="Requests of a decode step; may be repeated.")
    ] = None,
    tokens: Annotated[
        list[int] | None, typer.Option("--tokens", "-n", help="Tokens of a prefill step; may be repeated.")
    ] = None,
    context: Annotated[int, typer.Option(help="Cached tokens per decoding request.")] = 160,
    dtype: Dtype = "bfloat16",
    threads: Annotated[
        list[int] | None, typer.Option(help="Threads; may be repeated. 1 and all cores by default.")
    ] = None,
    block_size: BlockSize = 16,
    samples: Samples = 15,
    seconds: Seconds = 8.0,
    ceilings: Annotated[bool, typer.Option(help="Measure the machine's ceilings before and after, for bounds.")] = True,
    seed: Seed = 0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Take the native step on this CPU apart: what each part costs, and what its bytes and FLOPs allow."""
    from wholecurve.studies.steps.model import weights_source
    from wholecurve.studies.steps.parts import CONCURRENCY, TOKENS, PartsOptions, parts_study

    options = PartsOptions(
        tuple(concurrency or CONCURRENCY), tuple(tokens or TOKENS), context, tuple(threads or ()),
        samples, seconds, block_size, seed, ceilings,
    )  # fmt: skip
    source = weights_source(model, dummy, dtype, seed)
    _run(partial(parts_study, source, options), out, as_json, _print_parts)


@step_app.command("compare")
def step_compare(
    a: Annotated[Path, typer.Argument(help="Record folder of the contender.")],
    b: Annotated[Path, typer.Argument(help="Record folder of the baseline.")],
    as_json: AsJson = False,
) -> None:
    """Direct multipliers of one step study over another, at equal load."""
    from wholecurve.studies.steps.record import StepRecord
    from wholecurve.studies.steps.report import comparison_document, print_step_comparison

    records = StepRecord.open(a), StepRecord.open(b)
    if as_json:
        typer.echo(json.dumps(comparison_document(*records), indent=2, allow_nan=False))
    else:
        print_step_comparison(console(), *records)


def _settings(block_size, seed, repeat, name, samples, seconds, memory_gib, ceilings):
    from wholecurve.studies.steps.study import Settings

    if memory_gib is not None and not 0 < memory_gib < float("inf"):
        raise UserError(f"memory_gib is {memory_gib}; it must be a number above 0")
    memory = None if memory_gib is None else int(memory_gib * 2**30)
    return Settings(block_size, seed, repeat, name, samples, seconds, memory, ceilings)


def _load(model, dummy, dtype, device, form, graphs, threads, seed):
    from wholecurve.studies.steps.model import load_step_model

    loaded = load_step_model(
        model, dummy=dummy, dtype=dtype, device=device, form=form, graphs=graphs, threads=threads, seed=seed
    )
    if loaded.note:
        _say(loaded.note)
    return loaded


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run(study, out, as_json, show=None) -> None:
    """study: takes the record's folder and where lines of progress go. show: prints the record, print_study if None."""
    from wholecurve.studies.steps.report import print_study

    try:
        record = study(out, _say)
    except KeyboardInterrupt:
        kept = f"finished cells are kept in {out}, the same command goes on from there" if out else "nothing was kept"
        raise UserError(f"stopped; {kept}") from None
    if as_json:
        typer.echo(json.dumps(record.document(), indent=2, allow_nan=False))
    else:
        (show or print_study)(console(), record)


def _print_parts(to, record) -> None:
    """Whole steps and their parts as tables, one of each per number of threads, and what is wrong with a number."""
    from wholecurve.figures.step_tables import ceiling_table, error_table, part_table, step_table
    from wholecurve.terminal import print_frame

    rows = record.frame()
    print_frame(to, ceiling_table(record.ceiling_rows()), "measured ceilings")
    for threads in sorted(set(rows.loc[rows["median_ms"].notna(), "threads"])):
        part = rows[rows["threads"] == threads]
        print_frame(to, step_table(part, threads), f"whole steps, threads: {threads}")
        for kind in dict.fromkeys(part.loc[part["median_ms"].notna(), "kind"]):
            table = part_table(part, kind, threads).rename_axis(index="ms per step").reset_index()
            print_frame(to, table, f"{kind} by new tokens, threads: {threads}")
    print_frame(to, error_table(rows), "what to doubt")
