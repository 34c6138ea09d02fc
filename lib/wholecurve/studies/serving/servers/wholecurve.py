"""`wholecurve serve`."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import wholecurve
from wholecurve import __version__
from wholecurve.errors import UserError
from wholecurve.studies.serving.servers.info import info_labels
from wholecurve.studies.serving.servers.pages import Pages
from wholecurve.studies.serving.servers.recipe import Launch, ServerOptions, ServerRecipe, listed_model
from wholecurve.studies.serving.servers.settings import Setting

_PACKAGES = ("torch", "starlette", "uvicorn", "prometheus_client")
_GRACE_S = 5  # for requests that run when it is told to end; nobody waits for them then


class WholecurveServerOptions(ServerOptions):
    """Beyond what all have; see `wholecurve serve --help`."""

    overlap: bool | None = None
    speculate: str | None = None
    chat_template: str | None = None
    tool_format: str | None = None


class WholecurveServer(ServerRecipe):
    """The engine of this package behind its own server, in this environment."""

    name = "wholecurve"
    profile = "wholecurve"
    options: ClassVar = WholecurveServerOptions

    def require_available(self) -> None:
        if missing := [name for name in _PACKAGES if find_spec(name) is None]:
            raise UserError(f"package {missing[0]} is not installed: pip install 'wholecurve[engine]'")

    def command(self, launch: Launch) -> list[str]:
        needs, options = launch.needs, launch.options
        command = [sys.executable, "-c", "from wholecurve.cli import main; main()", "serve"]
        command += [str(launch.files.hf_folder()), "--served-model-name", launch.model_name]
        command += ["--host", launch.host, "--port", str(launch.port), "--dtype", needs.dtype]
        command += ["--threads", str(launch.threads), "--cache-tokens", str(needs.cache_tokens)]
        command += ["--max-sequences", str(launch.max_sequences), "--grace", str(_GRACE_S)]
        command += ["--prefix-cache" if needs.prefix_cache else "--no-prefix-cache"]
        if launch.max_step_tokens is not None:
            command += ["--max-batch-tokens", str(launch.max_step_tokens)]
        if options.overlap is not None:
            command += ["--overlap" if options.overlap else "--no-overlap"]
        named = {
            "--speculate": options.speculate,
            "--chat-template": options.chat_template,
            "--tool-format": options.tool_format,
        }
        for argument, value in named.items():
            command += [argument, value] if value is not None else []
        return [*command, *options.arguments]

    def environment(self, launch: Launch) -> dict[str, str | None]:
        sources = str(Path(wholecurve.__file__).parents[1])
        # a key of the user's own server would be asked of our client
        return {**super().environment(launch), "PYTHONPATH": sources, "WHOLECURVE_API_KEY": None}

    def read_settings(self, pages: Pages, launch: Launch, log: str) -> dict[str, Setting]:
        entry = listed_model(pages, launch.model_name)
        return {
            "version": Setting(__version__, "package"),
            "model": Setting(entry["id"], "/v1/models"),
            "max_model_tokens": Setting(entry.get("max_model_len"), "/v1/models"),
            **engine_settings(pages.get_text("/metrics")),
        }


def engine_settings(page: str) -> dict[str, Setting]:
    """What its metrics page says of the engine (engine/server/about.py); empty where it says nothing."""
    labels = info_labels(page, "wholecurve:engine_info")
    labels.pop("model_name", None)
    return {name: Setting(_value(text), "/metrics") for name, text in labels.items()}


def _value(text: str) -> str | int | bool:
    return {"True": True, "False": False}.get(text, int(text) if text.isdigit() else text)
