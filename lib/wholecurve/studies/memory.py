"""Resident memory of this process, as the kernel counts it: weights, caches, code and mapped files alike."""

from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def _field(name: str) -> int | None:
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith(f"{name}:")), None)
    return int(found.split()[1]) * 1024 if found else None


def resident_bytes() -> int | None:
    """Bytes that are resident now; None where the system does not tell (only Linux does)."""
    return _field("VmRSS")


def peak_resident_bytes() -> int | None:
    """The most bytes that were resident at once since `reset_peak`; since the start of the process where it failed."""
    return _field("VmHWM")


def reset_peak() -> bool:
    """Begin a new peak; False where the kernel does not let the process do so."""
    try:
        _CLEAR.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True
