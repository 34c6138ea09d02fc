"""Batch points: throughput while all requests decode, and what is not a batch is refused."""

import pytest

from wholecurve.curves.metrics import all_decoding_window, reduce_batch
from wholecurve.errors import UserError
from wholecurve.trace import RequestTrace


def request(name, first_s, step_s, tokens, scheduled_s=0.0, prompt_tokens=8):
    """A request whose first token comes at `first_s`, and one more every `step_s`."""
    arrivals = [first_s + step_s * i for i in range(tokens)]
    return RequestTrace(name, prompt_tokens, 0, scheduled_s, scheduled_s, arrivals, [1] * tokens, arrivals[-1])


def test_only_tokens_while_all_decode_count():
    # a: tokens at 1, 2, …, 10; b: at 4, 5, …, 13. All decode from 4 to 10: a has 5…10, b has 5…10.
    batch = [request("a", 1.0, 1.0, 10), request("b", 4.0, 1.0, 10)]
    assert all_decoding_window(batch) == (4.0, 10.0)
    point = reduce_batch(batch, 2)
    assert point["output_throughput_tok_per_s"] == pytest.approx(12 / 6)
    assert point["decode_speed_tok_per_s"] == pytest.approx(1.0)
    assert point["window"] == "decode phase" and point["window_s"] == pytest.approx(6)
    assert point["output_throughput_full_tok_per_s"] == pytest.approx(20 / 13)
    assert point["full_window_s"] == pytest.approx(13)
    assert point["ttft_p50_ms"] == pytest.approx(2500)
    assert point["tpot_p50_ms"] == pytest.approx(1000)
    assert point["occupancy"] == pytest.approx(1)


def test_batches_are_pooled_over_their_windows_and_not_over_the_gaps_between_them():
    first = request("a", 1.0, 1.0, 5)  # window 1…5: 4 tokens
    second = request("b", 102.0, 0.5, 5, scheduled_s=100.0)  # window 102…104: 4 tokens
    point = reduce_batch([first, second], 1)
    assert point["output_throughput_tok_per_s"] == pytest.approx(8 / 6)
    assert point["output_throughput_full_tok_per_s"] == pytest.approx(10 / (5 + 4))
    assert point["n_completed"] == 2 and point["output_tokens"] == 10
    assert point["decode_speed_tok_per_s"] == pytest.approx(1.5)  # median of 1 and 2


def test_a_batch_with_a_failed_request_gives_no_decode_numbers():
    failed = RequestTrace("b", 8, 0, 0.0, 0.0, [], [], None, "out of memory")
    point = reduce_batch([request("a", 1.0, 1.0, 5), failed], 2)
    assert point["output_throughput_tok_per_s"] is None and point["decode_speed_tok_per_s"] is None
    assert point["n_failed"] == 1 and point["n_completed"] == 1
    assert point["output_throughput_full_tok_per_s"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([request("a", 1.0, 1.0, 3), request("b", 4.0, 1.0, 3)], "one ended before the last had its first token"),
        ([request("a", 1.0, 1.0, 3), request("b", 1.0, 1.0, 3, scheduled_s=0.5)], "were not scheduled together"),
        ([request(n, 1.0, 1.0, 3) for n in "abc"], "3 requests are no whole number of batches of 2"),
        ([request(n, 1.0, 1.0, 3) for n in "abcd"], "from a and c overlap in time"),
        ([], "has no requests"),
    ],
)
def test_what_is_no_race_is_refused(requests, message):
    with pytest.raises(UserError, match=message):
        reduce_batch(requests, 2)


def test_time_between_two_chunks_of_one_step_engine_is_no_throughput():
    """All tokens of a step arrive at one moment: the first token, at the start of the window, is not in it."""
    batch = [request("a", 2.0, 0.25, 9), request("b", 2.0, 0.25, 9)]
    assert reduce_batch(batch, 2)["output_throughput_tok_per_s"] == pytest.approx(2 / 0.25)
