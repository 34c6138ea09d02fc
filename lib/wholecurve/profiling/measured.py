"""Measured profiles: each form of a kernel and its plain compositions, checked, timed in turns, and checked again."""

import functools

import torch

from wholecurve.kernels.forms import form_for
from wholecurve.kernels.inputs import Inputs
from wholecurve.kernels.launch import run_all
from wholecurve.profiling.ceilings import measure_cpu_ceilings
from wholecurve.profiling.checks import check_case, prepare
from wholecurve.profiling.devices import Ceiling, Device, bound
from wholecurve.profiling.rows import MEASURED_CPU, MEASURED_GPU, cost_fields, row
from wholecurve.profiling.timing import copies_for_cold, time_on_cpu, time_on_gpu
from wholecurve.runs.provenance import hardware

# cases beyond these are not for a CPU: the definition in float64 alone would take minutes, or the memory
CPU_BYTES, CPU_FLOPS, CPU_ARGUMENT_BYTES = 64 * 2**20, 1e9, 256 * 2**20
CPU_CACHE_BYTES = 32 * 2**20  # where the system does not say


def fits_cpu(subject, case):
    """Whether a case is small enough to be checked and timed on a CPU."""
    cost = subject.cost(case)
    if cost.bytes_min > CPU_BYTES or cost.flops > CPU_FLOPS:
        return False
    held = [value for value in subject.arguments(case, "meta").values() if isinstance(value, torch.Tensor)]
    return sum(tensor.nbytes for tensor in held) <= CPU_ARGUMENT_BYTES


def cpu_device(dtype="bfloat16", threads=None):
    """This CPU with its measured ceilings as a `devices.Device`."""
    threads = threads or torch.get_num_threads()
    found = measure_cpu_ceilings(dtype, threads)
    source = f"measured on this machine, {threads} threads"
    ceilings = (
        Ceiling("memory_bytes_per_s", found["read_bytes_per_s"], "measured read", source),
        Ceiling(f"{dtype}_flops_per_s", found["gemm_flops_per_s"], "measured GEMM", source),
        Ceiling("vector_flops_per_s", found["gemm_flops_per_s"], "measured GEMM", source),
    )
    return Device(hardware()["cpu"], None, last_level_cache_bytes(), ceilings)


def last_level_cache_bytes():
    """Bytes of the largest cache that Linux names for the first core."""
    from pathlib import Path

    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="utf-8").strip()
        sizes.append(int(text.rstrip("KM")) * {"K": 1024, "M": 2**20}.get(text[-1], 1))
    return max(sizes, default=CPU_CACHE_BYTES)


def cpu_rows(subject, case_name, case, device, *, variants=None, seconds=1.0):
    """One row for each form of a CPU, each baseline and each variant of a case, timed in turns on the threads of torch.

    device: of `cpu_device`. variants: functions with the operation's arguments, by name. Each is checked before and
    after; one that is wrong gets a row without times that says so. Runs in inference mode, as an engine does.
    """
    arguments, cost = subject.arguments(case), subject.cost(case)
    candidates = cpu_forms(subject) | dict(subject.baselines) | dict(variants or {})
    before, after = (prepare(subject, case, "cpu", seed) for seed in (0, 1))
    problems = {name: gate(subject, case, name, function, before) for name, function in candidates.items()}
    runnable = {name: function for name, function in candidates.items() if not problems[name]}
    calls = {name: (lambda function=function: function(**arguments)) for name, function in runnable.items()}
    with torch.inference_mode():
        timings = time_on_cpu(calls, cost.bytes_min, device.cache_bytes, seconds) if calls else {}
    for name, function in runnable.items():
        problems[name] = gate(subject, case, name, function, after)
    fields = dict(
        device=device.name, target="cpu", threads=torch.get_num_threads(), versions=f"torch {torch.__version__}"
    )
    limit = bound(cost, device, ("measured read", "measured GEMM"))
    return measured_rows(subject, case_name, case, MEASURED_CPU, problems, timings, cost, limit, fields)


def cpu_forms(subject):
    """The forms that a CPU can run, as functions by name; the one that it takes by default comes first.

    The definition is among them only where it is what runs.
    """
    default = form_for("cpu", subject.forms)
    forms = {default: subject.operation}
    for form in ("native", "cpu"):
        if form != default and form in subject.available_forms("cpu"):
            forms[form] = functools.partial(subject.operation, form=form)
    return forms


