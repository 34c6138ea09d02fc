"""What a run was measured on and with: hardware, versions, commit, command line."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ["wholecurve", "torch", "triton", "transformers", "tokenizers", "openvino", "openvino-genai", "numpy"]
_PACKAGES += ["aiohttp", "uvloop", "orjson"]  # the client of servers


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_fields() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def available_memory_bytes() -> int | None:
    """Memory that new processes can have without any of the others being pushed out; None where nobody tells."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return 1024 * int(values["MemAvailable"].split()[0]) if "MemAvailable" in values else None


def _nvidia_gpus() -> list[dict]:
    """Name, memory, driver and clocks of each GPU as the driver tells; no tool or no GPU gives an empty list."""
    fields = ["name", "memory.total", "driver_version", "clocks.max.sm", "clocks.max.memory", "power.limit"]
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in result.stdout.strip().splitlines()]
    return [dict(zip(fields, row, strict=False)) for row in rows]


def hardware() -> dict:
    """The machine, as far as it can be read. `fingerprint` is equal on machines that a run may be resumed on."""
    cpu = _cpu_fields()
    model = cpu.get("model name") or platform.processor() or platform.machine()
    flags = set(cpu.get("flags", "").split())
    interesting = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16"]
    gpus = _nvidia_gpus()
    details = [model, cpu.get("cpu family"), cpu.get("model"), usable_cores(), *[gpu["name"] for gpu in gpus]]
    return {
        "cpu": model,
        "cpu_family_model": f"{cpu.get('cpu family', '?')}/{cpu.get('model', '?')}",
        "cores": usable_cores(),
        "cpu_features": [flag for flag in interesting if flag in flags],
        "cpu_mhz": float(cpu["cpu MHz"]) if "cpu MHz" in cpu else None,
        "memory_bytes": _memory_bytes(),
        "gpus": gpus,
        "system": f"{platform.system()} {platform.release()}",
        "fingerprint": " | ".join(str(part) for part in details),
    }


def hardware_line(machine: dict) -> str:
    """One line for people: `AMD EPYC, 2 cores (avx512_bf16), 23.5 GiB, no GPU`."""
    memory = machine.get("memory_bytes")
    parts = [f"{machine['cpu']}, {machine['cores']} cores"]
    if machine.get("cpu_features"):
        parts[0] += f" ({machine['cpu_features'][-1]})"
    if memory:
        parts.append(f"{memory / 2**30:.1f} GiB")
    gpus = [gpu["name"] for gpu in machine.get("gpus", [])]
    return ", ".join([*parts, " + ".join(gpus) if gpus else "no GPU"])


def model_line(plan: dict) -> str:
    """`smollm2-135m-instruct, bfloat16`; of servers that ran already, what the plan knows of their model."""
    known = [part for part in (plan["model"], plan["dtype"]) if part is not None]
    return ", ".join(known) or "the model that the server has"


def package_versions(names: list[str] | None = None) -> dict[str, str]:
    """Versions of the packages that are installed; what is not installed is absent."""
    found = {}
    for name in names or _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_state(folder: Path) -> dict | None:
    """Commit and whether the tree has uncommitted changes; None outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def collect() -> dict:
    """Everything that goes into `provenance.json` when a run begins."""
    environment = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(("OMP_", "KMP_", "GOMP_"))}
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "git": git_state(Path(__file__).parent),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "environment": environment,
    }
