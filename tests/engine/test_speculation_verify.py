"""Sample and match, as pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholecurve.engine.speculation.verify import num_matching, usable_drafts

tokens = st.integers(0, 3)


@pytest.mark.parametrize(
    ("drafts", "sampled", "matching"),
    [
        ([], [5], 0),
        ([5, 6], [5, 6, 8], 2),
        ([5, 6], [5, 7, 8], 1),
        ([5, 6], [4, 6, 8], 0),  # what matches behind a mismatch does not count
        ([5, 6], [6, 5, 6], 0),
    ],
)
def test_examples(drafts, sampled, matching):
    assert num_matching(drafts, sampled) == matching


@given(drafts=st.lists(tokens, max_size=5), others=st.lists(tokens, min_size=6, max_size=6), same=st.integers(0, 5))
def test_a_step_gives_what_one_token_at_a_time_would(drafts, others, same):
    """Played by the rule of plain decoding: a row counts only if the token before it is the draft it rests on."""
    sampled = (drafts[:same] + others)[: len(drafts) + 1]
    expected = [sampled[0]]
    while len(expected) <= len(drafts) and expected[-1] == drafts[len(expected) - 1]:
        expected.append(sampled[len(expected)])
    assert sampled[: num_matching(drafts, sampled) + 1] == expected


@pytest.mark.parametrize(
    ("drafts", "limit", "usable"),
    [
        ([1, 2, 3], 2, [1, 2]),
        ([1, 2], 5, [1, 2]),
        ([1, 2], 0, []),
        ([0, 9, 1], 3, [0, 9, 1]),
        ([10, 1], 2, []),
        ([1, -1, 2], 3, [1]),
        ([1, 2, 99], 2, [1, 2]),
    ],
)
def test_no_more_than_the_limit_and_nothing_that_is_no_token(drafts, limit, usable):
    assert usable_drafts(drafts, limit, vocab_size=10) == usable
