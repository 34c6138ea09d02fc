"""What curves are worth: compare, cost, audit."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from wholecurve.cli.app import app, console
from wholecurve.errors import UserError


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
        print_frontiers(console(), compared)
    else:
        print_comparisons(console(), found.comparisons, found.best)


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
        print_costs(console(), plane)
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

    print_audit(console(), found)
