"""A server that runs already: it is looked at, never started, set or stopped."""

import contextlib
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field

from wholecurve.errors import UserError
from wholecurve.studies.plan_parts import Strict
from wholecurve.studies.serving.servers.pages import NoAnswer, Pages
from wholecurve.studies.serving.servers.recipe import Launch, ServerRecipe, listed_model, listed_models
from wholecurve.studies.serving.servers.settings import Setting
from wholecurve.studies.serving.servers.vllm import cache_settings
from wholecurve.studies.serving.servers.wholecurve import engine_settings

if TYPE_CHECKING:
    from wholecurve.models.resolve import ModelFiles


class RunningOptions(Strict):
    """``url`` with its path, as in http://host:8000/v1; ``model`` may be left out where the server has one alone."""

    url: Annotated[str, Field(pattern=r"^https?://[^/\s]+(/\S*)?$")]
    model: str | None = None
    profile: str = "openai"


class RunningServer(ServerRecipe):
    """Any server that speaks the OpenAI API, anywhere."""

    name = "running"
    profile = "openai"
    options: ClassVar = RunningOptions
    starts = False

    def require_available(self) -> None:
        """Whether it answers is seen when its models are asked for."""

    def address(self, options: Any) -> tuple[str, str]:
        """The root of the server and the path of its API below it."""
        url = options.url.rstrip("/")
        if "@" in urlsplit(url).netloc:
            raise UserError("url: it holds a user or a password, and would be recorded; give the key by api_key_env")
        return (url.removesuffix("/v1"), "/v1") if url.endswith("/v1") else (url, "")

    def command(self, launch: Launch) -> list[str]:
        raise UserError("a running server is not started")

    def model_name(self, files: "ModelFiles | None", options: Any, pages: Pages | None = None) -> str:
        if options.model is not None or pages is None:
            return options.model or ""
        try:
            names = [entry["id"] for entry in listed_models(pages)]
        except NoAnswer as error:
            if error.status == 404 and not pages.api:
                raise UserError(f"{error}; most servers have their API at {pages.root}/v1") from None
            raise
        if len(names) != 1:
            raise UserError(f"{pages.root}{pages.api}/models has {', '.join(names) or 'no model'}: say which is meant")
        return names[0]

    def read_settings(self, pages: Pages, launch: Launch, log: str) -> dict[str, Setting]:
        settings = self._model_settings(pages, launch)
        for path, name in (("/version", "version"), ("/props", "build_info")):
            found = _field(pages, path, name)
            if found is not None:
                settings["version"] = Setting(found, path)
                break
        with contextlib.suppress(NoAnswer):  # it has no such page, or not for us
            page = pages.get_text("/metrics")
            settings |= cache_settings(page) | engine_settings(page)
        return settings

    def _model_settings(self, pages: Pages, launch: Launch) -> dict[str, Setting]:
        source = f"{pages.api}/models"
        try:
            entry = listed_model(pages, launch.model_name)
        except NoAnswer as error:
            if error.status not in (404, 405, 501):
                raise
            return {"model": Setting(launch.model_name, "plan")}  # it has no list to look into
        length = entry.get("max_model_len") or entry.get("context_length") or (entry.get("meta") or {}).get("n_ctx")
        size = {"max_model_tokens": Setting(length, source)} if isinstance(length, int) else {}
        return {"model": Setting(entry["id"], source), **size}


def _field(pages: Pages, path: str, name: str) -> str | None:
    """A text in a document of the server; None where there is no such document."""
    try:
        document = pages.get_json(path)
    except UserError:
        return None
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, str) else None
