"""The laboratory: profile."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from wholecurve.cli.app import app, console
from wholecurve.errors import UserError


@app.command()
def profile(
    kernel: Annotated[str | None, typer.Argument(help="A kernel by name; see --all.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All kernels.")] = False,
    case: Annotated[str | None, typer.Option(help="One bench case by name.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="sm_90, sm_100, sm_80, sm_120, gfx942 (compiled), cpu or gpu (measured); may be repeated."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Device of data/devices, or a device file, for bounds.")] = None,
    threads: Annotated[list[int] | None, typer.Option(min=1, help="Threads for cpu; may be repeated.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the rows as CSV, with raw samples beside it where something was measured."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document with `rows`.")] = False,
) -> None:
    """Registers, spills, bytes, FLOPs, bounds and (where it runs) times of kernels, one row per launch or form."""
    from wholecurve.kernels import KERNELS
    from wholecurve.profiling.report import print_profile, profile_document, profile_kernels, write_profile

    if every == (kernel is not None):
        raise UserError(f"name one kernel, or give --all; there are {', '.join(KERNELS)}")
    if every and case is not None:
        raise UserError("--case is a case of one kernel; --all takes none")
    found = profile_kernels(KERNELS if every else [kernel], case, target or ["sm_90", "sm_100"], device, threads or ())
    if out is not None:
        for path in write_profile(out, found):
            print(path, file=sys.stderr)
    if as_json:
        typer.echo(json.dumps(profile_document(found), indent=2, allow_nan=False))
    elif out is None:
        print_profile(console(), found)
