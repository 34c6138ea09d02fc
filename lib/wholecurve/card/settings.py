"""Settings that contenders reported of themselves, read back after they had started: shared ones, own ones, changes."""

import re
from collections.abc import Mapping, Sequence

# What differs from start to start and says nothing of how an engine runs.
_VOLATILE = {"idle", "pid", "port", "url", "base_url"}
# Said in a column of its own, or a line of a build that no reader compares.
_ELSEWHERE = {"engine", "server", "version", "system", "command", "environment", "sources"}
_LONGEST = 60


def read_back(row: Mapping) -> dict[str, str]:
    """The settings of one point as name and text, nested ones by both names; empty where none were recorded."""
    return dict(_flat(row.get("settings") or {}))


def _flat(settings: Mapping, within: str = "") -> list[tuple[str, str]]:
    found = []
    for key, value in settings.items():
        if key in _VOLATILE | _ELSEWHERE:
            continue
        name = f"{within} {key}".strip()
        if isinstance(value, Mapping):
            # "settings" and "properties" only say that something is inside.
            found += _flat(value, within if key in ("settings", "properties") else name)
        else:
            found.append(_in_mebibytes(name, value) or (name, setting_text(value)))
    return found


def _in_mebibytes(name: str, value) -> tuple[str, str] | None:
    if not name.endswith("_bytes") or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return name.removesuffix("_bytes"), f"{value / 2**20:,.0f} MiB"


def setting_text(value) -> str:
    """A value in few characters: on and off, plain numbers, folders cut to their last part."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        value = " ".join(map(setting_text, value))
    text = "not told" if value is None else str(value)
    text = text.replace(", ", " ")
    text = re.sub(r"(?<![\w:/])/(?:[^\s/]+/)+", "…/", text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def version(rows: Sequence[Mapping]) -> str:
    """The version that a contender reported; several where it changed between its points, "not told" without one."""
    found = dict.fromkeys(str((row.get("settings") or {}).get("version") or "not told") for row in rows)
    return ", ".join(found) or "no points"


def shared(by_contender: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Settings that all contenders report with one value."""
    told = list(by_contender.values())
    if not told:
        return {}
    return {name: text for name, text in told[0].items() if all(one.get(name) == text for one in told)}


def changed(rows: Sequence[Mapping]) -> list[str]:
    """Names of settings that a contender did not report alike at all of its points."""
    reports = [read_back(row) for row in rows]
    names = dict.fromkeys(name for report in reports for name in report)
    return [name for name in names if len({report.get(name) for report in reports}) > 1]


def listed(settings: Mapping[str, str]) -> str:
    """ "dtype bfloat16, threads 2" of a mapping."""
    return ", ".join(f"{name} {text}" for name, text in settings.items())
