"""Continuous batching over llama.cpp's context: decode rows first, prompts in chunks, slots reused, tokens kept."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholecurve.errors import UserError
from wholecurve.studies.contenders.base import closed_loop
from wholecurve.studies.contenders.llama_cpp import Batcher
from wholecurve.studies.request import Request


class FakeContext:
    """Checks what a real cache would not survive, and answers (sum of the sequence so far) mod 97."""

    def __init__(self, batch_tokens=8, max_sequences=4):
        self.settings = SimpleNamespace(batch_tokens=batch_tokens, max_sequences=max_sequences)
        self.cache: dict[int, list[int]] = {}
        self.batches: list[list[tuple[int, int]]] = []  # (sequence, tokens) of each decode, in order

    def decode(self, tokens, positions, sequences, wanted):
        assert 0 < len(tokens) == len(positions) == len(sequences) == len(wanted) <= self.settings.batch_tokens
        counts: dict[int, int] = {}
        chosen = []
        for token, position, sequence, flag in zip(tokens, positions, sequences, wanted):
            assert 0 <= sequence < self.settings.max_sequences
            cells = self.cache.setdefault(sequence, [])
            assert position == len(cells), "a token was skipped, or computed twice"
            cells.append(token)
            counts[sequence] = counts.get(sequence, 0) + 1
            if flag:
                chosen.append(sum(cells) % 97)
        self.batches.append(list(counts.items()))
        return chosen

    def remove(self, sequence):
        del self.cache[sequence]


def expected(request):
    tokens, given_tokens = list(request.prompt_ids), []
    for _ in range(request.output_tokens):
        given_tokens.append(sum(tokens) % 97)
        tokens.append(given_tokens[-1])
    return given_tokens


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 6)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(4, 16),
)
def test_every_request_gets_the_tokens_that_it_would_get_alone(lengths, concurrency, batch_tokens):
    rng = random.Random(3)
    requests = [Request(f"r{i}", [rng.randrange(97) for _ in range(n)], out) for i, (n, out) in enumerate(lengths)]
    context = FakeContext(batch_tokens)
    batcher = Batcher(context)
    traces, tokens = closed_loop(batcher.add, batcher.step, requests, concurrency)
    assert tokens == {request.request_id: expected(request) for request in requests}
    assert context.cache == {}, "cells of a finished request were kept"
    assert all(trace.completed for trace in traces)


def test_decode_rows_go_before_prompts_and_prompts_are_cut_to_the_budget():
    context = FakeContext(batch_tokens=8)
    batcher = Batcher(context)
    batcher.add(Request("a", [1] * 3, 5))
    batcher.step()
    batcher.add(Request("b", [2] * 12, 2))
    batcher.step()
    batcher.step()
    first, second, third = context.batches
    slot_a, slot_b = first[0][0], second[1][0]
    assert first == [(slot_a, 3)]
    assert second == [(slot_a, 1), (slot_b, 7)]
    assert third == [(slot_a, 1), (slot_b, 5)]


def test_rows_stand_in_the_order_of_their_sequence_numbers_and_the_lowest_are_taken_first():
    """Otherwise llama.cpp computes them one by one."""
    context = FakeContext(batch_tokens=64)
    batcher = Batcher(context)
    for name, tokens in (("a", 4), ("b", 2), ("c", 4), ("d", 1)):
        batcher.add(Request(name, [1, 2], tokens))
    batcher.step()  # d is finished, then b
    batcher.step()
    for name in ("e", "f"):
        batcher.add(Request(name, [1, 2], 2))
    batcher.step()
    batcher.step()
    assert context.batches[0] == [(0, 2), (1, 2), (2, 2), (3, 2)]
    assert context.batches[1] == [(0, 1), (1, 1), (2, 1)]
    assert context.batches[2] == [(0, 1), (2, 1), (1, 2), (3, 2)]
    assert context.batches[3] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_the_lowest_free_number_is_taken():
    batcher = Batcher(FakeContext(batch_tokens=64))
    for name, tokens in (("a", 3), ("b", 2), ("c", 3), ("d", 1)):
        batcher.add(Request(name, [1, 2], tokens))
    batcher.step()
    batcher.step()  # 3 is free first, then 1
    batcher.add(Request("e", [1, 2], 2))
    batcher.step()
    assert batcher.context.batches[-1][-1] == (1, 2)


def test_a_request_beyond_the_slots_is_refused():
    batcher = Batcher(FakeContext(max_sequences=1))
    batcher.add(Request("a", [1], 2))
    with pytest.raises(UserError, match="request b: all 1 slots are taken"):
        batcher.add(Request("b", [1], 2))


def test_nothing_to_do_runs_nothing():
    context = FakeContext()
    assert Batcher(context).step() == [] and context.batches == []
