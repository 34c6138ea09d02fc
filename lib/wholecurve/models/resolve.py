"""From what the user calls a model to files that load: an embedded name, a GGUF file, a folder, or a hub name."""

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from wholecurve.errors import UserError
from wholecurve.files import read_json
from wholecurve.models.config import ModelConfig
from wholecurve.models.folder import read_folder, write_folder
from wholecurve.models.gguf_file import read_gguf, write_f16_gguf
from wholecurve.models.store import EMBEDDED, cache_folder, file_sha256, model_folder, verify
from wholecurve.models.tokenizer import save_tokenizer_of_gguf

# Part of the name of a derived folder: raise it when what is derived, or how, changes.
_DERIVED_VERSION = 1


@dataclass(frozen=True)
class ModelFiles:
    """One checkpoint in the forms that contenders ask for."""

    name: str
    gguf: Path | None  # as given, may be quantised
    folder: Path | None  # Hugging Face folder as given

    def read(self) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
        """Config and weights at the precision of the checkpoint itself."""
        return read_gguf(self.gguf) if self.gguf else read_folder(self.folder)

    def derived_folder(self) -> Path:
        """Cache folder for what is computed from this checkpoint, named by its content."""
        if self.folder:
            raise UserError(f"{self.folder}: derived forms are made from GGUF checkpoints only")
        base = model_folder(self.name) if self.name in EMBEDDED else cache_folder() / "models" / "derived"
        return base / f"f16-v{_DERIVED_VERSION}-{file_sha256(self.gguf)[:16]}"

    def f16_gguf(self) -> Path:
        """The same weights dequantised to an F16 GGUF (what OpenVINO GenAI reads)."""
        target = self.derived_folder() / "model-f16.gguf"
        if not target.exists():
            write_f16_gguf(self.gguf, target)
        return target

    def hf_folder(self) -> Path:
        """A Hugging Face folder with the tokenizer: the given one, or one derived with F16 weights from the GGUF."""
        if self.folder:
            return self.folder
        target = self.derived_folder() / "hf"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=".hf.", dir=target.parent))
            try:
                config, weights = read_gguf(self.gguf)
                write_folder(partial, config, weights, torch.float16)
                save_tokenizer_of_gguf(self.gguf, partial)
                _publish(partial, target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return target


def _publish(partial: Path, target: Path) -> None:
    """Rename a finished folder into place; when another process was first, its result stands."""
    try:
        partial.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _hub_snapshot(name: str) -> Path:
    """Download (or find in its cache) a model of the Hugging Face hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"model {name!r}: not on this machine and the hub did not give it ({reason})") from None


def _existing_path(model: str) -> Path | None:
    try:
        path = Path(model).expanduser()
        return path if model and path.exists() else None
    except (OSError, RuntimeError):  # longer than a path may be; the home folder of an unknown user
        return None


def resolve(model: str) -> ModelFiles:
    """Find a model by embedded name, path of a .gguf file, path of a folder, or hub name `organisation/name`.

    Raises UserError with one line that says what is wrong and what would be right.
    """
    if model in EMBEDDED:
        return ModelFiles(model, verify(model), None)
    path = _existing_path(model)
    if path and path.is_dir():
        read_json(path / "config.json")
        return ModelFiles(path.name, None, path)
    if path:
        if path.suffix != ".gguf":
            raise UserError(f"{path}: a model file must be a .gguf; for safetensors give its folder")
        return ModelFiles(path.stem, path, None)
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", model) and not model.endswith(".gguf"):
        return ModelFiles(model, None, _hub_snapshot(model))
    raise UserError(
        f"model {model!r}: no such file or folder, and not an embedded model ({', '.join(EMBEDDED)}) "
        "nor a hub name like organisation/name"
    )
