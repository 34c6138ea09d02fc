"""The client of servers, and how far it can be trusted: client prove, client agree, client fake-server."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from wholecurve.cli.app import app, console

client_app = typer.Typer(no_args_is_help=True, help="Prove the client against a server whose every moment is scripted.")
app.add_typer(client_app, name="client")


@client_app.command("prove")
def client_prove(
    quick: Annotated[bool, typer.Option("--quick", help="Seconds instead of minutes: to see that it works.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the record here as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Measure what the client adds, costs and loses, at 1, 100 and 1,000 streams. Nothing else should run meanwhile."""
    from wholecurve.files import write_json
    from wholecurve.studies.serving.proof.prove import prove
    from wholecurve.studies.serving.proof.report import print_proof

    record = prove(quick, _tell)
    if out is not None:
        write_json(out, record)
    if as_json:
        typer.echo(json.dumps(record, indent=2, allow_nan=False))
    else:
        print_proof(console(), record)


@client_app.command("agree")
def client_agree(
    model: Annotated[
        str, typer.Option(help="Whose tokenizer makes the random prompts of vLLM.")
    ] = "smollm2-135m-instruct",
    scale: Annotated[int, typer.Option(min=1, help="So many times as many requests.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Write the record here as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Measure one scripted server with this client and with `vllm bench serve` (peers setup vllm), metric by metric."""
    from wholecurve.files import write_json
    from wholecurve.studies.serving.proof.bench_agreement import measure_agreement
    from wholecurve.studies.serving.proof.report import print_agreement

    record = measure_agreement(model, scale, _tell)
    if out is not None:
        write_json(out, record)
    if as_json:
        typer.echo(json.dumps(record, indent=2, allow_nan=False))
    else:
        print_agreement(console(), record)


@client_app.command("fake-server")
def client_fake_server(
    setup: Annotated[
        Path | None, typer.Option(help="JSON: default, named and in_order scripts, model, api_key.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one; it is printed.")] = 0,
) -> None:
    """Serve scripted replies over the OpenAI API until it is interrupted; GET /record tells what was written when."""
    from wholecurve.studies.serving.proof.serve import serve_here
    from wholecurve.studies.serving.proof.setup import read_setup

    serve_here(read_setup(setup, host, port), lambda chosen: typer.echo(f"http://{host}:{chosen}/v1"))


def _tell(part: str) -> None:
    print(part, file=sys.stderr, flush=True)
