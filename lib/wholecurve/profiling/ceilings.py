"""What this machine can do at best, measured: bytes read per second and FLOPs per second of a matrix product."""

import time
from collections.abc import Callable

import torch

_READ_BYTES = 512 * 2**20  # well past the last-level cache of any CPU here
_GEMM_SIZE = 2048
_TRIALS = 7


def _best_seconds(work: Callable[[], object], trials: int = _TRIALS) -> list[float]:
    """Seconds of each trial, after one that is discarded. A ceiling is the best of them; all are kept."""
    work()
    seconds = []
    for _ in range(trials):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def measure_cpu_ceilings(dtype: str, threads: int) -> dict:
    """Measured ceilings of the CPU with `threads` threads.

    `read_bytes_per_s`: the faster of two reductions over 512 MiB (sum, maximum), each byte read once.
    `gemm_flops_per_s`: a 2048³ product in `dtype`, 2 FLOPs per multiply-add. Best of 7 trials; every trial is kept.
    """
    torch.set_num_threads(threads)
    data = torch.ones(_READ_BYTES // 4, dtype=torch.float32)
    reads = {"sum": _best_seconds(data.sum), "max": _best_seconds(data.max)}
    matrix = torch.randn(_GEMM_SIZE, _GEMM_SIZE).to(getattr(torch, dtype))
    gemm = _best_seconds(lambda: matrix @ matrix)
    return {
        "source": "measured (cpu)",
        "dtype": dtype,
        "threads": threads,
        "read_bytes_per_s": _READ_BYTES / min(min(seconds) for seconds in reads.values()),
        "gemm_flops_per_s": 2 * _GEMM_SIZE**3 / min(gemm),
        "trials": {"read_bytes": _READ_BYTES, "read_s": reads, "gemm_size": _GEMM_SIZE, "gemm_s": gemm},
    }
