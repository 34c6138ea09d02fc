"""What is known of a kind of server before one is started, and how that is done."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from wholecurve.errors import UserError
from wholecurve.files import read_json
from wholecurve.studies.plan_parts import Positive, Strict
from wholecurve.studies.serving.servers.pages import Pages
from wholecurve.studies.serving.servers.settings import Setting

if TYPE_CHECKING:
    from wholecurve.models.resolve import ModelFiles


@dataclass(frozen=True)
class Needs:
    """What a study asks of every server alike."""

    sequence_tokens: int  # longest prompt and answer together
    max_sequences: int  # requests that run at once
    cache_tokens: int  # that the key-value cache holds at least, all sequences together
    dtype: str = "bfloat16"
    threads: int = 1
    prefix_cache: bool = False
    max_step_tokens: int | None = None  # of one step, prompts and decode rows together; None: the server's own


class ServerOptions(Strict):
    """What a plan may give to every server that is started; each kind adds its own."""

    threads: Positive | None = None  # the study's number when not given
    max_sequences: Positive | None = None  # the same
    max_step_tokens: Positive | None = None  # the same
    arguments: tuple[str, ...] = ()  # to the end of its command line, as they are
    environment: dict[str, str] = Field(default_factory=dict)  # over the variables that the recipe sets


@dataclass(frozen=True)
class Launch:
    """All that one server's command line is made of."""

    needs: Needs
    options: Any  # of the recipe's own class
    files: "ModelFiles | None"  # None for a server that runs already
    model_name: str  # what clients call the model
    port: int
    host: str = "127.0.0.1"

    @property
    def threads(self) -> int:
        return self.options.threads or self.needs.threads

    @property
    def max_sequences(self) -> int:
        return self.options.max_sequences or self.needs.max_sequences

    @property
    def max_step_tokens(self) -> int | None:
        return self.options.max_step_tokens or self.needs.max_step_tokens


class ServerRecipe(ABC):
    """One kind of server. Methods raise UserError in one line that does not name the contender."""

    name: ClassVar[str]  # in plans
    profile: ClassVar[str]  # how clients ask it; a name in client/profiles.py
    options: ClassVar[type[Strict]] = ServerOptions
    apis: ClassVar[tuple[str, ...]] = ("completions", "chat")
    takes_token_ids: ClassVar[bool] = True  # as the prompt of a completion
    starts: ClassVar[bool] = True  # False: it runs already, and is left running
    health_path: ClassVar[str] = "/health"
    ready_within_s: ClassVar[float] = 180.0  # from the start of its process to its first token

    @abstractmethod
    def require_available(self) -> None:
        """UserError when what it needs is not installed or not set up."""

    @abstractmethod
    def command(self, launch: Launch) -> list[str]:
        """Program and arguments; takes long where the model has to be converted first."""

    def environment(self, launch: Launch) -> dict[str, str | None]:
        """Variables beside the study's own; None takes one away."""
        return {"OMP_NUM_THREADS": str(launch.threads), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

    def model_name(self, files: "ModelFiles", options: Any, pages: Pages | None = None) -> str:
        """What the server calls the model; ``pages`` are given where it runs already."""
        return files.name

    @abstractmethod
    def read_settings(self, pages: Pages, launch: Launch, log: str) -> dict[str, Setting]:
        """What is in effect, each with where it was read; `model` is always among it. `log`: what it wrote so far."""

    def expected(self, launch: Launch) -> dict[str, Any]:
        """Settings that have to be just so, beside those that every server is checked for."""
        return {}


def listed_models(pages: Pages) -> list[dict]:
    """The entries of a server's list of models; UserError where it is no such list."""
    path = f"{pages.api}/models"
    document = pages.get_json(path)
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise UserError(f"{pages.root}{path}: there is no list of models under data")
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def listed_model(pages: Pages, name: str) -> dict:
    """The entry of a model in a server's list; UserError names those that it has instead."""
    entries = listed_models(pages)
    for entry in entries:
        if entry["id"] == name:
            return entry
    others = ", ".join(entry["id"] for entry in entries) or "none"
    raise UserError(f"{pages.root}{pages.api}/models: model {name!r} is not there; it has: {others}")


def vocab_size(files: "ModelFiles") -> int:
    """Token ids that the checkpoint knows, by its configuration."""
    path = files.hf_folder() / "config.json"
    document = read_json(path)
    size = document.get("vocab_size", document.get("text_config", {}).get("vocab_size"))
    if not isinstance(size, int):
        raise UserError(f"{path}: vocab_size is {size!r}; a whole number is needed")
    return size
