"""Tokens per chunk: from the best source, nothing lost, nothing twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholecurve.studies.serving.client.chunks import Usage
from wholecurve.studies.serving.client.counting import Received, allot, count


def texts(*lengths: int) -> list[Received]:
    return [Received(length) for length in lengths]


def used(completion: int | None, **details) -> Usage:
    return Usage(completion_tokens=completion, **details)


def never() -> int:
    raise AssertionError("the text was tokenised although the server had counted")


def test_usage_of_one_token_per_chunk():
    counted = count(texts(0, 3, 9, 2, 0), used(3), never)
    assert counted.arrival_tokens == [0, 1, 1, 1, 0]
    assert (counted.token_source, counted.reasoning_tokens) == ("usage", None)


def test_usage_of_more_tokens_than_chunks_goes_by_length():
    """vllm PR#50677: with speculation a chunk holds several tokens; chunks are not tokens."""
    assert count(texts(4, 8, 0, 12), used(6)).arrival_tokens == [1, 2, 0, 3]


def test_usage_per_chunk_is_exact():
    chunks = [Received(0, 0, 0), Received(9, 0, 1), Received(1, 0, 4), Received(1, 0, 6), Received(0, 0, 6)]
    counted = count(chunks, used(6), never)
    assert (counted.arrival_tokens, counted.token_source) == ([0, 1, 3, 2, 0], "usage per chunk")


def test_a_token_without_text_counts_with_the_next_content():
    """Half a character has no text yet; it is no content when it comes."""
    chunks = [Received(0, 0, 1), Received(3, 0, 2), Received(0, 0, 3), Received(1, 0, 4), Received(0, 0, 5)]
    assert count(chunks, used(6)).arrival_tokens == [0, 2, 0, 3 + 1, 0]


@pytest.mark.parametrize(
    "told, total",
    [
        ([2, 1, 3], 3),  # falls
        ([1, None, 3], 3),  # missing
        ([3, 3, 3], 3),  # the whole count in every chunk
        ([0, 2, 3], 3),  # nothing in the first
        ([1, 3, 3], 3),  # nothing in the last
        ([1, 2, 3], 2),  # more than there are in the end
        ([3, 3, 3, 3, 3, 6], 6),  # nothing in most of them
    ],
)
def test_counts_per_chunk_that_cannot_be_true_are_not_used(told, total):
    counted = count([Received(5, 0, n) for n in told], used(total), never)
    assert counted.token_source == "usage"
    assert sum(counted.arrival_tokens) == total


def test_counts_in_some_chunks_are_the_last_one_s():
    """A usage in the last chunk with text is usage, not usage per chunk."""
    chunks = [Received(5), Received(5), Received(5, 0, 3)]
    assert count(chunks, used(3), never).token_source == "usage"


def test_without_usage_the_text_is_tokenised():
    counted = count(texts(4, 4), None, lambda: 6)
    assert (counted.arrival_tokens, counted.token_source) == ([3, 3], "tokenizer")


def test_without_usage_and_tokenizer_chunks_count():
    counted = count(texts(0, 4, 9), None)
    assert (counted.arrival_tokens, counted.token_source) == ([0, 1, 1], "chunks")


def test_usage_of_0_with_a_text_is_not_believed():
    """vllm PR#50677 and others: a count that the text refutes; and it is said that it was refuted."""
    assert count(texts(4, 9), used(0)).token_source == "chunks (usage says 0)"
    counted = count(texts(4, 9), used(0), lambda: 5)
    assert (sum(counted.arrival_tokens), counted.token_source) == (5, "tokenizer (usage says 0)")


def test_usage_far_below_the_chunks_is_not_believed():
    """sglang#7084: 10 tokens by usage, 1,000 by the text."""
    counted = count(texts(*[5] * 1000), used(10))
    assert (sum(counted.arrival_tokens), counted.token_source) == (1000, "chunks (usage says 10)")


def test_usage_a_little_below_the_chunks_is_believed():
    """The text of a token may be cut in two."""
    counted = count(texts(5, 5, 5, 5), used(2), never)
    assert (counted.arrival_tokens, counted.token_source) == ([1, 0, 0, 1], "usage")


def test_an_answer_without_content_has_no_tokens_and_no_source():
    """vllm#6064: an empty reply is not a reply of 0 ms."""
    counted = count(texts(0, 0), used(4), never)
    assert (counted.arrival_tokens, counted.token_source) == ([0, 0], None)
    assert count([], None).arrival_tokens == []


def test_usage_of_another_kind_is_as_good_as_none():
    assert count(texts(4), Usage(prompt_tokens=3)).token_source == "chunks"


