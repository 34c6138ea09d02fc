"""What the study asks of an engine, and the closed-loop client that drives one that works in steps."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from wholecurve.studies.request import Request
from wholecurve.trace import RequestTrace


@dataclass(frozen=True)
class ContenderSettings:
    """What every contender of a study is given alike, and the `options` that are its engine's own."""

    hf_folder: Path  # Hugging Face folder of the checkpoint
    gguf: Path | None  # the same weights as GGUF, where there is one: F16, or in the study's type for llama.cpp
    dtype: str  # "bfloat16" or "float32": weights, compute and key-value cache
    threads: int
    max_batch_tokens: int  # token budget of a step
    max_sequences: int  # most requests in flight
    cache_tokens: int  # capacity of the key-value cache
    sequence_tokens: int = 2048  # longest request, prompt and output, that runs beside others
    options: dict = field(default_factory=dict)  # validated settings of the plan, with defaults filled in


class Clock:
    """Seconds since it was made."""

    def __init__(self):
        self._start = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self._start


class Contender(ABC):
    """An engine with its model loaded. One process, one contender."""

    @abstractmethod
    def describe(self) -> dict:
        """Version and effective settings, read back from the engine where it tells them."""

    @abstractmethod
    def run_closed_loop(self, requests: list[Request], concurrency: int) -> tuple[list[RequestTrace], dict]:
        """Keep `concurrency` requests in flight until all are done, greedy, ignoring end-of-sequence.

        Returns the traces and the sampled token ids by request.
        """

    def run_one_by_one(self, requests: list[Request]) -> list[RequestTrace]:
        """Each request alone, the next one after the last token of the one before."""
        return self.run_closed_loop(requests, 1)[0]


class SteppedContender(Contender):
    """An engine that takes requests at any moment and works in steps: the client below is its closed loop."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """Hand one request to the engine."""

    @abstractmethod
    def step(self) -> list[tuple[str, list[int], bool]]:
        """Run one step: (request id, new token ids, finished) of each request that got tokens."""

    def run_closed_loop(self, requests: list[Request], concurrency: int) -> tuple[list[RequestTrace], dict]:
        return closed_loop(self.add, self.step, requests, concurrency)


def closed_loop(
    add: Callable[[Request], None],
    step: Callable[[], list[tuple[str, list[int], bool]]],
    requests: list[Request],
    concurrency: int,
) -> tuple[list[RequestTrace], dict]:
    """Drive `add` and `step` so that `concurrency` requests are in flight while there are any left to send.

    A request is scheduled at the moment when a slot frees, and sent when `add` has returned.
    """
    clock = Clock()
    queue, traces = deque(requests), {}
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}

    def send(scheduled: float) -> None:
        request = queue.popleft()
        add(request)
        traces[request.request_id] = RequestTrace(
            request=request.request_id,
            prompt_tokens=len(request.prompt_ids),
            cached_tokens=0,
            scheduled_s=scheduled,
            sent_s=clock(),
        )

    for _ in range(min(concurrency, len(queue))):
        send(0.0)
    unfinished = set(traces)
    while unfinished:
        outputs = step()
        now = clock()
        for request_id, token_ids, finished in outputs:
            trace = traces[request_id]
            trace.arrivals_s.append(now)
            trace.arrival_tokens.append(len(token_ids))
            tokens[request_id] += token_ids
            if finished:
                trace.finished_s = now
                unfinished.remove(request_id)
                if queue:
                    unfinished.add(queue[0].request_id)
                    send(now)
    return [traces[request.request_id] for request in requests], tokens
