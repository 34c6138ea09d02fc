"""Timing several functions against each other: interleaved, raw samples kept, cold caches proven or called warm."""

import dataclasses
import statistics
import subprocess
import time
from collections.abc import Callable

import torch

COLD_FACTOR = 2  # bytes touched between two uses of the same data, as a multiple of the last-level cache
SAMPLE_SECONDS = 2e-3  # of one CPU sample at least: far above the timer's resolution
CLOCKS = "clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active"


@dataclasses.dataclass
class Timing:
    """Samples of one function. samples_us: microseconds of one call, each a mean over `calls` calls in a row. method:
    how time was taken. bytes_between: bytes that the calls touch before the same data come again; cold: whether that
    is twice the last-level cache. clocks: readings of the driver around the samples, empty on a CPU.
    """

    samples_us: list[float]
    calls: int
    method: str
    bytes_between: int
    cold: bool
    clocks: list[str]

    @property
    def median_us(self):
        """Median of the samples."""
        return statistics.median(self.samples_us)

    def percentile_us(self, share):
        """A percentile of the samples, linear between neighbours."""
        ordered = sorted(self.samples_us)
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    @property
    def cache(self):
        """What is known about the cache, in words."""
        return f"cold ({self.bytes_between / 2**20:.0f} MiB between reuses)" if self.cold else "warm"


def time_on_cpu(functions: dict[str, Callable[[], object]], touched: int, cache_bytes: int, seconds=1.0, samples=9):
    """Timing of each function by name, taking turns: sample 1 of each, then sample 2 of each, and so on.

    touched: bytes that one call touches (its own data come again with the next call). seconds: about how long all of
    it takes. Threads are those that torch has now. A function is called once before, which is not counted.
    """
    calls = {}
    for name, function in functions.items():
        function()
        once = seconds_of(function, 1)
        room = seconds / len(functions) / samples
        calls[name] = max(1, min(int(room / once), 1 + int(SAMPLE_SECONDS / once)))
    taken = {name: [] for name in functions}
    for _ in range(samples):
        for name, function in functions.items():
            taken[name].append(seconds_of(function, calls[name]) / calls[name] * 1e6)
    cold = touched >= COLD_FACTOR * cache_bytes
    method = "perf_counter, interleaved"
    return {name: Timing(taken[name], calls[name], method, touched, cold, []) for name in functions}


def seconds_of(function, calls):
    """Seconds that so many calls in a row take."""
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return time.perf_counter() - start


def time_on_gpu(
    functions: dict[str, list[Callable[[], object]]], touched: int, cache_bytes: int, samples=25, min_calls=20
):
    """Timing of each function by name from CUDA events around replays of a graph, taking turns.

    functions: per name one callable for each copy of the arguments; a graph runs them round robin, so that a copy is
    used again only after all others. touched: bytes that one call touches. The number of copies decides whether the
    cache was cold: see `copies_for_cold`.
    """
    graphs = {name: capture(calls, min_calls) for name, calls in functions.items()}
    taken, clocks = {name: [] for name in functions}, {name: [] for name in functions}
    for name, (graph, _) in graphs.items():
        graph.replay()
        clocks[name].append(read_clocks())
    for _ in range(samples):
        for name, (graph, calls) in graphs.items():
            taken[name].append(milliseconds_of(graph.replay) / calls * 1e3)
    for name in functions:
        clocks[name].append(read_clocks())
    result = {}
    for name, calls in functions.items():
        between = touched * len(calls)
        cold = (len(calls) > 1 and between >= COLD_FACTOR * cache_bytes) or touched >= COLD_FACTOR * cache_bytes
        result[name] = Timing(
            taken[name], graphs[name][1], "CUDA graph replay, events, interleaved", between, cold, clocks[name]
        )
    return result


def copies_for_cold(touched: int, cache_bytes: int, memory_bytes: int, most=64):
    """Copies of the arguments after which twice the last-level cache was touched, as far as memory goes."""
    needed = -(-COLD_FACTOR * cache_bytes // max(touched, 1)) + 1
    return max(1, min(needed, most, memory_bytes // max(touched, 1)))


def capture(functions, min_calls):
    """(graph, calls in it): the functions round robin until there are at least min_calls."""
    calls = len(functions) * -(-min_calls // len(functions))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles and allocates outside of the capture
        for function in functions:
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(calls):
            functions[index % len(functions)]()
    return graph, calls


def milliseconds_of(work):
    """Milliseconds of a call between two events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def read_clocks():
    """Clocks, temperature, power and throttle reasons as the driver says now; "not readable" without its tool."""
    command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "not readable"
    return answer.stdout.strip().splitlines()[0]
