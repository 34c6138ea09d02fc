"""From traces to point rows: every number against arithmetic that fits on a line."""

import math

import pytest

from wholecurve.curves import RequestTrace, percentile, reduce_prefill, reduce_trace
from wholecurve.curves.metrics import steady_window
from wholecurve.errors import UserError


def trace(name="r0", at=0.0, first=0.5, gap=0.1, tokens=11, sent=None, **fields):
    """Scheduled at ``at``: first token ``first`` seconds later, then one token every ``gap`` seconds."""
    arrivals = [at + first + gap * i for i in range(tokens)]
    defaults = {
        "prompt_tokens": 8,
        "cached_tokens": 0,
        "arrivals_s": arrivals,
        "arrival_tokens": [1] * tokens,
        "finished_s": arrivals[-1] if arrivals else at + first,
    }
    return RequestTrace(name, scheduled_s=at, sent_s=at if sent is None else sent, **(defaults | fields))


def closed_loop(slots=4, per_slot=5, first=0.5, gap=0.1, tokens=11):
    """``slots`` requests always in flight, staggered by a tenth of a request's length."""
    length = first + gap * (tokens - 1)
    return [
        trace(f"s{s}n{n}", at=s * length / 10 + n * length, first=first, gap=gap, tokens=tokens)
        for s in range(slots)
        for n in range(per_slot)
    ]


def test_one_request_by_hand():
    row = reduce_trace([trace()], concurrency=1)
    assert row["ttft_p50_ms"] == pytest.approx(500)
    assert row["tpot_p50_ms"] == pytest.approx(100)
    assert row["decode_speed_tok_per_s"] == pytest.approx(10)
    assert row["e2e_p50_ms"] == pytest.approx(1500)
    assert row["e2e_speed_p50_tok_per_s"] == pytest.approx(11 / 1.5)
    assert row["output_throughput_tok_per_s"] == pytest.approx(11 / 1.5)
    assert row["occupancy"] == pytest.approx(11 / 1.5 / 10)
    assert row["achieved_concurrency"] == pytest.approx(1)
    assert (row["window"], row["output_tokens"], row["n_completed"], row["n_failed"]) == ("full", 11, 1, 0)


def test_latency_runs_from_scheduled_not_from_sent():
    # Eight requests of 500 ms, due every 100 ms, served one at a time: users wait for the queue as well.
    requests = [
        trace(
            f"r{i}",
            at=0.1 * i,
            sent=0.5 * i,
            arrivals_s=[0.5 * i + 0.5],
            arrival_tokens=[1],
            finished_s=0.5 * i + 0.5,
        )
        for i in range(8)
    ]
    row = reduce_trace(requests, concurrency=1)
    assert row["e2e_p50_ms"] == pytest.approx(1000 * (0.5 + 0.4 * 3.5))
    assert row["ttft_p50_ms"] == row["e2e_p50_ms"]


def test_tpot_is_undefined_for_one_token_and_for_one_chunk():
    single = trace(tokens=1)
    at_once = trace(tokens=1, arrival_tokens=[10])
    for request in (single, at_once):
        assert request.tpot_s is None
        row = reduce_trace([request], concurrency=1)
        assert row["decode_speed_tok_per_s"] is None and row["tpot_p50_ms"] is None and row["occupancy"] is None
        assert row["output_throughput_tok_per_s"] > 0


def test_a_one_token_request_does_not_pull_the_median_down():
    row = reduce_trace([trace("long"), trace("short", tokens=1)], concurrency=2)
    assert row["tpot_p50_ms"] == pytest.approx(100) and row["n_completed"] == 2


def test_chunks_of_several_tokens_count_tokens_not_chunks():
    request = trace(tokens=4, gap=0.3, arrival_tokens=[1, 3, 3, 3])
    row = reduce_trace([request], concurrency=1)
    assert row["output_tokens"] == 10
    assert row["tpot_p50_ms"] == pytest.approx(100)
    assert row["tokens_per_chunk"] == pytest.approx(2.5)


