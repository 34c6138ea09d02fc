"""Synthetic acceptance: the rates and their mean, common random numbers, and that real logits are read."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wholecurve.engine.sampling import RequestSampling, SamplingParams
from wholecurve.engine.speculation.rates import draft_rates, expected_tokens
from wholecurve.engine.speculation.synthetic import SyntheticProposer
from wholecurve.errors import UserError

VOCAB = 13


def sequence_of(number, output=0, prompt=(3, 5, 8), **params):
    """What a proposer looks at of a sequence with `output` sampled tokens."""
    params = SamplingParams(**params)
    return SimpleNamespace(
        request_id=f"r{number}",
        arrival=number,
        prompt_ids=list(prompt),
        num_sampled=output,
        params=params,
        sampling=RequestSampling(params, prompt, VOCAB),
    )


def random_logits(rows, seed=0, dtype=torch.float32):
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)).to(dtype)


def play(proposer, numbers, steps, logits_seed=0):
    """{request: accepted drafts of each of its steps}, all requests in one batch."""
    sequences, accepted = [sequence_of(number) for number in numbers], {number: [] for number in numbers}
    for step in range(steps):
        proposals = proposer.propose(sequences, [proposer.max_drafts] * len(sequences))
        logits = random_logits(len(sequences) * (proposer.max_drafts + 1), logits_seed + step)
        for sequence, drafts, tokens in zip(sequences, proposals, proposer.judge(sequences, proposals, logits)):
            assert tokens[:-1] == drafts[: len(tokens) - 1]
            accepted[sequence.arrival].append(len(tokens) - 1)
            sequence.num_sampled += len(tokens)
    return accepted


def test_three_drafts_at_75_percent_by_both_readings():
    assert expected_tokens(3, 0.75, "conditional") == pytest.approx(2.734375, abs=1e-12)
    assert expected_tokens(3, 0.75, "marginal") == pytest.approx(3.25, abs=1e-12)
    assert draft_rates(3, 0.75, "conditional") == [0.75, 0.75, 0.75]
    assert draft_rates(3, 0.75, "marginal") == [0.75, 1.0, 1.0]


@given(num_drafts=st.integers(0, 12), acceptance=st.floats(0, 1))
def test_means_are_their_formulas(num_drafts, acceptance):
    powers = sum(acceptance**i for i in range(num_drafts + 1))
    assert expected_tokens(num_drafts, acceptance, "conditional") == pytest.approx(powers)
    assert expected_tokens(num_drafts, acceptance, "marginal") == pytest.approx(1 + num_drafts * acceptance)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0.5, "marginal"), "-1 drafts"),
        ((3, 1.5, "conditional"), "acceptance 1.5; it must lie between 0 and 1"),
        ((3, -0.1, "marginal"), "acceptance -0.1"),
        ((3, math.nan, "conditional"), "acceptance nan"),
        ((3, 0.5, "mean"), "reading 'mean' of an acceptance; it must be one of conditional, marginal"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        draft_rates(*arguments)


@pytest.mark.parametrize("reading", ["conditional", "marginal"])
@pytest.mark.parametrize(("num_drafts", "acceptance"), [(3, 0.75), (1, 0.3), (5, 0.9)])
def test_the_mean_converges_to_its_expectation(num_drafts, acceptance, reading):
    """Each position's count against a binomial bound of five standard deviations, and the mean against theirs."""
    proposer, requests, steps = SyntheticProposer(num_drafts, acceptance, reading, seed=5), 40, 50
    counts = [count for own in play(proposer, range(requests), steps).values() for count in own]
    total, reached = requests * steps, 1.0
    for position, rate in enumerate(draft_rates(num_drafts, acceptance, reading)):
        reached *= rate
        kept = sum(count > position for count in counts)
        assert abs(kept - total * reached) <= 5 * math.sqrt(total * reached * (1 - reached)) + 1e-9
    mean = 1 + sum(counts) / total
    spread = num_drafts / 2  # the standard deviation of a number in 0 … num_drafts is no larger
    assert abs(mean - proposer.expected_tokens) <= 5 * spread / math.sqrt(total)


