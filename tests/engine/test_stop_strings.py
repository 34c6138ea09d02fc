"""Text that comes in pieces: characters, special tokens and stop strings across tokens, against a naive reading."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wholecurve.engine.text import PieceDecoder, StopFinder, TextDelta, TextStream, stream_text
from wholecurve.models.tokenizer import load_tokenizer

SPECIAL = 0


class Bytes:
    """A tokenizer whose tokens are bytes; 0 is special."""

    def decode(self, ids, skip_special_tokens):
        return bytes(i if i or not skip_special_tokens else 0 for i in ids if i or not skip_special_tokens).decode(
            "utf-8", errors="replace"
        )


class Words(Bytes):
    """Every token is some text, given with the token; it counts the tokens that it decodes."""

    def __init__(self, words):
        self.words, self.decoded = words, 0

    def decode(self, ids, skip_special_tokens):
        self.decoded += len(ids)
        return "".join(self.words[i] for i in ids)


def naive(text, stop, include_stop=False, from_place=0):
    """(text, stop string): character by character, the first end of a stop string, the longest one there."""
    for end in range(from_place + 1, len(text) + 1):
        found = [string for string in stop if text[:end].endswith(string)]
        if found:
            longest = max(found, key=len)
            return text[: end if include_stop else end - len(longest)], longest
    return text, None


def streamed(stream, ids, sizes=None):
    """(text, stop string, deltas) of token ids that come in pushes of these sizes, one by one without them."""
    deltas, ids, sizes = [], list(ids), list(sizes or [])
    while ids:
        size = sizes.pop() if sizes else 1
        deltas.append(stream.push(ids[:size]))
        ids = ids[size:]
    deltas.append(stream.finish())
    return "".join(delta.text for delta in deltas), deltas[-1].stopped, deltas


LETTERS = st.text("ab🙂é", max_size=40)
STOPS = st.lists(st.text("ab🙂é", min_size=1, max_size=5), max_size=4)


@settings(max_examples=300)
@given(text=LETTERS, stop=STOPS, include_stop=st.booleans(), data=st.data())
def test_stop_strings_in_any_split(text, stop, include_stop, data):
    """Tokens are pieces of bytes of any length, pushed in groups of any size: always what one reading says."""
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=12))) if len(raw) > 1 else []
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]

    class Pieces:
        def decode(self, ids, skip_special_tokens):
            return b"".join(pieces[i] for i in ids).decode("utf-8", errors="replace")

    sizes = data.draw(st.lists(st.integers(1, 4), max_size=12))
    stream = TextStream(Pieces(), stop, include_stop)
    found, stopped, deltas = streamed(stream, range(len(pieces)), sizes)
    assert (found, stopped) == naive(text, stop, include_stop)
    if stopped:
        # the token that completes it, and none after
        end = len(naive(text, stop, include_stop=True)[0].encode())
        assert sum(delta.num_tokens for delta in deltas) == sum(1 for cut in [0, *cuts] if cut < end)
        assert stream.push([0]) == TextDelta("", stopped, 0)
    else:
        assert sum(delta.num_tokens for delta in deltas) == len(pieces)


@settings(max_examples=200)
@given(text=st.text("abc", max_size=30), stop=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3))
def test_what_is_given_out_can_never_be_taken_back(text, stop):
    """After every character: all text that no continuation can put into a stop string, and not one character more."""
    finder, given_out = StopFinder(stop, False), ""
    for end in range(1, len(text) + 1):
        given_out += finder.push(text[end - 1])
        if finder.stopped:
            break
        begun = [k for string in stop for k in range(1, len(string)) if text[:end].endswith(string[:k])]
        assert given_out == text[: end - max(begun, default=0)]


@settings(max_examples=200)
@given(words=st.lists(st.text("ab", max_size=4), max_size=10), stop=STOPS, least=st.integers(0, 6))
def test_no_stop_string_ends_within_the_first_tokens(words, stop, least):
    text = "".join(words)
    found, stopped, _ = streamed(TextStream(Words(words), stop, min_tokens=least), range(len(words)))
    assert (found, stopped) == naive(text, stop, from_place=len("".join(words[:least])))


def test_the_first_that_is_complete_wins_then_the_longest():
    for stop, text, expected in (
        (("abcd", "bc"), "xabcd", ("xa", "bc")),
        (("bc", "abc"), "xabcd", ("x", "abc")),
        (("abc", "ab"), "xabc", ("x", "ab")),
        (("b", "a"), "cab", ("c", "a")),
    ):
        for words in ([text], list(text)):
            found, stopped, _ = streamed(TextStream(Words(words), stop), range(len(words)))
            assert (found, stopped) == expected, (stop, words)


def test_a_part_of_a_stop_string_comes_with_the_end():
    stream = TextStream(Words(["one st", "o"]), ("stop",))
    assert [stream.push([0]).text, stream.push([1]).text, stream.finish().text] == ["one ", "", "sto"]


def test_a_stop_string_that_an_unfinished_character_completes():
    stream = TextStream(Bytes(), ("a\ufffd",))
    assert stream.push([97, 0xF0]).text == ""
    assert stream.finish() == TextDelta("", "a\ufffd")


@pytest.mark.parametrize("text", ["plain", "naïve – 漢字 🙂!", "🙂", ""])
def test_streamed_pieces_are_the_text_and_never_a_half_character(text):
    pieces = list(stream_text(Bytes(), text.encode()))
    assert "".join(pieces) == text and not any("�" in piece or not piece for piece in pieces)


def test_special_tokens_are_left_out_and_an_unfinished_character_is_shown_at_the_end():
    assert "".join(stream_text(Bytes(), [0, 104, 0, 105, 0])) == "hi"
    assert "".join(stream_text(Bytes(), [104, *"🙂".encode()[:2]])) == "h�"
    assert streamed(TextStream(Bytes(), skip_special_tokens=False), [0, 104, 0])[0] == "\0h\0"


def test_pieces_come_as_soon_as_they_are_whole():
    taken = []

    def tokens():
        for token in "aé".encode():
            taken.append(token)
            yield token

    pieces = stream_text(Bytes(), tokens())
    assert next(pieces) == "a" and len(taken) == 1
    assert next(pieces) == "é" and len(taken) == 3


@settings(max_examples=300)
@given(raw=st.lists(st.sampled_from([*b"az", 0x80, 0xBF, 0xC3, 0xE6, 0xF0, 0x9F, 0xFF, 0]), max_size=60))
def test_bytes_that_are_no_text(raw):
    """Whatever comes, the stream says what decoding all of it says."""
    assert streamed(TextStream(Bytes()), raw)[0] == Bytes().decode(raw, True)


GARBAGE = [b"\xff", b"\x80\xff", b"\xc3", b"\xbf\xf0", b"\x9f\x99", b"\x82\xc3", b"\xe6\xbc", b"\xa2\xff", b"\x9f"]


@settings(max_examples=200)
@given(ids=st.lists(st.sampled_from(range(len(GARBAGE))), min_size=18, max_size=60))
def test_long_runs_that_never_end_in_a_whole_character(ids):
    """Tokens that end one character and begin another: the window is cut, and never through a character."""

    class Pieces:
        def decode(self, ids, skip_special_tokens):
            return b"".join(GARBAGE[i] for i in ids).decode("utf-8", errors="replace")

    assert streamed(TextStream(Pieces()), ids)[0] == Pieces().decode(ids, True)


@pytest.mark.parametrize("words", [["x "], ["\ufffd"], [""], ["a", "\ufffd", "", "\ufffd"]])
@pytest.mark.parametrize("stop", [(), ("yyyy",)])
def test_the_cost_per_token_does_not_grow(words, stop):
    """Tokens decoded per token pushed, of text and of what never becomes text."""
    costs = []
    for length in (500, 5000):
        tokenizer = Words(words)
        text, _, _ = streamed(TextStream(tokenizer, stop), (i % len(words) for i in range(length)))
        assert text == "".join(words[i % len(words)] for i in range(length))
        costs.append(tokenizer.decoded / length)
    assert costs[1] <= costs[0] * 1.01 and costs[1] < 300


def test_a_decoder_that_drops_the_first_space():
    """As those of SentencePiece do: within an answer spaces stay, at its beginning only if it goes on a prompt."""

    class Pieces(Words):
        def decode(self, ids, skip_special_tokens):
            return super().decode(ids, skip_special_tokens).removeprefix(" ")

    tokenizer = Pieces([" one", " two", " ", "x", ""])
    ids = [0, 1, 2, 2, 4, 1, 3, 0]
    assert streamed(TextStream(tokenizer), ids)[0] == tokenizer.decode(ids, True)
    tokenizer.added_tokens_decoder = {4: SimpleNamespace(special=True), 2: SimpleNamespace(special=False)}
    assert streamed(TextStream(tokenizer), [0, *[4] * 80, 1, 2])[0] == "one two "
    assert streamed(TextStream(tokenizer, prompt_ids=[1]), [0, 1])[0] == " one two"
    assert streamed(TextStream(tokenizer, prompt_ids=[0] * 50), [2, 0])[0] == "  one"


def test_a_prompt_that_ends_within_a_character_is_no_context():
    decoder = PieceDecoder(Bytes(), True, prompt_ids=[97, 0xC3])
    assert decoder.push(0xA9) + decoder.flush() == Bytes().decode([0xA9], True)


def test_a_decoder_that_writes_unknown_for_each_byte_of_a_run():
    """As byte fallback does: a run of bytes is text as a whole or not at all. What has been given out stays."""

    class Fallback:
        def decode(self, ids, skip_special_tokens):
            try:
                return bytes(ids).decode()
            except UnicodeDecodeError:
                return "\ufffd" * len(ids)

    text, _, deltas = streamed(TextStream(Fallback()), "漢字".encode())
    assert text == "漢字" and [delta.text for delta in deltas] == ["", "", "漢", "", "", "字", ""]
    assert streamed(TextStream(Fallback()), [*"漢".encode(), 0xFF])[0] == "漢\ufffd"


@pytest.mark.real_model
def test_the_tokenizer_of_smollm2(real_model_files):
    """Random tokens, many of them parts of characters or special, in pushes of any size."""
    tokenizer = load_tokenizer(real_model_files.hf_folder())
    rng = random.Random(0)
    alphabet = tokenizer.convert_tokens_to_ids(list("ðŁĻĤĺé"))
    for _ in range(150):
        ids = [rng.choice([rng.randrange(len(tokenizer)), rng.choice(alphabet), rng.randrange(17)]) for _ in range(40)]
        whole = tokenizer.decode(ids, skip_special_tokens=True)
        stop = [whole[at : at + 3] for at in rng.sample(range(len(whole)), 2)] if rng.random() < 0.5 else []
        sizes = [rng.randrange(1, 5) for _ in range(40)]
        found, stopped, _ = streamed(TextStream(tokenizer, stop), ids, sizes)
        assert (found, stopped) == naive(whole, stop)
    ids = tokenizer.encode("Hello 🙂 <|im_end|>漢字 naïve")
    assert streamed(TextStream(tokenizer), ids)[0] == "Hello 🙂 漢字 naïve"
    shown = streamed(TextStream(tokenizer, skip_special_tokens=False), ids)[0]
    assert shown == "Hello 🙂 <|im_end|>漢字 naïve"