def test_role_only_and_trailing_empty_chunks_are_no_tokens():
    request = trace(arrivals_s=[0.1, 0.5, 0.6, 0.7, 2.0], arrival_tokens=[0, 1, 1, 1, 0], finished_s=2.0)
    row = reduce_trace([request], concurrency=1)
    assert row["ttft_p50_ms"] == pytest.approx(500)
    assert row["tpot_p50_ms"] == pytest.approx(100)
    assert row["e2e_p50_ms"] == pytest.approx(700)
    assert row["tokens_per_chunk"] == 1


@pytest.mark.parametrize(
    "bad",
    [
        trace("bad", error="connection refused", arrivals_s=[], arrival_tokens=[], finished_s=None),
        trace("bad", arrivals_s=[], arrival_tokens=[], finished_s=0.1),
        trace("bad", arrivals_s=[0.1, 0.2], arrival_tokens=[0, 0], finished_s=0.2),
        trace("bad", error="reset by peer", tokens=3),
    ],
    ids=["refused", "empty reply", "empty chunks", "broken off"],
)
def test_a_failed_request_is_counted_and_is_never_a_zero(bad):
    good = trace("good")
    row, alone = reduce_trace([good, bad], concurrency=2), reduce_trace([good], concurrency=2)
    assert (row["n_completed"], row["n_failed"]) == (1, 1)
    for key in ("ttft_p50_ms", "tpot_p50_ms", "e2e_p50_ms", "decode_speed_tok_per_s", "output_tokens"):
        assert row[key] == alone[key]


def test_the_time_of_a_failed_request_stays_in_the_window():
    late = trace("late", at=1.0, error="timeout", arrivals_s=[], arrival_tokens=[], finished_s=5.0)
    row = reduce_trace([trace("good"), late], concurrency=2)
    assert row["full_window_s"] == pytest.approx(5)
    assert row["output_throughput_tok_per_s"] == pytest.approx(11 / 5)
    assert row["achieved_concurrency"] == pytest.approx((1.5 + 4) / 5)


def test_all_failed_gives_no_number_at_all():
    row = reduce_trace([trace(error="down", arrivals_s=[], arrival_tokens=[])], concurrency=1)
    assert row["n_failed"] == 1
    measured = (
        "decode_speed_tok_per_s",
        "output_throughput_tok_per_s",
        "output_throughput_full_tok_per_s",
        "ttft_p50_ms",
        "tpot_p50_ms",
        "e2e_p50_ms",
        "occupancy",
        "tokens_per_chunk",
        "e2e_speed_p50_tok_per_s",
    )
    assert [row[k] for k in measured] == [None] * len(measured)


def test_the_steady_window_is_cut_at_both_ends():
    requests = closed_loop(slots=4, per_slot=5)  # a request takes 1.5 s; slot s starts at 0.15 s
    row = reduce_trace(requests, concurrency=4)
    start, end = 0.45 + 0.5, 0.45 + 4 * 1.5  # last first token of the first wave, last request sent
    assert row["window"] == "steady"
    assert row["window_s"] == pytest.approx(end - start)
    inside = sum(start < t <= end for r in requests for t in r.arrivals_s)
    assert row["output_throughput_tok_per_s"] == pytest.approx(inside / (end - start))
    assert row["full_window_s"] == pytest.approx(0.45 + 5 * 1.5)
    assert row["output_throughput_full_tok_per_s"] == pytest.approx(20 * 11 / 7.95)
    assert row["output_throughput_tok_per_s"] > row["output_throughput_full_tok_per_s"]


def test_littles_law_gives_the_concurrency_back():
    row = reduce_trace(closed_loop(slots=4, per_slot=5), concurrency=4)
    assert row["achieved_concurrency"] == pytest.approx(4)
    # 11 tokens in 1.5 s of which 1.0 s decodes at 10 tok/s: u = (11 / 1.5) / 10, up to the cut of the window.
    assert row["occupancy"] == pytest.approx(11 / 15, rel=0.05)


