"""What a Prometheus server scrapes.

Names and meanings follow those that other engines expose, so that a dashboard needs another prefix only. Nothing here
runs once per token: counters are the engine's own, read at a scrape; histograms take one value per finished request.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from wholecurve.engine.engine import EngineStats

_PREFIX = "wholecurve:"
_REASONS = ("stop", "length", "abort", "error")
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
_SECONDS_PER_TOKEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)

# name -> (field of EngineStats, help)
_GAUGES = {
    "num_requests_running": ("running", "Requests that hold cache blocks."),
    "num_requests_waiting": ("waiting", "Requests that wait for room in the engine."),
}
_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests, computed or taken from the cache."),
    "generation_tokens": ("output_tokens", "Tokens sampled."),
    "prefix_cache_queries": ("prefix_queried_tokens", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_hit_tokens", "Prompt tokens taken from the prefix cache."),
    "num_preemptions": ("preemptions", "Times that a running request was put back to make room."),
    "engine_steps": ("steps", "Steps that the engine ran."),
    "spec_decode_num_draft_tokens": ("drafts_proposed", "Tokens drafted by speculation and verified."),
    "spec_decode_num_accepted_tokens": ("drafts_accepted", "Drafted tokens that were right."),
}


class Finished(Protocol):
    """What a request has to tell when it ends."""

    prompt_ids: list[int]
    num_tokens: int
    first_s: float
    last_s: float
    finish_reason: str | None


class ServerMetrics:
    """The metrics of one server, in a registry of its own. about: settings that do not change, as labels."""

    def __init__(self, model_name: str, about: Mapping[str, str] | None = None):
        self._model_name = model_name
        self._registry = CollectorRegistry()
        self._registry.register(self)
        if about:
            told = Info(_PREFIX + "engine", "Settings in effect.", ("model_name",), registry=self._registry)
            told.labels(model_name).info(dict(about))
        self.stats: EngineStats | None = None  # what `collect` reports; set before a scrape
        finished = self._counter("request_success", "Requests that ended, by how.", "finished_reason")
        self._finished = {reason: finished.labels(model_name, reason) for reason in _REASONS}
        self._refused = self._counter("requests_refused", "Requests answered by an error, by status.", "status")
        slow_readers = self._counter("slow_readers", "Streams cut off because nobody read them.")
        self.slow_readers = slow_readers.labels(model_name)
        self._ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", _SECONDS)
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds",
            "Time between first and last token, per token after the first.",
            _SECONDS_PER_TOKEN,
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the last token.", _SECONDS)
        self._prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._output = self._histogram("request_generation_tokens", "Output tokens of a request.", _TOKENS)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(_PREFIX + name, text, ("model_name", *labels), registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple) -> Histogram:
        histogram = Histogram(_PREFIX + name, text, ("model_name",), buckets=buckets, registry=self._registry)
        return histogram.labels(self._model_name)

    def finished(self, request: Finished, arrival_s: float) -> None:
        """Count a request that ended. Latencies are of requests that came to their own end."""
        self._finished[request.finish_reason].inc()
        self._prompt.observe(len(request.prompt_ids))
        if request.num_tokens == 0:
            return
        self._output.observe(request.num_tokens)
        self._ttft.observe(request.first_s - arrival_s)
        if request.finish_reason not in ("stop", "length"):
            return
        self._e2e.observe(request.last_s - arrival_s)
        if request.num_tokens > 1:
            self._tpot.observe((request.last_s - request.first_s) / (request.num_tokens - 1))

    def refused(self, status: int) -> None:
        """Count a request that got an error instead of an answer."""
        self._refused.labels(self._model_name, str(status)).inc()

    def collect(self) -> Iterator[Metric]:
        """The engine's own numbers, for the registry."""
        if self.stats is None:
            return
        labels, values = ("model_name",), (self._model_name,)
        for name, (field, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=labels)
            gauge.add_metric(values, getattr(self.stats, field))
            yield gauge
        usage = GaugeMetricFamily(_PREFIX + "kv_cache_usage_perc", "Cache blocks in use; 1 is all.", labels=labels)
        usage.add_metric(values, self.stats.blocks_used / self.stats.blocks_total)
        yield usage
        for name, (field, text) in _COUNTERS.items():
            counter = CounterMetricFamily(_PREFIX + name, text, labels=labels)
            counter.add_metric(values, getattr(self.stats, field))
            yield counter

    def page(self) -> bytes:
        """The scrape in Prometheus' text format."""
        return generate_latest(self._registry)
