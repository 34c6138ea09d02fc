"""One answer, from its bytes to how it ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_server import DONE, finish, sse, text, usage

from wholecurve.studies.serving.client.counting import count
from wholecurve.studies.serving.client.reply import Reply


def replied(*pieces: bytes, is_whole: bool = True, keep_text: bool = False) -> Reply:
    """Pieces that came at 1, 2, 3 … seconds."""
    reply = Reply(keep_text)
    for place, piece in enumerate(pieces, start=1):
        reply.feed(float(place), piece)
    reply.close(is_whole)
    return reply


def test_an_event_came_when_its_last_byte_came():
    event = sse(text("a"))
    assert replied(event[:9], event[9:], DONE).arrivals_s == [2.0]


def test_events_of_one_piece_came_at_one_time():
    assert replied(sse(text("a")) + sse(text("b")), sse(text("c")), DONE).arrivals_s == [1.0, 1.0, 2.0]


def test_an_event_that_the_end_completes_came_with_the_last_bytes():
    """Not when the connection was closed, which may be long after."""
    reply = replied(sse(text("a")), sse(finish())[:-2])
    assert (reply.arrivals_s, reply.finish_reason, reply.fault) == ([1.0, 2.0], "length", None)


def test_nothing_counts_after_done():
    reply = replied(sse(text("a")) + sse(finish()) + DONE + sse(text("b")) + b"\xff\xff\n", sse(text("c")))
    assert (reply.arrivals_s, reply.fault, reply.done_s) == ([1.0, 1.0], None, 1.0)


def test_nothing_counts_after_a_fault():
    reply = replied(sse(text("a")) + b"data: {\n\n" + sse(text("b")), sse(text("c")) + DONE)
    assert (reply.arrivals_s, reply.fault.outcome, reply.done_s) == ([1.0], "malformed", None)


def test_what_comes_before_garbage_in_the_same_piece_counts():
    reply = replied(sse(text("a")) + sse(text("b")) + b"\xff\xff\n")
    assert (len(reply.arrivals_s), reply.fault.outcome) == (2, "malformed")


@pytest.mark.parametrize("is_whole, outcome", [(True, "malformed"), (False, "disconnected")])
def test_an_event_that_is_cut(is_whole, outcome):
    assert replied(sse(text("a")), b'data: {"ch', is_whole=is_whole).fault.outcome == outcome
    assert replied(sse(text("a")), b"da", is_whole=is_whole).fault.outcome == outcome


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_end_between_events_that_was_not_announced(is_whole):
    assert replied(sse(text("a")), is_whole=is_whole).fault.outcome == "truncated"


def test_the_last_usage_that_counts_is_the_answer_s():
    reply = replied(sse(text("a", usage=usage(3, 1))), sse(finish(usage=usage(3, 2))), sse(finish(usage={})), DONE)
    assert reply.usage.completion_tokens == 2


def test_text_is_kept_where_it_is_needed():
    pieces = (sse(text("a")), sse(text("")), sse(text("b")), DONE)
    assert replied(*pieces, keep_text=True).text == "ab"
    assert replied(*pieces).text == ""


@given(st.lists(st.text(max_size=6), min_size=1, max_size=30), st.data())
def test_cuts_lose_nothing(contents, data):
    """Random chunks, cut anywhere: every chunk once, tokens as usage says, times in order."""
    with_text = sum(bool(content) for content in contents)
    total = data.draw(st.integers(with_text, 4 * with_text + 1))
    stream = b"".join(sse(text(content)) for content in contents) + sse(finish(usage=usage(3, total))) + DONE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    reply = replied(*(stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)])), keep_text=True)
    assert reply.fault is None and reply.done_s is not None
    assert len(reply.chunks) == len(reply.arrivals_s) == len(contents) + 1
    assert reply.text == "".join(contents)
    assert reply.arrivals_s == sorted(reply.arrivals_s)
    assert sum(count(reply.chunks, reply.usage).arrival_tokens) == (total if with_text else 0)
