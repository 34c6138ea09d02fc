"""A token's logits are the same bits whatever runs beside it, however it is cut, on however many threads."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_models import (
    DTYPES,
    LENGTH,
    SHAPES,
    STREAMS,
    PagedSequences,
    lowest_of_largest,
    native,
    needs_native,
    streams,
    tiny,
)

pytestmark = needs_native
FILLS = [torch.nan, torch.inf, -torch.inf, 1.0]
BLOCK_SIZES = [16, 32, 64]

# a chunk: sequence, tokens that stay, wrong drafts after them that are taken back
chunks = st.tuples(
    st.integers(0, STREAMS - 1), st.sampled_from([1, 1, 1, 2, 3, 5, 12, 13, 16, 31, 70, 120]), st.integers(0, 3)
)
steps = st.lists(
    st.tuples(
        st.lists(chunks, min_size=1, max_size=STREAMS, unique_by=lambda chunk: chunk[0]),
        st.sampled_from(["none", "some", "last", "all"]),
        st.booleans(),  # argmax only
    ),
    min_size=1,
    max_size=8,
)


@functools.cache
def alone(shape, dtype):
    """Logits [LENGTH, V] of each stream as its own only chunk on one thread: the way of many tokens."""
    return [
        PagedSequences(native(shape, dtype), fill=0.0).logits([(i, 0, tokens)])
        for i, tokens in enumerate(streams(shape))
    ]


def rows_of(which, counts, drafts):
    """Rows of the batch whose logits a step asks for."""
    ends = torch.tensor(counts).cumsum(0).tolist()
    every = range(ends[-1])
    return {
        "none": [],
        "some": [row for row in every if row % 3 == 1],
        "last": [end - 1 - back for end, more in zip(ends, drafts) for back in range(more, -1, -1)],
        "all": list(every),
    }[which]


def run_steps(shape, dtype, threads, plan, block_size, seed, fill):
    """Run a plan and compare every logit of a token that is not a wrong draft with that of the token alone."""
    model, tokens, expected = native(shape, dtype, threads), streams(shape), alone(shape, dtype)
    paged = PagedSequences(model, block_size=block_size, fill=fill, seed=seed)
    done = [0] * STREAMS
    for wanted, which, argmax_only in plan:
        parts, of_row = [], []
        for sequence, count, wrong in wanted:
            if done[sequence] + count > LENGTH:
                done[sequence] = 0  # another request gets its blocks
            start = done[sequence]
            drafts = [(token + 1) % tiny(shape)[0].vocab_size for token in tokens[sequence][start : start + wrong]]
            parts.append((sequence, start, tokens[sequence][start : start + count] + drafts))
            of_row += [(sequence, start + i) for i in range(count)] + [None] * len(drafts)
            done[sequence] += count
        rows = rows_of(which, [len(part[2]) for part in parts], [len(part[2]) - c[1] for part, c in zip(parts, wanted)])
        batch = paged.batch(parts, rows)
        batch.argmax_only = argmax_only
        logits = model(batch, [paged.cache])
        assert (logits is None) == argmax_only and batch.argmax.shape == (len(rows),)
        for at, row in enumerate(rows):
            if of_row[row] is not None:
                sequence, position = of_row[row]
                right = expected[sequence][position]
                assert argmax_only or torch.equal(logits[at], right), (sequence, position)
                assert batch.argmax[at] == lowest_of_largest(right[None])[0], (sequence, position)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=60)
@given(steps, st.sampled_from(BLOCK_SIZES), st.integers(0, 99), st.sampled_from(FILLS))
def test_bits_do_not_depend_on_the_batch(shape, dtype, plan, block_size, seed, fill):
    run_steps(shape, dtype, 1, plan, block_size, seed, fill)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=25)
@given(st.sampled_from(list(SHAPES)), steps, st.sampled_from(BLOCK_SIZES))
def test_bits_do_not_depend_on_threads(threads, dtype, shape, plan, block_size):
    run_steps(shape, dtype, threads, plan, block_size, 0, torch.nan)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_token_by_token_gives_the_bits_of_a_prefill(shape, dtype):
    """One token at a time, then all sequences side by side: the two smallest ways of a step."""
    expected, tokens = alone(shape, dtype), streams(shape)
    paged = PagedSequences(native(shape, dtype))
    for position in range(LENGTH):
        assert torch.equal(paged.logits([(0, position, tokens[0][position : position + 1])])[0], expected[0][position])
    paged = PagedSequences(native(shape, dtype), block_size=32)
    for position in range(LENGTH):
        logits = paged.logits([(i, position, tokens[i][position : position + 1]) for i in range(STREAMS)])
        assert torch.equal(logits, torch.stack([of_stream[position] for of_stream in expected]))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 11, 12, 13, 24, 25, 79, 80, 81, 82, 127, 128, 129, 199])
def test_around_every_number_of_tokens_at_which_a_step_goes_another_way(count):
    """4 and 80 tokens, tiles of 12 rows, blocks of 128 rows; before and after some context."""
    for shape, dtype in (("narrow", torch.bfloat16), ("wide", torch.float32)):
        expected, tokens = alone(shape, dtype), streams(shape)
        for threads in (1, 2):
            paged = PagedSequences(native(shape, dtype, threads))
            assert torch.equal(paged.logits([(1, 0, tokens[1][:count])]), expected[1][:count])
            rest = tokens[1][count : count + 200 - count]
            assert torch.equal(paged.logits([(1, count, rest)]), expected[1][count:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sequence_that_stands_twice_in_a_cache_of_shared_blocks(dtype):
    """Two sequences read the same full blocks, as with a prefix cache, and go on in blocks of their own."""
    tokens, expected = streams("narrow")[0], alone("narrow", dtype)[0]
    paged = PagedSequences(native("narrow", dtype), block_size=32)
    paged.logits([(0, 0, tokens[:64])])
    paged.table[1, :2] = paged.table[0, :2]
    logits = paged.logits([(0, 64, tokens[64:90]), (1, 64, tokens[64:70])])
    assert torch.equal(logits, torch.cat([expected[64:90], expected[64:70]]))
