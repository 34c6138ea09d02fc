"""Sizes of a step study that a machine can hold, and in words what was made smaller and why."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch

from wholecurve.errors import UserError

CPU_SHARE, GPU_SHARE = 0.5, 0.85  # of the free memory, for cache and workspace


@dataclasses.dataclass(frozen=True)
class Limit:
    """Why a size may not be larger. allows(size): whether it fits. reason: in words, for one that does not."""

    allows: Callable[[int], bool]
    reason: str


@dataclasses.dataclass(frozen=True)
class Scaled:
    """A size after scaling. note: what was scaled and why, "" where nothing was."""

    size: int
    note: str


def halved_to_fit(name: str, wanted: int, limits: list[Limit], smallest: int = 1) -> Scaled:
    """`wanted` halved until every limit allows it. UserError where not even `smallest` fits."""
    size, reasons = wanted, []
    while broken := [limit for limit in limits if not limit.allows(size)]:
        reasons += [limit.reason for limit in broken if limit.reason not in reasons]
        if size // 2 < smallest:
            raise UserError(f"{name} cannot be scaled down from {wanted:,} to {smallest:,}: {'; '.join(reasons)}")
        size //= 2
    note = f"{name} scaled down from {wanted:,} to {size:,}: {'; '.join(reasons)}" if size < wanted else ""
    return Scaled(size, note)


def require_fit(name: str, size: int, limits: list[Limit]) -> None:
    """UserError for a size that was asked for and does not fit, with the largest power of two that does."""
    broken = [limit for limit in limits if not limit.allows(size)]
    if not broken:
        return
    smaller = (2**power for power in range(size.bit_length() - 1, -1, -1))
    fitting = next((one for one in smaller if all(limit.allows(one) for limit in limits)), None)
    hint = f"; {fitting:,} would fit" if fitting else ""
    raise UserError(f"{name} {size:,} does not fit: {'; '.join(limit.reason for limit in broken)}{hint}")


def free_bytes(device: torch.device | str) -> int:
    """Bytes that a study may use on this device: a share of what is free now."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()  # what an earlier study has given back is free
        return int(GPU_SHARE * torch.cuda.mem_get_info()[0])
    return int(CPU_SHARE * min(available_bytes(), group_bytes()))


def available_bytes() -> int:
    """What Linux says can still be allocated without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise UserError("this system does not say how much memory is available; give --memory-gib")


def group_bytes() -> int:
    """What the control group of this process still allows; more than any memory where it sets no limit."""
    folder = Path("/sys/fs/cgroup")
    try:
        most = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):
        return 2**62
    if most == "max":
        return 2**62
    return max(0, int(most) - used + int(statistics.get("inactive_file", 0)))
