"""A process that holds one contender and does what the study asks, one JSON line each way.

The study starts it as `python -m wholecurve.studies.worker`. Whatever libraries print goes to stderr (the log file of
the run); answers go to the descriptor that was stdout. The process ends when its stdin ends, also in the middle of a
measurement, so a killed study leaves nothing running.
"""

import ctypes
import dataclasses
import json
import os
import queue
import signal
import sys
import threading
import traceback
from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.studies.contenders import ContenderSettings, build_contender
from wholecurve.studies.memory import peak_resident_bytes, reset_peak, resident_bytes
from wholecurve.studies.request import Request
from wholecurve.trace import RequestTrace


def _requests(records: list[dict]) -> list[Request]:
    return [Request(**record) for record in records]


def _later(trace: RequestTrace, seconds: float) -> RequestTrace:
    """The same request on a clock that began `seconds` earlier."""
    return dataclasses.replace(
        trace,
        scheduled_s=trace.scheduled_s + seconds,
        sent_s=trace.sent_s + seconds,
        arrivals_s=[at + seconds for at in trace.arrivals_s],
        finished_s=None if trace.finished_s is None else trace.finished_s + seconds,
    )


def _measured(traces: list[RequestTrace]) -> dict:
    return {
        "traces": [dataclasses.asdict(trace) for trace in traces],
        "memory": {"peak_rss_bytes": peak_resident_bytes(), "rss_bytes": resident_bytes()},
    }


class Worker:
    """Answers commands; each public method is one."""

    def __init__(self):
        self.contender = None

    def start(self, engine: str, settings: dict) -> dict:
        paths = {name: Path(settings[name]) if settings[name] else None for name in ("hf_folder", "gguf")}
        self.contender = build_contender(engine, ContenderSettings(**{**settings, **paths}))
        return {**self.contender.describe(), "loaded_rss_bytes": resident_bytes()}

    def generate(self, requests: list[dict]) -> dict:
        _, tokens = self.contender.run_closed_loop(_requests(requests), len(requests))
        return {"tokens": tokens}

    def decode(self, requests: list[dict], concurrency: int, warm_up: list[dict]) -> dict:
        reset_peak()
        self.contender.run_closed_loop(_requests(warm_up), concurrency)
        traces, _ = self.contender.run_closed_loop(_requests(requests), concurrency)
        return _measured(traces)

    def batch(self, requests: list[dict], concurrency: int, warm_up: list[dict]) -> dict:
        """Batches of `concurrency` requests, one after another, each begun on an idle engine."""
        reset_peak()
        self.contender.run_closed_loop(_requests(warm_up), concurrency)
        traces: list[RequestTrace] = []
        for i in range(0, len(requests), concurrency):
            start = max((trace.end_s for trace in traces), default=0.0)
            batch, _ = self.contender.run_closed_loop(_requests(requests[i : i + concurrency]), concurrency)
            traces += [_later(trace, start) for trace in batch]
        return _measured(traces)

    def prefill(self, requests: list[dict], warm_up: list[dict]) -> dict:
        reset_peak()
        self.contender.run_one_by_one(_requests(warm_up))
        return _measured(self.contender.run_one_by_one(_requests(requests)))

    def score(self, model: str, sequences: list[dict]) -> dict:
        from wholecurve.studies.agreement import score_greedy

        return {"scores": score_greedy(model, sequences)}

    def ceilings(self, dtype: str, threads: int) -> dict:
        from wholecurve.profiling.ceilings import measure_cpu_ceilings

        return measure_cpu_ceilings(dtype, threads)


def _end_with_parent() -> None:
    """Have the kernel end this process with its parent: its stdin ends then, but a stopped process cannot see it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _read_commands(commands: queue.Queue) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    os._exit(0)


def main() -> None:
    """Serve commands until stdin ends."""
    _end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    commands: queue.Queue = queue.Queue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    worker = Worker()
    while True:
        command = commands.get()
        try:
            answer = {"ok": getattr(worker, command.pop("command"))(**command)}
        except UserError as error:
            answer = {"error": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