def test_thoughts_by_usage():
    chunks = [Received(5, 5), Received(5)]
    assert count(chunks, used(2, reasoning_tokens=1)).reasoning_tokens == 1
    assert count(chunks, used(6, reasoning_tokens=4)).reasoning_tokens == 4
    assert count(chunks, used(6, reasoning_tokens=7)).reasoning_tokens == 3  # more than there are
    assert count(texts(5, 5), used(2, reasoning_tokens=0)).reasoning_tokens == 0


def test_thoughts_by_their_chunks():
    chunks = [Received(4, 4), Received(4, 4), Received(8, 4), Received(4)]
    assert count(chunks, used(5)).reasoning_tokens == 1 + 1 + 1
    assert count(chunks, None).reasoning_tokens == 2


def test_thoughts_that_usage_denies_were_seen():
    """SGLang writes 0 where it does not count them."""
    assert count([Received(4, 4), Received(4)], used(2, reasoning_tokens=0)).reasoning_tokens == 1


def test_thoughts_that_nobody_told_are_unknown():
    assert count(texts(4, 4), used(2)).reasoning_tokens is None


def test_largest_remainders():
    assert allot(10, [1, 1, 1]) == [4, 3, 3]
    assert allot(7, [10, 20, 70]) == [1, 1, 5]
    assert allot(4, [1, 1, 98]) == [1, 1, 2]


def test_first_and_last_have_a_token():
    assert allot(2, [1, 50, 1]) == [1, 0, 1]
    assert allot(3, [1, 50, 50, 1]) == [1, 0, 1, 1] or allot(3, [1, 50, 50, 1]) == [1, 1, 0, 1]


def test_a_single_token_came_first():
    assert allot(1, [1, 9]) == [1, 0]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60), st.integers(1, 500))
def test_allotment(lengths, total):
    tokens = allot(total, lengths)
    assert sum(tokens) == total
    assert min(tokens) >= (1 if total >= len(lengths) else 0)
    if total >= 2 and len(lengths) >= 2:
        assert tokens[0] >= 1 and tokens[-1] >= 1
    if total == len(lengths):
        assert tokens == [1] * total


chunk_lists = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30), st.one_of(st.none(), st.integers(0, 80))), max_size=40
).map(lambda rows: [Received(max(a, b), b, told) for a, b, told in rows])


@given(chunk_lists, st.one_of(st.none(), st.integers(0, 200)), st.one_of(st.none(), st.integers(0, 200)))
def test_nothing_is_lost_or_counted_twice(chunks, total, tokenized):
    """Whatever a server tells: tokens are where content is, and together they are what the source counted."""
    counted = count(chunks, used(total), None if tokenized is None else lambda: tokenized)
    assert len(counted.arrival_tokens) == len(chunks)
    assert all(n == 0 for n, chunk in zip(counted.arrival_tokens, chunks) if not chunk.content_length)
    content = [n for n, chunk in zip(counted.arrival_tokens, chunks) if chunk.content_length]
    if not content:
        assert counted.token_source is None and not any(counted.arrival_tokens)
        return
    told = [chunk.completion_tokens or 0 for chunk in chunks]
    kind = counted.token_source.split(" (")[0]
    expected = {
        "usage": total,
        "usage per chunk": max([*told, total or 0]),
        "tokenizer": tokenized,
        "chunks": len(content),
    }
    assert sum(content) == expected[kind]
    assert content[0] > 0
    assert len(content) == 1 or sum(content) == 1 or content[-1] > 0
    assert counted.reasoning_tokens is None or 0 <= counted.reasoning_tokens <= max(sum(content), 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=50))
def test_usage_per_chunk_gives_back_what_was_sent(rows):
    """Chunks of 1 to 6 tokens with text, and empty ones of no tokens between them."""
    sent = [n + 1 if has_text else 0 for n, has_text in rows]
    told = [sum(sent[: place + 1]) for place in range(len(sent))]
    chunks = [Received(3 * bool(n), 0, so_far) for n, so_far in zip(sent, told)]
    counted = count(chunks, used(told[-1]), never)
    assert counted.arrival_tokens == sent


def test_many_events():
    number = 200_000
    chunks = [Received(4) for _ in range(number)]
    assert sum(count(chunks, used(number)).arrival_tokens) == number
    assert sum(count(chunks, used(3 * number + 1)).arrival_tokens) == 3 * number + 1
    for place, chunk in enumerate(chunks):
        chunk.completion_tokens = 2 * place + 1
    counted = count(chunks, used(2 * number))
    assert (sum(counted.arrival_tokens), counted.token_source) == (2 * number, "usage per chunk")
