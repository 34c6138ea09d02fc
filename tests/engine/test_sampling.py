"""Sampling: exact rules on small vocabularies, and the distribution by a chi-square test."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from wholecurve.engine.sampling import SamplingParams, TokenSampler, sample_batch, top_p_filter
from wholecurve.errors import UserError


def kept(probabilities, top_p):
    filtered = top_p_filter(torch.tensor(probabilities, dtype=torch.float64), top_p)
    assert all(f in (0, p) for f, p in zip(filtered.tolist(), probabilities, strict=True))
    return set(filtered.nonzero().flatten().tolist())


def draws(logits, count, **params):
    sampler = TokenSampler(SamplingParams(**{"temperature": 1.0, "seed": 0, **params}))
    return [sampler.sample(torch.as_tensor(logits)) for _ in range(count)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("first", [0, 1, 15, 16, 1023, 40000])
def test_greedy_takes_the_lowest_token_of_a_tie(dtype, first):
    """49,152 logits as a real vocabulary has, so that a vectorised or split search is what runs."""
    logits = torch.zeros(49152, dtype=dtype)
    logits[[first, first + 1, first + 37, 49151]] = 3.0
    greedy = TokenSampler(SamplingParams())
    assert greedy.sample(logits) == first
    assert sample_batch(torch.stack([logits, logits.roll(1)]), [greedy, greedy]) == [first, 0]
    assert sample_batch(torch.zeros(3, 100), [greedy] * 3) == [0, 0, 0]


def test_a_tiny_temperature_is_greedy_without_overflow():
    logits = torch.tensor([-1e30, 5.0, 4.999, -math.inf, 5.0 - 1e-3])
    for temperature in (1e-6, 1e-30, 1e-300, 5e-324):
        assert draws(logits, 20, temperature=temperature) == [1] * 20


def test_a_large_temperature_is_uniform_and_never_leaves_the_vocabulary():
    seen = draws(torch.tensor([9.0, -9.0, 0.0]), 200, temperature=1e300)
    assert set(seen) == {0, 1, 2}


@pytest.mark.parametrize(
    ("probabilities", "top_p", "expected"),
    [
        ([0.5, 0.3, 0.2], 0.5, {0}),
        ([0.5, 0.3, 0.2], 0.8, {0, 1}),
        ([0.5, 0.3, 0.2], 0.50001, {0, 1}),
        ([0.5, 0.3, 0.2], 0.79999, {0, 1}),
        ([0.5, 0.3, 0.2], 0.80001, {0, 1, 2}),
        ([0.5, 0.3, 0.2], 0.0, {0}),
        ([0.5, 0.3, 0.2], 1.0, {0, 1, 2}),
        ([0.2, 0.3, 0.5], 0.5, {2}),
        ([0.25, 0.25, 0.25, 0.25], 0.5, {0, 1}),
        ([0.125, 0.25, 0.25, 0.25, 0.125], 0.5, {1, 2}),
        ([0.0, 1.0, 0.0], 0.0, {1}),
        ([0.0, 1.0, 0.0], 0.99, {1}),
        ([1.0], 0.0, {0}),
    ],
)
def test_top_p_at_its_boundaries(probabilities, top_p, expected):
    assert kept(probabilities, top_p) == expected


@settings(max_examples=200, deadline=None)
@given(weights=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any), numerator=st.integers(0, 64))
def test_top_p_keeps_the_smallest_set_that_reaches_the_mass(weights, numerator):
    """Powers of two, so that every sum is exact and the definition can be followed literally."""
    total = 2 ** math.ceil(math.log2(sum(weights)))
    weights = [*weights, total - sum(weights)]
    expected, mass = set(), 0
    for token in sorted(range(len(weights)), key=lambda token: (-weights[token], token)):
        if expected and mass * 64 >= numerator * total:
            break
        expected.add(token)
        mass += weights[token]
    assert kept([weight / total for weight in weights], numerator / 64) == {t for t in expected if weights[t]}


def test_ties_in_a_large_vocabulary_are_taken_in_order_of_token_id():
    assert kept([2**-12] * 4096, 0.5) == set(range(2048))


def test_top_p_zero_samples_the_best_token():
    logits = torch.tensor([1.0, 3.0, 2.0, 3.0])
    assert draws(logits, 50, top_p=0.0, temperature=50.0) == [1] * 50


def test_a_token_without_probability_is_never_drawn():
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    assert set(draws(logits, 300)) == {1, 3}
    assert set(draws(logits, 300, top_p=0.6)) == {1, 3}


@pytest.mark.parametrize(
    ("value", "expected"), [(0.0, 1), (0.249999, 1), (0.25, 2), (0.5, 4), (1 - 2**-53, 4), (1.0, 4)]
)
def test_the_inverse_of_the_cumulative_sum_at_its_edges(monkeypatch, value, expected):
    """Probabilities 0, 1/4, 1/4, 0, 1/2, 0: a draw of exactly 0 is no excuse for the impossible token 0."""
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(value, dtype=torch.float64))
    probabilities = torch.tensor([0.0, 0.25, 0.25, 0.0, 0.5, 0.0])
    assert draws(probabilities.log(), 1) == [expected]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.5, 1.0), (1.0, 0.85), (0.7, 0.6)])
def test_the_distribution(temperature, top_p):
    """Chi-square of 8,000 seeded draws over 6 tokens; the p-value of a right sampler is under 1e-4 once in 10,000."""
    logits = torch.tensor([0.3, 1.9, -0.5, 1.2, 0.0, 2.2])
    weights = [math.exp(logit / temperature) for logit in logits.tolist()]
    probabilities = [weight / sum(weights) for weight in weights]
    allowed, mass = [], 0.0
    for token in sorted(range(6), key=lambda token: -probabilities[token]):
        if mass < top_p:
            allowed.append(token)
        mass += probabilities[token]
    assert len(allowed) == {(1.0, 0.85): 3, (0.7, 0.6): 2}.get((temperature, top_p), 6)
    seen = draws(logits, 8000, temperature=temperature, top_p=top_p, seed=11)
    assert set(seen) <= set(allowed)
    total = sum(probabilities[token] for token in allowed)
    expected = [8000 * probabilities[token] / total for token in allowed]
    assert chisquare([seen.count(token) for token in allowed], expected).pvalue > 1e-4


def test_the_parameters_of_one_row_never_reach_another():
    """Each row of a mixed batch is what it is alone, in whatever order the rows stand."""
    torch.manual_seed(0)
    logits = torch.randn(6, 50)
    params = [
        SamplingParams(),
        SamplingParams(temperature=2.0, seed=1),
        SamplingParams(temperature=2.0, top_p=0.0, seed=2),
        SamplingParams(temperature=0.5, top_p=0.4, seed=3),
        SamplingParams(),
        SamplingParams(temperature=1e-9, seed=4),
    ]
    alone = [TokenSampler(p).sample(row) for p, row in zip(params, logits, strict=True)]
    best = logits.argmax(dim=1).tolist()
    assert [alone[i] for i in (0, 2, 4, 5)] == [best[i] for i in (0, 2, 4, 5)]
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4], [2, 2, 1]):
        together = sample_batch(logits[order], [TokenSampler(params[i]) for i in order])
        assert together == [alone[i] for i in order]


def test_a_seed_gives_a_stream_and_no_seed_gives_another_each_time():
    logits = torch.zeros(1000)
    assert draws(logits, 20, seed=5) == draws(logits, 20, seed=5)
    assert draws(logits, 20, seed=5) != draws(logits, 20, seed=6)
    assert len(set(draws(logits, 20, seed=5))) > 10
    assert draws(logits, 20, seed=None) != draws(logits, 20, seed=None)
    torch.manual_seed(0)
    assert draws(logits, 20, seed=5) == draws(logits, 20, seed=5), "the global generator plays no part"


def test_two_samplers_do_not_share_a_stream():
    one, two = (TokenSampler(SamplingParams(temperature=1.0, seed=5)) for _ in range(2))
    logits = torch.zeros(1000)
    alternating = [sampler.sample(logits) for _ in range(10) for sampler in (one, two)]
    assert alternating[::2] == alternating[1::2] == draws(logits, 10, seed=5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", -0.01),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("max_new_tokens", 0),
        ("max_new_tokens", -1),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_parameters_outside_their_range(field, value):
    with pytest.raises(UserError, match=f"{field} is {value}; it must"):
        SamplingParams(**{field: value})


def test_the_largest_seed_is_a_seed():
    TokenSampler(SamplingParams(temperature=1.0, seed=2**64 - 1)).sample(torch.zeros(4))
