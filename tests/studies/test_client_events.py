"""Server-sent events: the same, however their bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholecurve.studies.serving.client.events import Event, EventParser, NotEvents


def parse(*pieces: bytes) -> list[Event]:
    parser = EventParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.close()


def data(*pieces: bytes) -> list[bytes]:
    return [event.data for event in parse(*pieces)]


def test_events_end_at_blank_lines():
    assert data(b"data: a\n\ndata: b\n\n") == [b"a", b"b"]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_may_end_in_any_of_three_ways(end):
    assert data(end.join([b"data: a", b"", b"data: b", b"data: c", b"", b""])) == [b"a", b"b\nc"]


def test_a_line_end_of_two_bytes_may_be_cut_in_two():
    assert data(b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n") == [b"a", b"b"]
    assert data(b"data: a\r", b"\ndata: b\r\n\r\n") == [b"a\nb"]


def test_an_event_that_ends_in_cr_is_given_at_once():
    """The LF that may follow must not be waited for: it could be a token's time away."""
    parser = EventParser()
    assert [event.data for event in parser.feed(b"data: a\r\r")] == [b"a"]
    assert parser.feed(b"\n") == []
    assert [event.data for event in parser.feed(b"data: b\n\n")] == [b"b"]


def test_several_lines_of_data_are_one_event():
    assert data(b"data: a\ndata\ndata:\ndata: b\n\n") == [b"a\n\n\nb"]


def test_only_one_space_after_the_colon_is_taken_off():
    assert data(b"data:x\n\ndata:  x\n\n") == [b"x", b" x"]


def test_comments_and_other_fields_are_no_data():
    assert data(b": ping\n\nid: 7\nretry: 10\n\n:\ndata: a\n: between\ndata: b\n\n") == [b"a\nb"]


def test_a_name_belongs_to_its_event_alone():
    assert parse(b"event: error\ndata: a\n\ndata: b\n\n") == [Event(b"a", "error"), Event(b"b")]


def test_a_name_without_data_is_no_event():
    assert parse(b"event: ping\n\ndata: b\n\n") == [Event(b"b")]


def test_an_error_may_be_a_field_of_its_own():
    """Older servers of llama.cpp write `error: {…}` in the place of `data: {…}`."""
    assert parse(b'error: {"message": "x"}\n\n') == [Event(b'{"message": "x"}', "error")]


def test_a_byte_order_mark_may_come_first():
    assert data(b"\xef\xbb", b"\xbfdata: a\n\n") == [b"a"]


@pytest.mark.parametrize("rest", [b"", b"\n"])
def test_the_last_event_may_lack_its_end(rest):
    assert data(b"data: a\n\ndata: [DONE]" + rest) == [b"a", b"[DONE]"]


def test_an_empty_stream_has_no_events():
    assert parse() == parse(b"") == parse(b"\n\n") == []


@pytest.mark.parametrize("garbage", [b"\xff\xfe\x00\n", b"<html>\n", b'{"choices": []}\n', b"datum: a\n"])
def test_what_is_no_field_is_no_event(garbage):
    with pytest.raises(NotEvents, match="no field of an event"):
        parse(garbage)


def test_events_before_garbage_are_kept():
    with pytest.raises(NotEvents) as caught:
        EventParser().feed(b"data: a\n\ndata: b\n\n\xff\xff\n")
    assert [event.data for event in caught.value.events] == [b"a", b"b"]


def test_it_knows_whether_an_event_has_begun():
    parser = EventParser()
    assert parser.is_between_events
    parser.feed(b"data: a\n\nda")
    assert not parser.is_between_events
    parser.feed(b"ta: b\n")
    assert not parser.is_between_events
    parser.feed(b"\n")
    assert parser.is_between_events


@st.composite
def streams(draw):
    """(bytes of a stream, what its events are, where it is cut)."""
    end = draw(st.sampled_from([b"\n", b"\r", b"\r\n"]))
    line = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))
    events = draw(st.lists(st.lists(line, min_size=1, max_size=3), min_size=1))
    noise = st.sampled_from([b"", b": ping" + end, b"id: 1" + end, end])
    stream = b"".join(
        draw(noise) + b"".join(b"data: " + line.encode() + end for line in lines) + end for lines in events
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    return stream, ["\n".join(lines).encode() for lines in events], cuts


@given(streams())
def test_cuts_change_nothing(drawn):
    """Within lines, within line ends, within characters of UTF-8."""
    stream, expected, cuts = drawn
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)])]
    assert data(*pieces) == data(stream) == expected


@given(streams())
def test_single_bytes_are_enough(drawn):
    stream, expected, _ = drawn
    assert data(*(stream[i : i + 1] for i in range(len(stream)))) == expected


def test_a_long_line_in_small_pieces_is_not_joined_again_and_again():
    """Linear time, seen without a clock: until a line ends, its pieces stay pieces."""
    parser = EventParser()
    parser.feed(b"data: ")
    for _ in range(10_000):
        assert parser.feed(b"x" * 10) == []
    assert len(parser._line) == 10_001
    assert [len(event.data) for event in parser.feed(b"\n\n")] == [100_000]


def test_a_burst_of_ten_thousand_events_is_taken_apart_once():
    burst = b"".join(b"data: %d\n\n" % number for number in range(10_000))
    parser = EventParser()
    assert [event.data for event in parser.feed(burst)] == [b"%d" % number for number in range(10_000)]
    assert parser.is_between_events
