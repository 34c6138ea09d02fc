"""The engine and its models: generate, model fetch, model list."""

from typing import Annotated

import typer

from wholecurve.cli.app import app

model_app = typer.Typer(no_args_is_help=True, help="Fetch and list models.")
app.add_typer(model_app, name="model")


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
    from wholecurve.engine.text import stream_text
    from wholecurve.models.resolve import resolve
    from wholecurve.models.tokenizer import chat_prompt_ids, load_tokenizer

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
