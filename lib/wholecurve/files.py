"""Files that are either whole or absent, whatever kills the writer; and JSON that is named when it is broken."""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wholecurve.errors import UserError


def slug(name: str) -> str:
    """A name as part of a file name: lower-case letters and digits, everything else a dash."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a path beside `target`; when the block ends well it is synced and takes the target's place.

    When the block raises, the partial file is removed and an existing target is left as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.chmod(0o644)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    with replacing(target) as partial:
        partial.write_text(text, encoding="utf-8")


def write_bytes(target: Path, content: bytes) -> None:
    """Write bytes, whole or not at all."""
    with replacing(target) as partial:
        partial.write_bytes(content)


def write_json(target: Path, document: object) -> None:
    """Write strict JSON (no NaN, no Infinity: what is not there is null), whole or not at all."""
    write_text(target, json.dumps(document, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict:
    """Parse one JSON file that holds an object; UserError names the file when it is missing or broken."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {'missing' if isinstance(error, FileNotFoundError) else error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(document, dict):
        raise UserError(f"{path}: holds a JSON {type(document).__name__}; it must be an object")
    return document


def data_folder(name: str) -> Path:
    """A folder of `data` in the checkout that this package runs from; UserError where it was installed without one."""
    folder = Path(__file__).parents[2] / "data" / name
    if not folder.is_dir():
        raise UserError(f"{folder}: data/{name} comes with a checkout of wholecurve; name a file instead")
    return folder


def published_folder() -> Path:
    """`data/published`: claims, rates and curves that others published."""
    return data_folder("published")
