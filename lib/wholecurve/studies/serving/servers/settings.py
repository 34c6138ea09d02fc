"""Settings in effect: what a server says of itself, where it says so, and whether it is what was asked for."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wholecurve.errors import UserError
from wholecurve.models.store import cache_folder

ASKED = "command line"  # the source of what no server tells: it was asked for, and not read back


@dataclass(frozen=True)
class Setting:
    """A value and where it was read: a path of the server, or "command line"."""

    value: Any
    source: str


def require_equal(settings: Mapping[str, Setting], wanted: Mapping[str, Any]) -> None:
    """UserError where a setting that was read back is another than was asked for. What is not told is passed over."""
    for name, value in wanted.items():
        found = settings.get(name)
        if found is not None and found.value is not None and found.value != value:
            raise UserError(f"{name} is {found.value} ({found.source}), the study asked for {value}")


def require_at_least(settings: Mapping[str, Setting], wanted: Mapping[str, int]) -> None:
    """UserError where a size that was read back is smaller than was asked for. What is not told is passed over."""
    for name, value in wanted.items():
        found = settings.get(name)
        if found is not None and found.value is not None and found.value < value:
            raise UserError(f"{name} is {found.value} ({found.source}), the study needs at least {value}")


def portable(text: str) -> str:
    """Folders of this machine replaced by what they are, so that a record can be read elsewhere."""
    folders = [(cache_folder(), "$WHOLECURVE_CACHE"), (Path(sys.prefix), "$ENVIRONMENT"), (Path.home(), "~")]
    folders.insert(2, (Path(__file__).parents[4], "$SOURCES"))
    for folder, name in folders:
        text = text.replace(str(folder), name)
    return text