@pytest.mark.parametrize(("acceptance", "accepted"), [(0.0, 0), (1.0, 4)])
@pytest.mark.parametrize("reading", ["conditional", "marginal"])
def test_certain_acceptance(acceptance, accepted, reading):
    assert set(play(SyntheticProposer(4, acceptance, reading), [0], 50)[0]) == {accepted}


def test_the_pattern_is_the_same_in_any_batch_and_for_any_logits():
    together = play(SyntheticProposer(3, 0.6, seed=2), range(6), 30)
    assert together == {n: play(SyntheticProposer(3, 0.6, seed=2), [n], 30, 1000)[n] for n in range(6)}
    assert len({tuple(pattern) for pattern in together.values()}) == 6, "requests share a pattern"
    assert play(SyntheticProposer(3, 0.6, seed=3), [0], 30)[0] != together[0], "the seed has no effect"


def test_the_added_token_is_the_targets_best_or_drawn_from_its_chances():
    """Greedy: the best of the row behind the drafts that stayed. Warm: by the request's own filters."""
    proposer = SyntheticProposer(2, 0.5)
    for output in range(40):
        cold, warm = sequence_of(0, output), sequence_of(1, output, temperature=1.0, top_k=2)
        drafts = proposer.propose([cold, warm], [2, 2])
        logits = random_logits(6, output)
        of_cold, of_warm = proposer.judge([cold, warm], drafts, logits)
        assert of_cold[-1] == logits[len(of_cold) - 1].argmax()
        assert of_warm[-1] in logits[3 + len(of_warm) - 1].topk(2).indices


def test_batches_of_unequal_drafts_read_their_own_rows():
    proposer = SyntheticProposer(3, 1.0)
    limits = [3, 3, 1, 0, 0, 2, 9, 3]
    sequences = [sequence_of(number) for number in range(len(limits))]
    drafts = proposer.propose(sequences, limits)
    assert [len(d) for d in drafts] == [3, 3, 1, 0, 0, 2, 3, 3]
    logits = random_logits(sum(len(d) + 1 for d in drafts), dtype=torch.bfloat16)
    row = 0
    for own, tokens in zip(drafts, proposer.judge(sequences, drafts, logits)):
        row += len(own) + 1
        assert tokens == [*own, int(logits[row - 1].argmax())]


def test_drafts_come_from_the_prompt_and_never_end_a_request():
    proposer = SyntheticProposer(4, 0.5, end_token_ids=(3,))
    seen = {t for output in range(60) for t in proposer.propose([sequence_of(0, output)], [4])[0]}
    assert seen == {5, 8}
    sequence = sequence_of(0, stop_token_ids=(5, 0), prompt=(3, 5))
    assert proposer.propose([sequence], [4]) == [[1, 1, 1, 1]]


def test_drafts_depend_on_request_and_output_index_alone():
    proposer = SyntheticProposer(4, 0.5)
    prompt = tuple(range(VOCAB))
    drafts = proposer.propose([sequence_of(0, 10, prompt)], [4])[0]
    assert proposer.propose([sequence_of(0, 12, prompt)], [2])[0] == drafts[2:]
    assert proposer.propose([sequence_of(1, 10, prompt)], [4])[0] != drafts


@pytest.mark.parametrize(
    "params",
    [
        {"min_new_tokens": 2},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"logit_bias": {1: 2.0}},
        {"logprobs": 0},
    ],
    ids=lambda params: next(iter(params)),
)
def test_requests_that_ask_for_more_are_refused(params):
    proposer = SyntheticProposer(2, 0.5)
    field = next(iter(params))
    with pytest.raises(UserError, match=f"request r7: {field} has no meaning with synthetic acceptance"):
        proposer.check_request("r7", SamplingParams(**params))
    proposer.check_request("r7", SamplingParams(temperature=0.5, top_p=0.9, min_p=0.1, top_k=3, stop=("x",)))
    proposer.forget(sequence_of(0))
