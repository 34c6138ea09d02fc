"""`wholecurve serve`: from a model's name to a server that runs until it is told to stop."""

import copy
import gc
import logging
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from wholecurve.engine import Engine, SamplingParams
from wholecurve.engine.graphs import GraphedModel
from wholecurve.engine.load import load_model
from wholecurve.engine.server.about import engine_about
from wholecurve.engine.server.http_server import HttpServer, address_of, bind, is_loopback
from wholecurve.engine.server.service import Service
from wholecurve.engine.server.settings import ServerSettings
from wholecurve.engine.speculation import parse_speculation
from wholecurve.errors import UserError
from wholecurve.models.resolve import resolve
from wholecurve.models.tokenizer import load_tokenizer

_SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True)
class ServeOptions:
    """What the command line gives; see `wholecurve serve --help`."""

    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    api_key: str | None = None
    dtype: str = "bfloat16"
    threads: int | None = None
    cache_tokens: int = 32768
    max_batch_tokens: int = 2048
    max_sequences: int = 64
    prefix_cache: bool = True
    overlap: bool | None = None
    speculate: str | None = None
    max_queued: int = 512
    max_body_mib: int = 8
    grace_s: float = 30.0
    chat_template: Path | None = None
    tool_format: str | None = None


def read_template(path: Path) -> str:
    """The text of a chat template."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"chat template {path}: it cannot be read ({error})") from None


def build_service(options: ServeOptions) -> Service:
    """Load the model and put an engine behind the API; takes seconds."""
    speculation = None if options.speculate is None else parse_speculation(options.speculate)
    template = None if options.chat_template is None else read_template(options.chat_template)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    files = resolve(options.model)
    tokenizer = load_tokenizer(files.hf_folder())
    model = load_model(files, options.dtype, threads=options.threads)
    if model.device.type == "cuda":
        model = GraphedModel(model, options.max_sequences)
    # what is built at first use, by an engine whose counters nobody sees
    Engine(model, cache_tokens=64, max_sequences=1).generate([[0]], SamplingParams(max_new_tokens=2, ignore_eos=True))
    sizes = {"cache_tokens": options.cache_tokens, "max_batch_tokens": options.max_batch_tokens}
    engine = Engine(
        model,
        tokenizer=tokenizer,
        **sizes,
        max_sequences=options.max_sequences,
        prefix_cache=options.prefix_cache,
        # on a CPU the thread that it takes costs more than the host's work that it hides
        overlap=model.device.type == "cuda" if options.overlap is None else options.overlap,
        speculation=None if speculation is None else speculation.build(model, block_size=16, **sizes),
    )
    settings = ServerSettings(
        model_name=options.served_model_name or files.name,
        context_tokens=min(model.config.max_position, options.cache_tokens),
        vocab_size=model.config.vocab_size,
        max_running=options.max_sequences,
        max_queued=options.max_queued,
        max_body_bytes=options.max_body_mib * 2**20,
        api_key=options.api_key,
        tool_format=options.tool_format,
    )
    # encoding on the event loop and decoding in the engine's thread must not share what a tokenizer changes
    own_tokenizer = copy.deepcopy(tokenizer)
    if template is not None:
        own_tokenizer.chat_template = template
    return Service(engine, own_tokenizer, settings, engine_about(engine))


def serve(options: ServeOptions) -> None:
    """Serve until SIGTERM or SIGINT; a second one does not wait for running requests."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.WARNING)
    if options.api_key == "":
        raise UserError("the API key is empty; leave --api-key and $WHOLECURVE_API_KEY out to serve without one")
    bound = bind(options.host, options.port)  # before the model, which takes longer
    with bound:
        if options.api_key is None and not is_loopback(bound):
            print(
                f"wholecurve: warning: {options.host} is reached from other machines and no API key is set; "
                "anyone there can use the model (--api-key, or $WHOLECURVE_API_KEY)",
                file=sys.stderr,
            )
        service = build_service(options)
        # a step that ends wants Python's lock at once, whatever the event loop's thread does just then
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        # the model and its libraries stay: the garbage collector need not walk over them again and again
        gc.collect()
        gc.freeze()

        def announce() -> None:
            print(f"{service.settings.model_name}: ready on {address_of(bound)}/v1", flush=True)

        HttpServer(service, bound, options.grace_s).run(announce, (signal.SIGTERM, signal.SIGINT))
