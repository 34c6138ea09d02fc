"""Measuring and showing: study, show, figures."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from wholecurve.cli.app import app, console
from wholecurve.errors import UserError


@app.command()
def study(
    plan: Annotated[Path, typer.Argument(help="Plan file (YAML).")],
    out: Annotated[Path | None, typer.Option(help="Run folder; data/runs/<name>-<hash> when not given.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew into a new folder with today's time.")] = False,
) -> None:
    """Measure what a plan says, engines or servers under load; go on where a killed study stopped; report."""
    from datetime import datetime

    from wholecurve.figures.run_figures import save_run_figures
    from wholecurve.report import print_run
    from wholecurve.studies.kinds import read_study_plan, study_of
    from wholecurve.studies.replay import run_name

    checked = read_study_plan(plan)
    folder = out or Path("data/runs") / run_name(checked)
    if fresh:
        folder = folder.with_name(f"{folder.name}-{datetime.now():%Y%m%d-%H%M%S}")
    terminal = console()
    before = folder.exists()
    try:
        run = study_of(checked, folder).run()
    except KeyboardInterrupt:
        raise UserError(f"stopped; finished points are kept in {folder}, the same command goes on from there") from None
    figures = save_run_figures(run, folder / "figures")
    print_run(terminal, run, figures)
    if before:
        terminal.print("[dim]Points that the folder had already were kept; --fresh measures everything again.[/]")


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
        print_files(console(), collection)
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
        for name in ("model", "ceilings", "agreement", "tuning"):
            document[name] = folder.read(name) if folder.has(name) else None
        typer.echo(json.dumps(document, indent=2))
        return
    from wholecurve.report import print_run

    print_run(console(), folder)


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
