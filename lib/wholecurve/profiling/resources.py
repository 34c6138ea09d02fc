"""What a compiled kernel takes of a multiprocessor, and which instructions it is made of; nothing is executed."""

import dataclasses
import inspect
import re
import subprocess
import tempfile
from pathlib import Path

import triton

# instruction families: name → pattern in PTX or AMD assembly; counts are occurrences, not executions
MATRIX = {
    "wgmma": r"wgmma\.mma_async",
    "tcgen05": r"tcgen05\.mma",
    "mma": r"\bmma\.sync",
    "mfma": r"\bv_mfma\w*",
}
COPIES = {
    "tma_load": r"cp\.async\.bulk\.tensor\.\dd\.shared",
    "tma_store": r"cp\.async\.bulk\.tensor\.\dd\.global",
    "cp.async": r"cp\.async\.(?:ca|cg)",
    "ld.global": r"\bld\.global",
    "st.global": r"\bst\.global",
    "buffer_load": r"\bbuffer_load",
    "global_load": r"\bglobal_load",
}


@dataclasses.dataclass(frozen=True)
class Multiprocessor:
    """Limits of one multiprocessor. registers and threads are per multiprocessor, register_unit is the granularity of
    a warp's registers. Source: CUDA C++ Programming Guide, technical specifications per compute capability.
    """

    registers: int
    shared_bytes: int
    threads: int
    blocks: int
    register_unit: int = 256
    block_shared_bytes: int = 1024  # what the system takes of every block's shared memory


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(65536, 164 * 1024, 2048, 32),
    "sm_90": Multiprocessor(65536, 228 * 1024, 2048, 32),
    "sm_100": Multiprocessor(65536, 228 * 1024, 2048, 32),
    "sm_120": Multiprocessor(65536, 100 * 1024, 1536, 24),
}


@dataclasses.dataclass(frozen=True)
class Resources:
    """Static resources of a compiled kernel. registers: per thread (vector registers on AMD). spill_bytes: stores of
    spilled registers, per thread. stack_bytes: per thread. shared_bytes: per block. occupancy: resident warps as a
    share of what a multiprocessor holds, None where its limits are not known here. matrix, copies: instruction
    families and how often they occur. assembler: what decided about registers.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    num_warps: int
    occupancy: float | None
    matrix: dict
    copies: dict
    assembler: str


def resources(compiled, target):
    """The Resources of what `compile.compile_launch` gave for this target."""
    shared, num_warps = compiled.metadata.shared, compiled.metadata.num_warps
    if "cubin" not in compiled.asm:
        return amd_resources(compiled.asm["amdgcn"], shared, num_warps)
    ptx = compiled.asm["ptx"]
    registers, stack = cubin_usage(compiled.asm["cubin"])
    return Resources(
        registers,
        # the stack also holds arrays that were never in registers, so ptxas has the last word; without one: no spills
        spilled_bytes(ptx, compiled.metadata.target.arch) if stack else 0,
        stack,
        shared,
        num_warps,
        occupancy(registers, shared, num_warps, MULTIPROCESSORS.get(target)),
        occurrences(ptx, MATRIX),
        occurrences(ptx, COPIES),
        assembler_version(compiled.metadata.target.arch),
    )


def cubin_usage(cubin):
    """(registers, stack bytes) per thread, read by the cuobjdump that comes with triton."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        answer = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", answer.stdout + answer.stderr)
    return int(found[1]), int(found[2])


def ptxas(arch):
    """The assembler that triton uses for this compute capability."""
    from triton.backends.nvidia.compiler import get_ptxas

    return get_ptxas(arch) if inspect.signature(get_ptxas).parameters else get_ptxas()


def assembler_version(arch):
    """Such as "ptxas 12.8"."""
    return f"ptxas {ptxas(arch).version}"


def spilled_bytes(ptx, arch):
    """Bytes of spill stores per thread, as the assembler reports them."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        name = re.search(r"\.target\s+(sm_\w+)", ptx)[1]
        command = [ptxas(arch).path, "-v", f"--gpu-name={name}", source, "-o", Path(folder) / "kernel.cubin"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return max((int(found) for found in re.findall(r"(\d+) bytes spill stores", answer.stderr)), default=0)


def amd_resources(assembly, shared, num_warps):
    """Resources of a kernel for an AMD GPU; a spilled vector register is 4 bytes per thread."""

    def number(field):
        found = re.search(rf"\.{field}:?\s+(\d+)", assembly)
        return int(found[1]) if found else 0

    return Resources(
        number("vgpr_count"),
        4 * number("vgpr_spill_count"),
        number("private_segment_fixed_size"),
        shared,
        num_warps,
        None,
        occurrences(assembly, MATRIX),
        occurrences(assembly, COPIES),
        "LLVM",
    )


def occupancy(registers, shared_bytes, num_warps, limits):
    """Resident warps over the warps that a multiprocessor holds; None without its limits, 0.0 where no block fits."""
    if limits is None:
        return None
    per_warp = -(-max(registers, 1) * 32 // limits.register_unit) * limits.register_unit
    blocks = min(
        limits.registers // (per_warp * num_warps),
        limits.shared_bytes // (shared_bytes + limits.block_shared_bytes),
        limits.threads // (32 * num_warps),
        limits.blocks,
    )
    return blocks * num_warps / (limits.threads // 32)


def occurrences(text, families):
    """How often each family occurs in assembly; families that do not occur are absent."""
    counts = {name: len(re.findall(pattern, text)) for name, pattern in families.items()}
    return {name: count for name, count in counts.items() if count}
