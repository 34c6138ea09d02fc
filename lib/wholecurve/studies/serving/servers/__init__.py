"""Contenders as servers: started, checked, watched and stopped, or already running."""

from typing import Any

from pydantic import ValidationError

from wholecurve.errors import UserError
from wholecurve.studies.plan_parts import Strict
from wholecurve.studies.serving.servers.llama_cpp import LlamaCppServer
from wholecurve.studies.serving.servers.recipe import Launch, Needs, ServerOptions, ServerRecipe
from wholecurve.studies.serving.servers.running import RunningServer
from wholecurve.studies.serving.servers.server import ManagedServer
from wholecurve.studies.serving.servers.transformers import TransformersServer
from wholecurve.studies.serving.servers.vllm import VllmServer
from wholecurve.studies.serving.servers.wholecurve import WholecurveServer
from wholecurve.studies.wrong_setting import wrong_setting

SERVERS: dict[str, ServerRecipe] = {
    recipe.name: recipe
    for recipe in (WholecurveServer(), VllmServer(), LlamaCppServer(), TransformersServer(), RunningServer())
}


def parse_server_options(server: str, settings: dict[str, Any]) -> Strict:
    """Validated options of a kind of server; UserError names the setting and what would be right."""
    if server not in SERVERS:
        raise UserError(f"no server {server!r}; there is: {', '.join(SERVERS)}")
    options = SERVERS[server].options
    try:
        return options.model_validate(settings)
    except ValidationError as error:
        raise UserError(wrong_setting(error, options, f"server {server}")) from None


__all__ = [
    "SERVERS",
    "Launch",
    "ManagedServer",
    "Needs",
    "ServerOptions",
    "ServerRecipe",
    "parse_server_options",
]