def gpu_rows(subject, case_name, case, device, *, configs=None, variants=None, versions=""):
    """One row per tuning configuration, baseline and variant of a case on the GPU of this process.

    device: a Device with the ceilings of this GPU, measured ones where they are known. configs: names of
    `spec.CONFIGS`, None for the kernel's own choice alone. Runs in CUDA graphs over copies of the arguments.
    """
    cost = subject.cost(case)
    free, _ = torch.cuda.mem_get_info()
    copies = copies_for_cold(cost.bytes_min, device.cache_bytes, free // 4)
    copied = [subject.make(Inputs("cuda", seed), **case) for seed in range(copies)]
    candidates = {"triton": triton_variant(subject, None)}
    for name in configs or ():
        candidates[f"triton, {name}"] = triton_variant(subject, subject.spec.CONFIGS[name])
    candidates |= dict(subject.baselines) | dict(variants or {})
    before = prepare(subject, case, "cuda", 0)
    problems = {name: gate(subject, case, name, function, before, "cuda") for name, function in candidates.items()}
    del before  # a definition in float64 is large
    calls = {}
    for name, function in candidates.items():
        if not problems[name]:
            calls[name] = [lambda function=function, given=given: function(**given) for given in copied]
    timings, failed = time_each(calls, cost.bytes_min, device.cache_bytes)
    problems |= failed
    after = prepare(subject, case, "cuda", 1)
    for name in timings:
        problems[name] = gate(subject, case, name, candidates[name], after, "cuda")
    limit = bound(cost, device, ("datasheet", "driver-derived"))
    fields = dict(device=device.name, target="gpu", versions=versions)
    return measured_rows(subject, case_name, case, MEASURED_GPU, problems, timings, cost, limit, fields)


def triton_variant(subject, config):
    """The Triton form in one configuration as a function of the operation's arguments."""

    def run(**arguments):
        launches, outputs = subject.launches(arguments, config)
        run_all(launches, interpreted=False)
        return outputs

    return run


def time_each(calls, touched, cache_bytes):
    """(timings, problems): those that cannot be captured in a graph are named and left out of the turns."""
    problems, kept = {}, {}
    for name, functions in calls.items():
        try:
            time_on_gpu({name: functions[:1]}, touched, cache_bytes, samples=1, min_calls=1)
            kept[name] = functions
        except Exception as error:  # whatever a baseline does that a graph forbids
            torch.cuda.synchronize()
            problems[name] = f"not timed, a CUDA graph refuses it: {type(error).__name__}: {str(error)[:200]}"
    return (time_on_gpu(kept, touched, cache_bytes) if kept else {}), problems


def gate(subject, case, name, function, prepared, device="cpu"):
    """What is wrong with a candidate on the prepared inputs of a case, "" where nothing is."""
    try:
        finding = check_case(subject, case, name, device=device, variant=function, prepared=prepared)
    except Exception as error:  # a candidate of a user may do anything; its row must say so
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "; ".join(finding.problems)


def attained(timing, limit):
    """The share of its bound that a timing reached; None against a memory ceiling where the data came from a cache."""
    if limit is None or (not timing.cold and limit.limit.quantity == "memory_bytes_per_s"):
        return None
    return limit.us / timing.median_us


def measured_rows(subject, case_name, case, source, problems, timings, cost, limit, fields):
    """Rows of all candidates; those with a problem have no times."""
    rows = []
    for name, problem in problems.items():
        timing = timings.get(name) if not problem else None
        times = {}
        if timing is not None:
            times = {
                "median_us": timing.median_us,
                "p10_us": timing.percentile_us(0.1),
                "p90_us": timing.percentile_us(0.9),
                "n_samples": len(timing.samples_us),
                "cache": timing.cache,
                "attained": attained(timing, limit),
                "method": timing.method,
                "calls": timing.calls,
                "clocks": "; ".join(timing.clocks) or None,
            }
            if times["attained"] is not None and times["attained"] > 1:
                times["note"] = f"error: {times['attained']:.0%} of the ceiling {limit.limit.quantity}"
        else:
            times = {"note": problem or "not timed"}
        rows.append(
            row(
                kernel=subject.name,
                case=case_name,
                form=name,
                source=source,
                dtype=subject.dtype(case),
                **cost_fields(cost, limit),
                **fields,
                **times,
            )
            | {"samples_us": timing.samples_us if timing is not None else []}
        )
    return rows