def test_no_steady_window_with_few_requests_or_when_it_is_empty():
    few = closed_loop(slots=4, per_slot=2)[:7]
    assert reduce_trace(few, concurrency=4)["window"] == "full"
    assert reduce_trace(closed_loop(slots=4, per_slot=2), concurrency=4)["window"] == "steady"
    all_at_once = [trace(f"r{i}") for i in range(8)]
    row = reduce_trace(all_at_once, concurrency=4)
    assert row["window"] == "full" and row["window_s"] == row["full_window_s"]
    assert steady_window(all_at_once, 4) is None
    # Between the first chunk and the moment the second request is sent, nothing arrives.
    silent = [trace("r0", tokens=1), trace("r1", at=0.9, tokens=1)]
    assert steady_window(silent, 1) == (0.5, 0.9)
    assert reduce_trace(silent, concurrency=1)["window"] == "full"


def test_percentiles_need_enough_requests():
    assert percentile(range(29), 90) is None and percentile(range(30), 90) == pytest.approx(26.1)
    assert percentile(range(299), 99) is None and percentile(range(300), 99) == pytest.approx(296.01)
    assert percentile([3.0, None, 1.0], 50) == 2.0 and percentile([None], 50) is None


def test_p90_speed_is_the_slow_side():
    requests = [trace(f"r{i}", at=20.0 * i, gap=0.1 if i < 20 else 0.2) for i in range(30)]
    row = reduce_trace(requests, concurrency=1)
    assert row["decode_speed_tok_per_s"] == pytest.approx(10)
    assert row["decode_speed_p90_tok_per_s"] == pytest.approx(5)
    assert row["tpot_p90_ms"] == pytest.approx(200) and row["tpot_p99_ms"] is None


def test_prefill_counts_new_tokens_only():
    requests = [
        trace(f"r{i}", at=10.0 * i, first=first, tokens=1, prompt_tokens=1000, cached_tokens=200)
        for i, first in enumerate((0.5, 0.8, 1.6))
    ]
    row = reduce_prefill(requests, step_tokens=800, devices=2, device_kind="gpu")
    assert row["input_throughput_tok_per_s"] == pytest.approx(800 / 0.8)
    assert row["input_throughput_full_tok_per_s"] == pytest.approx(2400 / 2.9)
    assert (row["input_tokens"], row["cached_input_tokens"], row["devices"]) == (2400, 600, 2)
    assert (row["load_kind"], row["load"]) == ("step_tokens", 800)


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"cached_tokens": 8}, "cached_tokens is 8 of 8"),
        ({"cached_tokens": None}, "cached_tokens is None"),
    ],
)
def test_prefill_without_known_new_tokens_is_refused(fields, says):
    with pytest.raises(UserError, match=says):
        reduce_prefill([trace(**fields)], step_tokens=8)


def test_overlapping_prefills_are_refused():
    with pytest.raises(UserError, match="r1 and r2 overlap"):
        reduce_prefill([trace("r1"), trace("r2", at=0.2)], step_tokens=8)


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"arrival_tokens": [1]}, "arrivals_s has 11 entries"),
        ({"arrival_tokens": [-1] * 11}, "negative"),
        ({"arrivals_s": [0.5, 0.4], "arrival_tokens": [1, 1]}, "backwards"),
        ({"sent": -1.0}, "backwards"),
        ({"arrivals_s": [math.nan], "arrival_tokens": [1]}, "not finite"),
    ],
)
def test_a_contradictory_trace_is_refused_by_name(fields, says):
    with pytest.raises(UserError, match=f"request odd.*{says}"):
        reduce_trace([trace("odd", **fields)], concurrency=1)


@pytest.mark.parametrize("requests, concurrency", [([], 1), ([trace()], 0)])
def test_no_requests_or_no_concurrency_is_refused(requests, concurrency):
    with pytest.raises(UserError):
        reduce_trace(requests, concurrency)


def test_client_lag_is_the_median_time_from_scheduled_to_sent():
    lags = (0.0, 0.002, 0.010)
    requests = [
        RequestTrace(f"r{i}", 8, 0, float(i), i + lag, [i + 0.5, i + 0.6], [1, 1], i + 0.6)
        for i, lag in enumerate(lags)
    ]
    assert reduce_trace(requests, 1)["client_lag_ms"] == pytest.approx(2.0)
