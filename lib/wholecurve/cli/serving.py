"""The engine behind the OpenAI API: serve."""

from pathlib import Path
from typing import Annotated

import typer

from wholecurve.cli.app import app


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="Embedded name, .gguf file, folder, or hub name.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one; it is printed.")] = 8000,
    served_model_name: Annotated[str | None, typer.Option(help="What clients call the model.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="WHOLECURVE_API_KEY", help="Key that clients must send.", show_envvar=True)
    ] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of the engine.")] = None,
    cache_tokens: Annotated[int, typer.Option(min=1, help="Capacity of the key-value cache.")] = 32768,
    max_batch_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of one step.")] = 2048,
    max_sequences: Annotated[int, typer.Option(min=1, help="Most requests that run at once.")] = 64,
    prefix_cache: Annotated[
        bool, typer.Option("--prefix-cache/--no-prefix-cache", help="Reuse the cache of equal beginnings.")
    ] = True,
    overlap: Annotated[
        bool | None,
        typer.Option(
            "--overlap/--no-overlap", help="Schedule a step while the one before it runs; on a GPU by default."
        ),
    ] = None,
    speculate: Annotated[
        str | None, typer.Option(help="ngram:K drafts K tokens from the text itself, draft:MODEL:K by a small model.")
    ] = None,
    max_queued: Annotated[int, typer.Option(min=0, help="Requests that may wait; beyond it clients get 429.")] = 512,
    max_body_mib: Annotated[int, typer.Option(min=1, help="Largest request body in MiB.")] = 8,
    grace: Annotated[float, typer.Option(min=0, help="Seconds for running requests after SIGTERM.")] = 30.0,
    chat_template: Annotated[Path | None, typer.Option(help="File with a chat template (Jinja).")] = None,
    tool_format: Annotated[
        str | None,
        typer.Option(help="How the model writes calls of tools: hermes or json; by its template if not given."),
    ] = None,
) -> None:
    """Serve a model over the OpenAI API: completions, chat, tools, metrics."""
    from wholecurve.engine.server.serve import ServeOptions
    from wholecurve.engine.server.serve import serve as serve_model

    serve_model(
        ServeOptions(
            model=model,
            host=host,
            port=port,
            served_model_name=served_model_name,
            api_key=api_key,
            dtype=dtype,
            threads=threads,
            cache_tokens=cache_tokens,
            max_batch_tokens=max_batch_tokens,
            max_sequences=max_sequences,
            prefix_cache=prefix_cache,
            overlap=overlap,
            speculate=speculate,
            max_queued=max_queued,
            max_body_mib=max_body_mib,
            grace_s=grace,
            chat_template=chat_template,
            tool_format=tool_format,
        )
    )
