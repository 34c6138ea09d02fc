"""Counters of several kinds of server under one set of names, and what is not told stays unknown."""

import pytest

from wholecurve.errors import UserError
from wholecurve.studies.serving.servers.counters import Counters, parse_page, read_counters
from wholecurve.studies.serving.servers.pages import NoAnswer

VLLM = """# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 20.0
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.79e+09
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 7.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 120.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 30.0
"""
LLAMA = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 40
# HELP llamacpp:prompt_tokens_cached_total Number of prompt tokens reused from the cache
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 60
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 5
"""


class Page:
    """Stands for a server that has a metrics page, or an error in its place."""

    def __init__(self, answer):
        self.answer = answer

    def get_text(self, path):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_values_are_added_up_over_engines_and_labels():
    assert read_counters(Page(VLLM)) == Counters(120, 7, 120, 30, "/metrics")
    assert read_counters(Page(VLLM)).hit_rate == 0.25


def test_llama_counts_cached_tokens_apart():
    counters = read_counters(Page(LLAMA))
    assert counters == Counters(100, 5, 100, 60, "/metrics") and counters.hit_rate == 0.6


def test_the_engine_of_this_package_is_known():
    from wholecurve.engine.engine import EngineStats
    from wholecurve.engine.server.metrics import ServerMetrics

    metrics = ServerMetrics("m")
    values = dict.fromkeys(EngineStats.__dataclass_fields__, 1)
    numbers = {"prompt_tokens": 50, "output_tokens": 6, "prefix_queried_tokens": 50, "prefix_hit_tokens": 16}
    metrics.stats = EngineStats(**{**values, **numbers})
    assert read_counters(Page(metrics.page().decode())) == Counters(50, 6, 50, 16, "/metrics")


def test_a_server_without_such_a_page_has_none():
    assert read_counters(Page(NoAnswer("HTTP 404", 404))) is None
    assert read_counters(Page("# TYPE other_total counter\nother_total 3\n")) is None


def test_a_server_that_is_gone_is_not_one_without_counters():
    with pytest.raises(NoAnswer, match="refused"):
        read_counters(Page(NoAnswer("connection refused", None)))


def test_a_page_that_is_no_metrics_page_is_an_error():
    with pytest.raises(UserError, match="the metrics page is not in Prometheus' text format"):
        parse_page("<html>{not metrics</html>")


def test_what_came_since_is_the_difference_and_unknown_stays_unknown():
    before, after = Counters(10, 1, None, 0, "/metrics"), Counters(110, 5, 3, 40, "/metrics")
    since = after.since(before)
    assert since == Counters(100, 4, None, 40, "/metrics") and since.hit_rate == 0.4


def test_a_counter_that_fell_is_another_process():
    with pytest.raises(UserError, match="counter prompt_tokens fell from 110 to 10: the server was started anew"):
        Counters(10, 1, 0, 0, "/metrics").since(Counters(110, 5, 0, 0, "/metrics"))


@pytest.mark.parametrize(
    ("counters", "rate"),
    [
        (Counters(100, 1, 0, 0, "x"), 0.0),  # a cache that is off is not asked
        (Counters(0, 0, 0, 0, "x"), None),  # no prompt
        (Counters(100, 1, 100, None, "x"), None),  # not told
    ],
)
def test_no_rate_is_made_up(counters, rate):
    assert counters.hit_rate == rate
