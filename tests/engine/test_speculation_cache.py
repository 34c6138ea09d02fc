"""Drafts and the memory of an engine: blocks, budgets, preemption, shared prefixes, the end of the context."""

import pytest
from speculation_runs import PROPOSERS, Oracle, answers_alone, draft_model, is_forgotten, requests_of, run_with
from tiny_engine import greedy, is_idle, prompt_of, run_with_arrivals, tiny_model, tokens_alone

from wholecurve.engine import Engine
from wholecurve.errors import UserError


@pytest.mark.parametrize("kind", PROPOSERS)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_preempted_requests_lose_their_drafts_and_nothing_else(kind, block_size):
    """Six requests in a cache for two and a half: each is set back while drafts were proposed for it."""
    requests = requests_of([14, 15, 16, 17, 12, 13], [greedy(16), greedy(16, temperature=1.0, seed=3)])
    answers = answers_alone(requests)
    proposer = PROPOSERS[kind](answers)
    engine, tokens, _ = run_with(
        proposer, requests, cache_tokens=80, block_size=block_size, max_batch_tokens=32, max_sequences=6
    )
    assert tokens == answers
    preemptions = engine.stats().preemptions
    assert preemptions > 0
    if hasattr(proposer, "forgotten"):
        assert len(proposer.forgotten) == preemptions + len(requests)
    assert is_idle(engine) and is_forgotten(proposer)


@pytest.mark.parametrize("block_size", [1, 4, 8])
@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("right", [0, 2, 9])
def test_drafts_at_the_edge_of_a_block_in_a_cache_of_exactly_the_size(block_size, offset, right):
    """Drafts never make a request need more than it needs without, nor hold blocks after they were rejected."""
    length, new_tokens = 8 + offset, 17
    requests = {"a": (0, tuple(prompt_of(length, 3)), greedy(new_tokens))}
    answers = answers_alone(requests)

    def holds_no_more(engine, *_):
        for sequence in engine.scheduler.running:
            most = -(-len(sequence.token_ids) // block_size)
            assert len(sequence.blocks[0]) <= most, "blocks of rejected drafts"

    engine, tokens, _ = run_with(
        Oracle(answers, 5, right),
        requests,
        holds_no_more,
        cache_tokens=length + new_tokens - 1,
        block_size=block_size,
        max_batch_tokens=9,
    )
    assert tokens == answers and engine.stats().preemptions == 0


@pytest.mark.parametrize("right", [0, 1, 9])
@pytest.mark.parametrize("max_batch_tokens", [2, 3, 5, 6, 7])
def test_a_small_budget_trims_drafts_and_starves_nobody(right, max_batch_tokens):
    """Who decodes gets a token in every step: the drafts of others leave room for it."""
    requests = requests_of([2, 2, 1], [greedy(14)])
    answers = answers_alone(requests)
    decoding = []

    def count(engine, step, outputs):
        assert sum(len(output.token_ids) for output in outputs) <= max_batch_tokens
        assert set(decoding[:max_batch_tokens]) <= {output.request_id for output in outputs}
        decoding[:] = [s.request_id for s in engine.scheduler.running if s.is_decoding]

    engine, tokens, _ = run_with(
        Oracle(answers, 4, right), requests, count, cache_tokens=128, max_batch_tokens=max_batch_tokens
    )
    assert tokens == answers
    assert engine.stats().drafts_proposed > 0 or max_batch_tokens < 4


@pytest.mark.parametrize("kind", ["wrong", "half right", "right", "itself", "another"])
@pytest.mark.parametrize("block_size", [1, 4])
def test_rejected_drafts_never_get_into_the_prefix_cache(kind, block_size):
    """The same prompt again, then its answer as a prompt: hits, and the tokens of an empty cache."""
    prompt, params = tuple(prompt_of(13, 2)), greedy(18)
    answer = tokens_alone(tiny_model(), prompt, params)
    longer = (*prompt, *answer[:15])
    follows = tokens_alone(tiny_model(), longer, greedy(9))
    proposer = PROPOSERS[kind]({"a": answer, "b": answer, "c": follows})
    engine = Engine(
        tiny_model(), speculation=proposer, prefix_cache=True, block_size=block_size, cache_tokens=200, check=True
    )
    given = run_with_arrivals(
        engine, {"a": (0, prompt, params), "b": (20, prompt, params), "c": (40, longer, greedy(9))}
    )
    assert given[0] == {"a": answer, "b": answer, "c": follows}
    assert engine.stats().prefix_hit_tokens >= 12 + 28 // block_size * block_size - block_size
    assert is_idle(engine)


def test_more_drafts_than_positions_are_refused_or_trimmed():
    """An answer that fills the model's context to its last position."""
    model = tiny_model(max_position=32)
    prompt, params = tuple(prompt_of(12, 0)), greedy(20)
    answers = {"a": tokens_alone(model, prompt, params)}
    for proposer in (Oracle(answers, 9), draft_model(0, 9)):
        engine = Engine(model, speculation=proposer, cache_tokens=64, check=True)
        assert run_with_arrivals(engine, {"a": (0, prompt, params)})[0] == answers
        with pytest.raises(UserError, match="exceed the model's context of 32"):
            engine.add("b", list(prompt), greedy(21))
