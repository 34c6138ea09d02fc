"""The command line: one file per group of commands.

Every command imports what it needs when it runs, so that `--help` and `compare` load no torch.
"""

import sys

# each registers its commands
from wholecurve.cli import analysis, card, client, engine, kernels, load, peers, serving, steps, studies  # noqa: F401
from wholecurve.cli.app import app
from wholecurve.errors import UserError

# What the analysis half installs without.
_ENGINE_PACKAGES = {"torch", "triton", "transformers", "tokenizers", "safetensors", "gguf", "ml_dtypes"}
_ENGINE_PACKAGES |= {"starlette", "uvicorn", "prometheus_client", "jinja2", "xgrammar"}
_EXTRAS = dict.fromkeys(_ENGINE_PACKAGES, "engine") | dict.fromkeys(
    ("aiohttp", "httptools", "orjson", "uvloop"), "serving"
)
_EXTRAS |= {"ray": "ray"}


def main() -> None:
    """Entry point: what the user got wrong is one line on stderr and exit code 2."""
    try:
        app()
    except UserError as error:
        message = str(error)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        message = f"this command needs the package {package}: pip install 'wholecurve[{_EXTRAS[package]}]'"
    else:
        return
    print(f"wholecurve: {message}", file=sys.stderr)
    sys.exit(2)
