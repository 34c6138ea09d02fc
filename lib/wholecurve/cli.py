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
    return Console() if sys.stdout.isatty() else Console(width=240)


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
    paths: Annotated[
        list[Path], typer.Argument(help="Run folder, result files of any known tool, or folders of them.")
    ],
    gpus: Annotated[int | None, typer.Option(help="GPUs of the server, for files that do not say it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Print a recorded run, or what result files of other tools say in canonical metrics, and what they do not."""
    from wholecurve.readers import read_collection

    if len(paths) == 1 and (paths[0] / "plan.json").exists():
        _show_run(paths[0], as_json)
        return
    collection = read_collection(paths, gpus)
    from wholecurve.files_report import files_document, print_files

    if not collection.found and len(collection.refused) == 1:
        raise UserError(collection.refused[0])
    if as_json:
        typer.echo(json.dumps(files_document(collection), indent=2, allow_nan=False))
    else:
        print_files(_console(), collection)
    for reason in collection.refused:
        print(f"wholecurve: {reason}", file=sys.stderr)
    if collection.refused or not collection.found:
        raise typer.Exit(2)


def _show_run(run: Path, as_json: bool) -> None:
    from wholecurve.runs import RunFolder

    folder = RunFolder.open(run)
    if as_json:
        from wholecurve.files_report import curve_warnings

        points = folder.points()
        document = {"run": run.name, **folder.plan, "provenance": folder.provenance}
        document |= {"points": json.loads(points.to_json(orient="records")), "curves": curve_warnings(points)}
        for name in ("model", "ceilings", "agreement"):
            document[name] = folder.read(name) if folder.has(name) else None
        typer.echo(json.dumps(document, indent=2))
        return
    from wholecurve.report import print_run

    print_run(_console(), folder)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="Contender: a run, a result file or a folder of them, or PATH:contender.")],
    b: Annotated[list[str], typer.Argument(help="Baseline, or several, in the same forms.")],
    at_speed: Annotated[list[float] | None, typer.Option(help="Read same-speed multipliers here (tok/s/user).")] = None,
    at_throughput: Annotated[
        list[float] | None, typer.Option(help="Read same-throughput multipliers here (tok/s per device).")
    ] = None,
    at_concurrency: Annotated[list[float] | None, typer.Option(help="Read all multipliers at this load of B.")] = None,
    workload: Annotated[str | None, typer.Option(help="Which workload, where both sides share several.")] = None,
    across: Annotated[
        bool, typer.Option("--across", help="Compare different models, precisions, hardware or workloads all the same.")
    ] = False,
    gpus_a: Annotated[int | None, typer.Option(help="GPUs of A, for files that do not say it.")] = None,
    gpus_b: Annotated[int | None, typer.Option(help="GPUs of each B, for files that do not say it.")] = None,
    control: Annotated[
        str | None, typer.Option(help="A measured a second time (a run's own A/A control is found by itself).")
    ] = None,
    frontier: Annotated[
        bool,
        typer.Option("--frontier", help="Best points over all configurations of A and of B, as a frontier."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """The three multipliers of A over B: direct, same speed, same throughput."""
    from wholecurve.comparing import Options, compare_frontier_specs, compare_specs
    from wholecurve.curves.documents import Targets
    from wholecurve.terminal import print_comparisons, print_frontiers

    targets, options = (
        Targets(at_speed or (), at_throughput or (), at_concurrency or ()),
        Options(workload, across, gpus_a, gpus_b),
    )
    if frontier:
        if control or any((targets.speed, targets.throughput, targets.concurrency)):
            raise UserError("--frontier is read at B's points alone: it takes no targets and no control")
        compared = compare_frontier_specs(a, b, options)
        document = {"frontiers": [one.to_document() for one in compared]}
    else:
        found = compare_specs(a, b, targets, options, control)
        document = found.to_document()
    if as_json:
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
    elif frontier:
        print_frontiers(_console(), compared)
    else:
        print_comparisons(_console(), found.comparisons, found.best)


@app.command()
def cost(
    specs: Annotated[list[str], typer.Argument(help="Contenders, as for compare; the first is A in ratios.")],
    rate: Annotated[float | None, typer.Option(help="Dollars per device-hour, for all of them.")] = None,
    rates: Annotated[Path | None, typer.Option(help="CSV of rates by device, tier; ours by default.")] = None,
    tier: Annotated[str | None, typer.Option(help="Tier of the file of rates, such as neocloud.")] = None,
    as_of: Annotated[str | None, typer.Option(help="No rate newer than this date (YYYY-MM-DD).")] = None,
    at_latency: Annotated[list[float] | None, typer.Option(help="Read costs at this E2E latency (ms).")] = None,
    percentile: Annotated[int, typer.Option(help="Which E2E latency: 50, 90 or 99.")] = 90,
    gpus: Annotated[int | None, typer.Option(help="GPUs of the server, for files that do not say it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Draw the cost and latency plane into this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Dollars per million tokens, tokens per dollar and joules per token, against end-to-end latency."""
    from wholecurve.cost_report import cost_document, print_costs
    from wholecurve.costing import cost_of_specs

    plane = cost_of_specs(specs, rate, rates, tier, as_of, at_latency or (), percentile, gpus)
    if as_json:
        typer.echo(json.dumps(cost_document(plane), indent=2, allow_nan=False))
    else:
        print_costs(_console(), plane)
    if out is not None:
        from wholecurve.figures.cost import save_cost_figure

        for path in save_cost_figure(plane, out, source="Points: " + ", ".join(specs)):
            print(path, file=sys.stderr)


@app.command()
def audit(
    claims: Annotated[
        Path | None, typer.Argument(help="YAML file of claims, or a folder with claims.yaml; ours by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Recompute published headlines from their own printed digits, and check what they rest on."""
    from wholecurve.curves.claims import audit as audit_claims
    from wholecurve.files import published_folder
    from wholecurve.readers.published import read_claims

    found = audit_claims(read_claims(claims or published_folder()))
    if as_json:
        typer.echo(json.dumps(found.to_document(), indent=2, allow_nan=False))
        return
    from wholecurve.audit_report import print_audit

    print_audit(_console(), found)


@app.command()
def figures(
    run: Annotated[Path | None, typer.Argument(help="Run folder; the published claims and costs without one.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for SVG (light, dark), PNG and captions.")] = Path("figures"),
) -> None:
    """Draw the figures of a recorded run, or those of the published claims and costs."""
    if run is not None:
        from wholecurve.figures.run_figures import save_run_figures
        from wholecurve.runs import RunFolder

        paths = save_run_figures(RunFolder.open(run), out)
    else:
        from wholecurve.figures.published_figures import save_published_figures

        paths = save_published_figures(out)
    for path in paths:
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
