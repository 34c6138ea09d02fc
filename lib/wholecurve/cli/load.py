"""A running server under load, without a plan file: load."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from wholecurve.cli.app import app, console
from wholecurve.errors import UserError


@app.command()
def load(
    url: Annotated[str, typer.Argument(help="The server's API with its path, as http://127.0.0.1:8000/v1.")],
    model: Annotated[str | None, typer.Option(help="What the server calls the model, where it has several.")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Requests in flight: 8, or 1,2,4,8 for a curve.")] = None,
    rate: Annotated[
        str | None, typer.Option(help="Instead: requests per second, Poisson arrivals; 2 or 0.5,1,2.")
    ] = None,
    prompt_tokens: Annotated[str, typer.Option(help="Length of prompts: 128, or 64-256 for a range.")] = "128",
    output_tokens: Annotated[str, typer.Option(help="Length of answers, in the same way.")] = "48-80",
    requests: Annotated[int, typer.Option(min=1, help="Least requests of each level; p90 needs 30.")] = 30,
    seconds: Annotated[float | None, typer.Option(help="Of arrivals, with --rate.")] = None,
    api: Annotated[str, typer.Option(help="completions or chat.")] = "completions",
    profile: Annotated[str, typer.Option(help="Kind of server: vllm, sglang, llama.cpp, openai …")] = "openai",
    tokenizer: Annotated[
        str | None, typer.Option(help="The same model on this machine: prompts get exact lengths, and go as token ids.")
    ] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with the server's key.")] = None,
    device_kind: Annotated[str, typer.Option(help="What the server runs on.")] = "unknown",
    devices: Annotated[int, typer.Option(min=1, help="Devices of the server, all that it uses.")] = 1,
    ttft_ms: Annotated[float | None, typer.Option(help="Objective: most time to the first token.")] = None,
    tpot_ms: Annotated[float | None, typer.Option(help="Objective: most time per output token.")] = None,
    e2e_ms: Annotated[float | None, typer.Option(help="Objective: most time to the last token.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes of the client.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts, lengths and arrivals.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder; data/runs/load-<time> when not given.")] = None,
) -> None:
    """Put a running server under load and report; the run is kept like that of a study."""
    from wholecurve.report import print_run
    from wholecurve.studies.plan_file import validated
    from wholecurve.studies.serving.plan import ServingPlan
    from wholecurve.studies.serving.study import ServingStudy

    limits = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "e2e_ms": e2e_ms}
    contender = {"name": "server", "server": "running", "url": url, "model": model, "profile": profile}
    contender |= {"api_key_env": api_key_env, "device_kind": device_kind, "devices": devices}
    document = {
        "name": "load",
        "kind": "serving",
        "model": tokenizer,
        "seed": seed,
        "repeats": 1,
        "api": api,
        "contenders": [contender],
        "workload": {
            "kind": "lengths",
            "prompts": "messages" if api == "chat" else "ids" if tokenizer else "text",
            "prompt_tokens": _range("--prompt-tokens", prompt_tokens),
            "output_tokens": _range("--output-tokens", output_tokens),
        },
        "load": _load(concurrency, rate),
        "requests": {"at_least": requests, "seconds": seconds},
        "prefix_cache": "cold",
        "slo": limits if any(limits.values()) else None,
        "agreement": None,
        "client": {"processes": processes},
    }
    plan = validated(ServingPlan, document, "load")
    folder = out or Path("data/runs") / f"load-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        run = ServingStudy(plan, folder).run()
    except KeyboardInterrupt:
        raise UserError(f"stopped; finished levels are kept in {folder}") from None
    print_run(console(), run)


def _load(concurrency: str | None, rate: str | None) -> dict[str, Any]:
    if concurrency is not None and rate is not None:
        raise UserError("load: --concurrency and --rate are two kinds of load; give one of them")
    if rate is not None:
        return {"open": {"rate_per_s": _numbers("--rate", rate, float)}}
    return {"closed": {"concurrency": _numbers("--concurrency", concurrency or "1,2,4,8", int)}}


def _numbers(option: str, text: str, kind: type) -> list:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise UserError(f"load: {option} {text!r}: {what} are needed, with a comma between two of them") from None


def _range(option: str, text: str) -> list[int]:
    low, dash, high = text.partition("-")
    try:
        return [int(low), int(high if dash else low)]
    except ValueError:
        raise UserError(f"load: {option} {text!r}: a whole number or a range as 64-256 is needed") from None
