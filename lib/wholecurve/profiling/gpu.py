"""The GPU of this process as a device: what the driver says of it, and its ceilings measured."""

import statistics

import torch

from wholecurve.profiling.devices import Ceiling, Device, device_names, read_device
from wholecurve.profiling.timing import milliseconds_of

GEMM_SIZES = (4096, 8192, 16384)
TRIALS = 50


def this_gpu():
    """The Device of the GPU of this process: datasheet ceilings of `data/devices` where its name is known there, and
    the memory rate that follows from the driver's bus width and clock.
    """
    properties = torch.cuda.get_device_properties(0)
    known = [read_device(name) for name in device_names()]
    same = [device for device in known if is_named(device, properties.name)]
    target = f"sm_{properties.major}{properties.minor}"
    ceilings = same[0].ceilings if same else ()
    driver = driver_memory_rate(properties)
    if driver is not None:
        ceilings = (*ceilings, driver)
    return Device(properties.name, target, properties.L2_cache_size, ceilings)


def is_named(device, name):
    """Whether the driver's name is that of a device of `data/devices`, whose SXM parts have no other mark in it."""
    words = [word for word in device.name.split() if word != "SXM"]
    another_card = "SXM" in device.name and any(mark in name for mark in ("PCIe", "NVL"))
    return all(word in name.split() for word in words) and not another_card


def driver_memory_rate(properties):
    """bus width × memory clock × 2 as a Ceiling, None where this torch does not give them."""
    clock, width = getattr(properties, "memory_clock_rate", None), getattr(properties, "memory_bus_width", None)
    if not clock or not width:
        return None
    source = f"{width} bit × {clock / 1000:.0f} MHz × 2, read from the driver"
    return Ceiling("memory_bytes_per_s", clock * 1e3 * width / 8 * 2, "driver-derived", source)


def measure_gpu_ceilings(device):
    """Ceilings of read, copy and GEMM measured on this GPU; data are at least 8 times its last-level cache.

    Returns (list of Ceiling, raw samples by name).
    """
    samples = memory_samples(max(8 * device.cache_bytes, 2**30) // 4)
    source = f"median of {TRIALS} on {torch.cuda.get_device_name(0)}, torch {torch.__version__}"
    ceilings = [
        Ceiling("memory_bytes_per_s", statistics.median(samples["read"]), "measured read", f"sum of fp32, {source}"),
        Ceiling("memory_bytes_per_s", statistics.median(samples["copy"]), "measured copy", f"copy of fp32, {source}"),
    ]
    for size in GEMM_SIZES:
        matrix = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        name = f"gemm bfloat16 {size}"
        samples[name] = [2 * size**3 / seconds for seconds in trial_seconds(lambda m=matrix: m @ m, TRIALS // 2)]
    best = max((name for name in samples if name.startswith("gemm")), key=lambda name: statistics.median(samples[name]))
    ceilings.append(
        Ceiling("bfloat16_flops_per_s", statistics.median(samples[best]), "measured GEMM", f"{best}, random, {source}")
    )
    return ceilings, samples


def memory_samples(elements):
    """Bytes per second of reading fp32 numbers, and of reading and writing them."""
    data = torch.ones(elements, device="cuda")
    target = torch.empty_like(data)
    return {
        "read": [data.nbytes / seconds for seconds in trial_seconds(data.sum)],
        "copy": [2 * data.nbytes / seconds for seconds in trial_seconds(lambda: target.copy_(data))],
    }


def trial_seconds(work, trials=TRIALS):
    """Seconds of each trial by events, after three that are discarded."""
    for _ in range(3):
        work()
    return [milliseconds_of(work) / 1e3 for _ in range(trials)]
