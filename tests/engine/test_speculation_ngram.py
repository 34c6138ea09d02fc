"""Prompt lookup against a naive scan, step by step as a sequence grows."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wholecurve.engine.sampling import SamplingParams
from wholecurve.engine.sequence import Sequence
from wholecurve.engine.speculation.ngram import NgramProposer
from wholecurve.errors import UserError


def sequence_of(tokens, name="a", prompt=1):
    """A sequence whose first `prompt` tokens are its prompt and the others its output."""
    sequence = Sequence(name, list(tokens[:prompt]), SamplingParams())
    sequence.token_ids = list(tokens)
    return sequence


def naive_drafts(tokens, min_match, max_match, limit):
    """The definition: look for the longest suffix, the latest place first; go on with the drafts at the end."""
    for run in range(min(max_match, len(tokens) - 1), min_match - 1, -1):
        for end in range(len(tokens) - 1, run - 1, -1):
            if tokens[end - run : end] == tokens[-run:]:
                drafts = []
                for position in range(end, end + limit):
                    drafts.append((tokens + drafts)[position])
                return drafts
    return []


runs = st.tuples(st.integers(1, 5), st.integers(0, 4)).map(lambda pair: (pair[0], sum(pair)))
texts = st.integers(1, 4).flatmap(lambda ids: st.lists(st.integers(0, ids), min_size=1, max_size=60))


@settings(max_examples=120, deadline=None)
@given(texts=st.lists(texts, min_size=1, max_size=3), runs=runs, most=st.integers(1, 6), data=st.data())
def test_drafts_are_those_of_a_naive_scan_at_every_length(texts, runs, most, data):
    """Sequences grow by any number of tokens between questions; some are left out of a question, some are forgotten."""
    proposer = NgramProposer(most, *runs)
    sequences = [sequence_of(text[:1], f"r{i}") for i, text in enumerate(texts)]
    while any(len(s.token_ids) < len(text) for s, text in zip(sequences, texts)):
        for sequence, text in zip(sequences, texts):
            grown = len(sequence.token_ids) + data.draw(st.integers(0, 5))
            sequence.token_ids = text[: max(grown, 1)]
            if data.draw(st.booleans()):
                proposer.forget(sequence)
        asked = [s for s in sequences if data.draw(st.integers(0, 3))]
        limits = [data.draw(st.integers(0, most + 2)) for _ in asked]
        expected = [naive_drafts(s.token_ids, *runs, min(limit, most)) for s, limit in zip(asked, limits)]
        assert proposer.propose(asked, limits) == expected


@pytest.mark.parametrize(
    ("tokens", "drafts"),
    [
        ([1, 2, 3, 9, 1, 2], [3, 9, 1, 2]),
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2, 4]),  # the latest of two
        ([5, 1, 2, 3, 6, 1, 2, 4, 5, 1, 2], [3, 6, 1, 2]),  # a longer run before a later one
        ([7, 8, 7, 8, 7], [8, 7, 8, 7]),  # goes on with itself
        ([4, 4, 4], [4, 4, 4, 4]),
        ([1, 2, 3, 4, 5], []),
        ([1, 2, 1], []),  # a run of one is too short
        ([1], []),
    ],
)
def test_examples(tokens, drafts):
    assert NgramProposer(4, 2, 3).propose([sequence_of(tokens)], [4]) == [drafts]


def test_a_new_sequence_under_an_old_name_starts_anew():
    proposer = NgramProposer(2, 2, 2)
    assert proposer.propose([sequence_of([1, 2, 3, 1, 2])], [2]) == [[3, 1]]
    assert proposer.propose([sequence_of([1, 2, 5, 7, 8, 9, 1, 2])], [2]) == [[5, 7]]
    assert proposer.propose([sequence_of([3, 4, 6, 3, 4])], [2]) == [[6, 3]]


def test_a_forgotten_sequence_leaves_nothing_behind_and_comes_back():
    proposer = NgramProposer(2)
    sequence = sequence_of([1, 2, 3, 1, 2])
    assert proposer.propose([sequence], [2]) == [[3, 1]]
    assert proposer._indices
    proposer.forget(sequence)
    proposer.forget(sequence)
    assert not proposer._indices
    sequence.token_ids += [3]
    assert proposer.propose([sequence], [2]) == [[1, 2]]


def test_a_step_touches_only_what_it_adds():
    """Counted in lines of Python and in tokens read, not in time: a step at 50,000 tokens is one at 50."""

    class Counting(list):
        read = 0

        def __getitem__(self, key):
            got = super().__getitem__(key)
            Counting.read += len(got) if isinstance(key, slice) else 1
            return got

    def work(length):
        proposer, sequence = NgramProposer(4), sequence_of([1])
        sequence.token_ids = Counting(range(length))
        proposer.propose([sequence], [4])
        sequence.token_ids.append(3)
        Counting.read, lines = 0, 0

        def trace(*_):
            nonlocal lines
            lines += 1
            return trace

        sys.settrace(trace)
        try:
            proposer.propose([sequence], [4])
        finally:
            sys.settrace(None)
        return Counting.read, lines

    assert work(50_000) == work(50)
    assert work(50)[0] < 40


@pytest.mark.parametrize("runs", [(0, 2), (3, 2), (-1, 0)])
def test_runs_that_mean_nothing_are_refused(runs):
    with pytest.raises(UserError, match=f"matches {runs[0]} to {runs[1]} tokens"):
        NgramProposer(3, *runs)


def test_no_drafts_at_all_are_refused():
    with pytest.raises(UserError, match="with 0 drafts; it must be at least 1"):
        NgramProposer(0)
