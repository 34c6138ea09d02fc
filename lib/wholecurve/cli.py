"""The command line. Every command imports what it needs when it runs: `--help` and `compare` load no torch."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from wholecurve import __version__
from wholecurve.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The whole performance curve of an inference engine, and what every multiplier on it is worth.",
)
# What the analysis half installs without.
_ENGINE_PACKAGES = {"torch", "triton", "transformers", "tokenizers", "safetensors", "gguf", "ml_dtypes"}

model_app = typer.Typer(no_args_is_help=True, help="Fetch and list models.")
app.add_typer(model_app, name="model")


def _console():
    from rich.console import Console

    # Piped output must not be folded at 80 columns: tables would lose their rows.
    return Console() if sys.stdout.isatty() else Console(width=200)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"wholecurve {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def study(
    plan: Annotated[Path, typer.Argument(help="Plan file (YAML).")],
    out: Annotated[Path | None, typer.Option(help="Run folder; data/runs/<name>-<hash> when not given.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew into a new folder with today's time.")] = False,
) -> None:
    """Measure what a plan says, or go on where a killed study stopped, and report."""
    from datetime import datetime

    from wholecurve.figures.run_figures import save_run_figures
    from wholecurve.report import print_run
    from wholecurve.studies.plan import read_plan
    from wholecurve.studies.replay import run_name

    checked = read_plan(plan)
    folder = out or Path("data/runs") / run_name(checked)
    if fresh:
        folder = folder.with_name(f"{folder.name}-{datetime.now():%Y%m%d-%H%M%S}")
    from wholecurve.studies.study import Study

    console = _console()
    before = folder.exists()
    try:
        run = Study(checked, folder).run()
    except KeyboardInterrupt:
        raise UserError(f"stopped; finished points are kept in {folder}, the same command goes on from there") from None
    figures = save_run_figures(run, folder / "figures")
    print_run(console, run, figures)
    if before:
        console.print("[dim]Points that the folder had already were kept; --fresh measures everything again.[/]")


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Print a recorded run: machine, ceilings, curves, multipliers, refusals."""
    from wholecurve.runs import RunFolder

    folder = RunFolder.open(run)
    if as_json:
        points = json.loads(folder.points().to_json(orient="records"))
        document = {"run": run.name, **folder.plan, "provenance": folder.provenance, "points": points}
        for name in ("model", "ceilings", "agreement"):
            document[name] = folder.read(name) if folder.has(name) else None
        typer.echo(json.dumps(document, indent=2))
        return
    from wholecurve.report import print_run

    print_run(_console(), folder)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="Contender: run folder, RUN:contender, or a CSV/Parquet file.")],
    b: Annotated[str, typer.Argument(help="Baseline, in the same forms.")],
    at_speed: Annotated[list[float] | None, typer.Option(help="Read same-speed multipliers here (tok/s/user).")] = None,
    at_throughput: Annotated[
        list[float] | None, typer.Option(help="Read same-throughput multipliers here (tok/s per device).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """The three multipliers of A over B: direct, same speed, same throughput."""
    from wholecurve.curves import compare_sources
    from wholecurve.readers import read_source

    full = compare_sources(read_source(a), read_source(b), at_speed or (), at_throughput or ())
    if as_json:
        typer.echo(json.dumps(full.to_document(), indent=2, allow_nan=False))
        return
    from wholecurve.terminal import print_full_comparison

    print_full_comparison(_console(), full)


@app.command()
def figures(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    out: Annotated[Path, typer.Option(help="Folder for SVG (light, dark), PNG and captions.")] = Path("figures"),
) -> None:
    """Draw the figures of a recorded run."""
    from wholecurve.figures.run_figures import save_run_figures
    from wholecurve.runs import RunFolder

    for path in save_run_figures(RunFolder.open(run), out):
        typer.echo(str(path))


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What the user says; the model's chat template is put around it.")],
    model: Annotated[
        str, typer.Option(help="Embedded name, .gguf file, folder, or hub name.")
    ] = "smollm2-135m-instruct",
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the most probable tokens up to this mass.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.")] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
) -> None:
    """Generate text with the engine, streamed as it comes."""
    from wholecurve.engine import Engine, SamplingParams
    from wholecurve.engine.load import load_model
    from wholecurve.models.resolve import resolve
    from wholecurve.models.tokenizer import chat_prompt_ids, load_tokenizer, stream_text

    params = SamplingParams(max_new_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    files = resolve(model)
    tokenizer = load_tokenizer(files.hf_folder())
    engine = Engine(load_model(files, dtype))
    tokens = engine.stream(chat_prompt_ids(tokenizer, prompt), params)
    for text in stream_text(tokenizer, tokens):
        print(text, end="", flush=True)
    print()


@model_app.command("fetch")
def model_fetch(
    name: Annotated[str, typer.Argument(help="Embedded model.")] = "smollm2-135m-instruct",
) -> None:
    """Fetch an embedded model once, verify it, and derive the forms that other engines read."""
    from wholecurve.models.resolve import resolve
    from wholecurve.models.store import fetch

    path = fetch(name)
    files = resolve(name)
    typer.echo(f"{name}: {path} (verified)")
    typer.echo(f"{name}: {files.hf_folder()} (Hugging Face folder, F16)")
    typer.echo(f"{name}: {files.f16_gguf()} (GGUF, F16)")


@model_app.command("list")
def model_list() -> None:
    """List embedded models and whether they are in the cache."""
    from wholecurve.models.store import EMBEDDED, embedded_path, is_fetched

    for name, model in EMBEDDED.items():
        state = str(embedded_path(name)) if is_fetched(name) else "not fetched"
        typer.echo(f"{name}\t{model.size_bytes / 2**20:.0f} MiB\t{model.licence}\t{state}")


def main() -> None:
    """Entry point: what the user got wrong is one line on stderr and exit code 2."""
    try:
        app()
    except UserError as error:
        message = str(error)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _ENGINE_PACKAGES:
            raise
        message = f"this command needs the package {package}: pip install 'wholecurve[engine]'"
    else:
        return
    print(f"wholecurve: {message}", file=sys.stderr)
    sys.exit(2)
