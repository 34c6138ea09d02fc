"""Counters that servers expose for Prometheus, under one set of names."""

from dataclasses import dataclass

from wholecurve.errors import UserError
from wholecurve.studies.serving.servers.pages import NoAnswer, Pages


@dataclass(frozen=True)
class Counters:
    """Tokens since a server started; None where it does not count them."""

    prompt_tokens: int | None  # of requests that were taken, found in a cache or not
    generated_tokens: int | None
    prefix_queried_tokens: int | None  # looked up in the prefix cache
    prefix_hit_tokens: int | None  # found there
    source: str  # path that they were read from

    def since(self, earlier: "Counters") -> "Counters":
        """What came after `earlier`; UserError when a counter went back, as that of a new process does."""
        differences = {}
        for name in ("prompt_tokens", "generated_tokens", "prefix_queried_tokens", "prefix_hit_tokens"):
            before, after = getattr(earlier, name), getattr(self, name)
            known = before is not None and after is not None
            if known and after < before:
                raise UserError(f"counter {name} fell from {before} to {after}: the server was started anew")
            differences[name] = after - before if known else None
        return Counters(**differences, source=self.source)

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens that the prefix cache gave; None where there was no prompt or nothing is known."""
        if self.prefix_hit_tokens is None:
            return None
        looked_up = self.prefix_queried_tokens or self.prompt_tokens  # a cache that is off is not asked
        return self.prefix_hit_tokens / looked_up if looked_up else None


@dataclass(frozen=True)
class CounterNames:
    """What one kind of server calls them; several names are added up."""

    prompt: tuple[str, ...]
    generated: tuple[str, ...]
    queried: tuple[str, ...]
    hits: tuple[str, ...]


_LLAMA_PROMPT = ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")  # the first is without cached
KNOWN = (
    # engine/server/metrics.py
    CounterNames(
        ("wholecurve:prompt_tokens_total",),
        ("wholecurve:generation_tokens_total",),
        ("wholecurve:prefix_cache_queries_total",),
        ("wholecurve:prefix_cache_hits_total",),
    ),
    # vllm/v1/metrics/loggers.py
    CounterNames(
        ("vllm:prompt_tokens_total",),
        ("vllm:generation_tokens_total",),
        ("vllm:prefix_cache_queries_total",),
        ("vllm:prefix_cache_hits_total",),
    ),
    # llama.cpp/tools/server/server-task.cpp, server_task_result_metrics::to_metrics; every prompt is looked up
    CounterNames(
        _LLAMA_PROMPT, ("llamacpp:tokens_predicted_total",), _LLAMA_PROMPT, ("llamacpp:prompt_tokens_cached_total",)
    ),
    # sglang/srt/observability/metrics_collector.py
    CounterNames(
        ("sglang:prompt_tokens_total",),
        ("sglang:generation_tokens_total",),
        ("sglang:prompt_tokens_total",),
        ("sglang:cached_tokens_total",),
    ),
)


def parse_page(text: str) -> dict[str, float]:
    """Values of a page in Prometheus' text format by sample name, added up over labels; UserError when it is none."""
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
    except ValueError as error:
        raise UserError(f"the metrics page is not in Prometheus' text format ({error})") from None
    return values


def read_counters(pages: Pages, path: str = "/metrics") -> Counters | None:
    """The counters of a server; None when it has no such page, or none that is known here."""
    try:
        values = parse_page(pages.get_text(path))
    except NoAnswer as error:
        if error.status is None:
            raise
        return None

    def total(names: tuple[str, ...]) -> int | None:
        found = [values[name] for name in names if name in values]
        return int(sum(found)) if found else None

    for names in KNOWN:
        if total(names.prompt) is not None:
            return Counters(total(names.prompt), total(names.generated), total(names.queried), total(names.hits), path)
    return None
