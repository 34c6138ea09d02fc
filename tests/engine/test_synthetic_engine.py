"""Synthetic acceptance in an engine: how many tokens its steps give."""

import math

import pytest
from tiny_engine import EOS, VOCABULARY, greedy, is_idle, prompt_of, tiny_model

from wholecurve.engine import Engine, SamplingParams
from wholecurve.engine.speculation import SyntheticProposer
from wholecurve.errors import UserError


def tokens_of_steps(proposer, num_requests, new_tokens, params=greedy, **options):
    """({request: tokens of each of its steps}, engine). Room is left to the last step: no draft is cut there."""
    options = {"cache_tokens": 4096, "max_batch_tokens": 512, **options}
    engine = Engine(tiny_model(), speculation=proposer, check=True, **options)
    steps = {f"r{i}": [] for i in range(num_requests)}
    for i in range(num_requests):
        engine.add(f"r{i}", prompt_of(5 + i % 7, i), params(new_tokens))
    while engine.has_unfinished:
        for output in engine.step():
            steps[output.request_id].append(len(output.token_ids))
    assert is_idle(engine)
    return steps, engine


@pytest.mark.parametrize("reading", ["conditional", "marginal"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_steps_give_the_expected_number_of_tokens(reading, temperature):
    """Five standard errors around the mean; first steps (prompts) and last ones (no room for all drafts) left out."""
    proposer, new_tokens = SyntheticProposer(3, 0.75, reading, seed=1, end_token_ids=(EOS,)), 100

    def params(count):
        return greedy(count, temperature=temperature, seed=0)

    steps, engine = tokens_of_steps(proposer, 24, new_tokens, params)
    counts = []
    for own in steps.values():
        given = 1
        assert own[0] == 1 and sum(own) == new_tokens
        for count in own[1:]:
            if given + 4 <= new_tokens:
                counts.append(count)
            given += count
    variance = sum((count - proposer.expected_tokens) ** 2 for count in counts) / len(counts)
    mean = sum(counts) / len(counts)
    assert len(counts) > 500 and 0.5 < variance < 3
    assert abs(mean - proposer.expected_tokens) < 5 * math.sqrt(variance / len(counts))
    assert proposer.expected_tokens == pytest.approx({"conditional": 2.734375, "marginal": 3.25}[reading])
    if reading == "marginal":
        assert set(counts) == {1, 4}
    else:
        assert set(counts) == {1, 2, 3, 4}
    stats = engine.stats()
    assert stats.synthetic and stats.output_tokens == 24 * new_tokens
    assert stats.drafts_accepted == sum(count - 1 for own in steps.values() for count in own)


def test_two_engines_with_other_batches_accept_the_same():
    """Other numbers of sequences at once, chunks, blocks and readings of the same logits: the pattern is common."""
    patterns = []
    for options in (
        {"max_sequences": 12, "block_size": 16},
        {"max_sequences": 1, "block_size": 4},
        {"max_sequences": 5, "block_size": 1, "max_batch_tokens": 21, "prefix_cache": True},
    ):
        steps, engine = tokens_of_steps(SyntheticProposer(3, 0.6, seed=4), 12, 40, **options)
        assert engine.stats().preemptions == 0
        patterns.append(steps)
    assert patterns[0] == patterns[1] == patterns[2]
    assert len({tuple(own) for own in patterns[0].values()}) == 12
    assert tokens_of_steps(SyntheticProposer(3, 0.6, seed=5), 12, 40)[0] != patterns[0]


def test_the_text_depends_on_real_logits():
    """The token after the accepted drafts is what the target says there."""
    engine = Engine(tiny_model(), speculation=SyntheticProposer(2, 0.0), cache_tokens=128)
    prompt = prompt_of(9, 0)
    assert engine.generate([prompt], greedy(20)) == Engine(tiny_model(), cache_tokens=128).generate(
        [prompt], greedy(20)
    )
    assert engine.stats().drafts_proposed > 30 and engine.stats().drafts_accepted == 0


def test_accepted_drafts_are_the_prompts_own_tokens():
    prompt = [4, 9, 11]
    engine = Engine(tiny_model(), speculation=SyntheticProposer(4, 1.0), cache_tokens=128, check=True)
    (tokens,) = engine.generate([prompt], greedy(26))
    drafts = [token for i, token in enumerate(tokens) if i % 5]
    assert set(drafts) == set(prompt) and engine.stats().steps == 6


def test_an_end_token_of_the_target_ends_a_request_and_drafts_never_do():
    """With a bias to nothing at all: only the added token can be an end token, wherever it comes."""
    proposer = SyntheticProposer(3, 0.9, seed=3, end_token_ids=(EOS,))
    engine = Engine(tiny_model(), speculation=proposer, cache_tokens=2048, check=True)
    for i in range(10):
        engine.add(f"r{i}", [EOS, 1 + i, EOS], SamplingParams(max_new_tokens=60, temperature=2.0, seed=i))
    ends = 0
    while engine.has_unfinished:
        for output in engine.step():
            assert EOS not in output.token_ids[:-1] and max(output.token_ids) < VOCABULARY
            ends += output.finish_reason == "stop"
    assert ends > 0 and is_idle(engine)


def test_a_small_cache_sets_requests_back_and_all_finish():
    steps, engine = tokens_of_steps(SyntheticProposer(3, 0.7), 8, 30, cache_tokens=96, block_size=4)
    assert engine.stats().preemptions > 0
    assert [sum(own) for own in steps.values()] == [30] * 8


def test_what_cannot_be_judged_is_refused_when_it_comes():
    engine = Engine(tiny_model(), speculation=SyntheticProposer(3, 0.7), cache_tokens=96)
    with pytest.raises(UserError, match="request a: frequency_penalty has no meaning with synthetic acceptance"):
        engine.add("a", [1, 2], greedy(3, frequency_penalty=0.5))
    assert not engine.has_unfinished and len(engine.generate([[1, 2]], greedy(3))[0]) == 3
