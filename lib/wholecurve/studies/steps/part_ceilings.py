"""What this machine can do at best on some threads: reads and products of torch, and those of the native form.

Each kind keeps its name and its trials. A bound takes the faster of the two kinds. The native ones are products of a
shape of their own, so a part of a model can still be found above them.
"""

import statistics

import torch

from wholecurve.models.config import ModelConfig
from wholecurve.models.native import build_native_llama
from wholecurve.profiling.ceilings import measure_cpu_ceilings
from wholecurve.studies.steps.acceptance import Acceptance
from wholecurve.studies.steps.context import FilledContext
from wholecurve.studies.steps.decode import DecodeStep
from wholecurve.studies.steps.dummy import dummy_weights
from wholecurve.studies.steps.part_work import decode_part_work, prefill_part_work
from wholecurve.studies.steps.prefill import PrefillStep

TORCH_READ, NATIVE_READ = "torch reduction", "native product of one row"
TORCH_GEMM, NATIVE_GEMM = "torch product", "native product of many rows"
NO_DRAFTS = Acceptance(0, 0.0, "conditional")
TRIALS, ROWS, PRODUCTS = 9, 1024, ("qkv", "gate_up", "down")
# One row of this head reads 192 MiB, well past the last-level cache of any CPU here.
SHAPE = ModelConfig(131072, 768, 2048, 2, 12, 1, 64, 1e-5, 1e4, 4096, True, None, ())


def measure_part_ceilings(dtype: torch.dtype, threads: int) -> dict:
    """Ceilings of the CPU with `threads` threads: by kind of measurement, with every trial in seconds."""
    name = str(dtype).removeprefix("torch.")
    torch_form = measure_cpu_ceilings(name, threads)
    native = measure_native_products(dtype, threads)
    return {
        "source": torch_form["source"],
        "dtype": name,
        "threads": threads,
        "read_bytes_per_s": {TORCH_READ: torch_form["read_bytes_per_s"], NATIVE_READ: native["read_bytes_per_s"]},
        "gemm_flops_per_s": {TORCH_GEMM: torch_form["gemm_flops_per_s"], NATIVE_GEMM: native["gemm_flops_per_s"]},
        "trials": {**torch_form["trials"], "native": native["trials"]},
    }


@torch.inference_mode()
def measure_native_products(dtype: torch.dtype, threads: int, shape: ModelConfig = SHAPE) -> dict:
    """Best rates of native products, threads' waiting for each other left out; best of 9 trials after one discarded.

    `read_bytes_per_s`: the head for one row, each weight read once. `gemm_flops_per_s`: the fastest of the products of
    a layer for 1,024 rows.
    """
    model = build_native_llama(shape, dummy_weights(shape, dtype), dtype, threads)
    filled = FilledContext(model, 1, 0, ROWS, contexts=1, block_size=16)
    one, many = DecodeStep(model, filled, 1, NO_DRAFTS), PrefillStep(model, filled, [ROWS])
    head_s = [seconds["head"] for seconds in timed_trials(model, one)]
    products_s = timed_trials(model, many)
    read = decode_part_work(shape, dtype.itemsize, 1, 0)["head"].read_bytes
    flops = {part: work.flops for part, work in prefill_part_work(shape, dtype.itemsize, ROWS).items()}
    fastest = max(flops[part] / seconds[part] for seconds in products_s for part in PRODUCTS)
    trials = {"head_bytes": read, "head_s": head_s}
    for part in PRODUCTS:
        trials |= {f"{part}_flops": flops[part], f"{part}_s": [seconds[part] for seconds in products_s]}
    return {"read_bytes_per_s": read / min(head_s), "gemm_flops_per_s": fastest, "trials": trials}


def timed_trials(model, step) -> list[dict[str, float]]:
    """Seconds of each part of a step, mean of the threads: one dict per trial."""
    batch = step.batch()
    batch.argmax_only = True
    model.timed(batch, step.filled.caches)
    trials = []
    for _ in range(TRIALS):
        times = model.timed(batch, step.filled.caches)
        trials.append({part: statistics.fmean(seconds) for part, seconds in times.items()})
    return trials
