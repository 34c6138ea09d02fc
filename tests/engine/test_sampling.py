"""Sampling of a step: exact rules on small vocabularies, the distribution, and rows that know nothing of each other."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_rows import draw, draws, many_draws, request_of
from scipy.stats import chisquare

from wholecurve.engine.sampling import RequestSampling, Sampler, SampleRow
from wholecurve.engine.sampling import sampler as sampler_module
from wholecurve.engine.sampling.rows import Plan
from wholecurve.kernels.sampling import sampling
from wholecurve.kernels.sampling.philox import sampling_uniform

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("first", [0, 1, 15, 16, 1023, 40000])
def test_greedy_takes_the_lowest_token_of_a_tie(dtype, first):
    """49,152 logits as a real vocabulary has, so that a vectorised or split search is what runs."""
    logits = torch.zeros(49152, dtype=dtype)
    logits[[first, first + 1, first + 37, 49151]] = 3.0
    plain = SampleRow(request_of(49152), 0)
    among_others = SampleRow(request_of(49152, temperature=1.0, seed=1), 0)
    both = torch.stack([logits, logits.roll(1)])
    assert draw(both, [plain, plain]) == [first, 0]
    assert draw(both, [plain, among_others])[0] == first
    assert draw(torch.zeros(3, 100), [SampleRow(request_of(100), 0)] * 3) == [0, 0, 0]


def test_what_greedy_cannot_choose():
    logits = [[-INF, 1.0, -INF], [NAN, -5.0, NAN], [5.0, INF, 9.0], [-INF, NAN, -INF], [2.0, 3.0, -INF]]
    for params in ({}, {"repetition_penalty": 2.0}, {"logit_bias": {2: -9.0}}, {"temperature": 1e-9, "seed": 1}):
        assert draw(logits, [SampleRow(request_of(3, prompt=(), **params), 0)] * 5) == [1, 1, 1, -1, 1], params


def test_an_argmax_that_is_given_is_taken_by_greedy_rows_alone():
    logits = torch.tensor([[0.0, 9.0, 0.0], [0.0, 9.0, 0.0], [0.0, 9.0, 0.0]])
    rows = [SampleRow(request_of(3), 0), SampleRow(request_of(3, logit_bias={0: 1.0}), 0), SampleRow(request_of(3), 0)]
    argmax = torch.tensor([2, 0, 0])
    assert draw(logits, rows, argmax) == [2, 1, 0]
    step = Sampler(3, "cpu").sample(None, [rows[0], rows[2]], argmax[:2])
    assert step.tokens.tolist() == [2, 0] and step.logprobs is None


def test_a_tiny_temperature_is_greedy_without_overflow():
    logits = torch.tensor([-1e30, 5.0, 4.999, -INF, 5.0 - 1e-3])
    for temperature in (1e-6, 1e-30, 1e-300, 5e-324):
        assert draws(logits, 20, temperature=temperature) == [1] * 20


def test_a_large_temperature_is_uniform_and_never_leaves_the_vocabulary():
    seen = draws(torch.tensor([9.0, -9.0, 0.0]), 300, temperature=1e300)
    assert all(seen.count(token) > 60 for token in range(3)) and len(seen) == sum(map(seen.count, range(3)))


def test_filters_that_keep_one_token():
    logits = torch.tensor([1.0, 3.0, 2.0, 3.0])
    for filters in ({"top_p": 0.0}, {"top_k": 1}, {"top_p": 0.3, "top_k": 3, "min_p": 1.0}):
        assert draws(logits, 50, temperature=50.0, **filters) == [1] * 50, filters
    assert set(draws(logits, 60, temperature=50.0, min_p=1.0)) == {1, 3}
    for filters in ({"top_k": 0}, {"top_k": -1}, {"top_k": 4}, {"top_k": 10**12}, {"min_p": 0.0}, {"top_p": 1.0}):
        assert set(draws(logits, 100, temperature=50.0, **filters)) == {0, 1, 2, 3}, filters


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, 6),
        ({"temperature": 0.7}, 6),
        ({"temperature": 1.5}, 6),
        ({"top_p": 0.85}, 3),
        ({"temperature": 0.7, "top_p": 0.6}, 2),
        ({"top_k": 4}, 4),
        ({"min_p": 0.3}, 3),
        ({"top_k": 4, "top_p": 0.9, "min_p": 0.2}, 3),
    ],
)
def test_the_distribution(params, kept):
    """Chi-square of 8,000 seeds over 6 tokens; the p-value of a right sampler is under 1e-4 once in 10,000."""
    logits = torch.tensor([0.3, 1.9, -0.5, 1.2, 0.0, 2.2])
    chances = (logits.double() / params.get("temperature", 1.0)).softmax(0)
    order = chances.argsort(descending=True).tolist()[:kept]
    seen = many_draws(logits, 8000, **params)
    assert set(seen) == set(order)
    expected = chances[order] / chances[order].sum() * 8000
    assert chisquare([seen.count(token) for token in order], expected.tolist()).pvalue > 1e-4


def test_places_in_an_answer_are_independent():
    """The same, for the tokens that follow one another with one seed: each pair of neighbours is as likely."""
    seen = draws(torch.zeros(3), 3000, seed=11)
    pairs = [3 * one + two for one, two in zip(seen[::2], seen[1::2], strict=True)]
    assert chisquare([pairs.count(pair) for pair in range(9)]).pvalue > 1e-4


def test_a_token_depends_on_seed_and_place_as_the_kernel_says():
    logits = torch.zeros(1000)
    drawn = draws(logits, 8, seed=2**64 - 5)
    uniform = sampling_uniform(torch.full((8,), -5), torch.arange(8))
    assert drawn == (uniform * 1000).long().tolist()


PARAMS = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.0, 0.3, 1.0, 5.0]), "seed": st.integers(0, 2**64 - 1)},
    optional={
        "top_k": st.integers(0, 40),
        "top_p": st.sampled_from([0.0, 0.3, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.1, 1.0]),
        "repetition_penalty": st.sampled_from([0.5, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 0.7]),
        "frequency_penalty": st.sampled_from([-0.2, 0.4]),
        "logit_bias": st.dictionaries(st.integers(0, 31), st.sampled_from([-INF, -3.0, 0.1, 4.0]), max_size=4),
        "min_new_tokens": st.integers(0, 6),
        "stop_token_ids": st.lists(st.integers(0, 31), max_size=2),
        "logprobs": st.integers(0, 5),
    },
)


@settings(max_examples=60)
@given(
    params=st.lists(PARAMS, min_size=1, max_size=6),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_a_row_knows_nothing_of_the_others(params, seed, dtype):
    """Six steps in which rows come and go and change places: each request draws what it draws alone."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, len(params), 32, generator=generator).mul_(3).to(getattr(torch, dtype))
    before = logits.clone()

    def requests():
        return [request_of(32, ends=(4,), **{"max_new_tokens": 8, **given_params}) for given_params in params]

    alone, sampler = [[] for _ in params], Sampler(32, "cpu")
    for i, request in enumerate(requests()):
        for _ in range(6):
            index = len(alone[i])
            step = Sampler(32, "cpu").sample(logits[index, i : i + 1], [SampleRow(request, index)])
            alone[i].append((step.tokens.tolist(), step.logprobs))
            request.commit(alone[i][-1][0])
    together, state = [[] for _ in params], requests()
    while any(len(seen) < 6 for seen in together):
        present = [i for i, seen in enumerate(together) if len(seen) < 6]
        order = torch.randperm(len(present), generator=generator).tolist()
        chosen = [present[i] for i in order[: 1 + int(torch.randint(len(present), (), generator=generator))]]
        rows = [SampleRow(state[i], len(together[i])) for i in chosen]
        step = sampler.sample(torch.stack([logits[len(together[i]), i] for i in chosen]), rows)
        for place, i in enumerate(chosen):
            token = step.tokens.tolist()[place]
            logprobs = step.logprobs and step.logprobs[place] and [step.logprobs[place]]
            together[i].append(([token], logprobs))
            state[i].commit([token])
    assert together == alone
    assert torch.equal(logits, before), "logits are not the sampler's to write"


@settings(max_examples=60)
@given(
    params=st.lists(PARAMS, min_size=1, max_size=4),
    drafts=st.lists(st.lists(st.integers(0, 31), max_size=4), min_size=4),
)
def test_rows_after_drafts_are_those_of_a_run_without_drafts(params, drafts):
    """Row i of a verification draws what is drawn once its drafts are committed, whatever the others hold."""
    generator = torch.Generator().manual_seed(1)
    requests, rows, expected = [], [], []
    for given_params, guesses in zip(params, drafts, strict=False):
        given_params = {"max_new_tokens": 8, **given_params}
        requests.append(request_of(32, ends=(4,), **given_params))
        requests[-1].commit([5, 5])
        rows += [SampleRow(requests[-1], 2 + i, guesses[:i]) for i in range(len(guesses) + 1)]
    logits = torch.randn(len(rows), 32, generator=generator) * 3
    for row, values in zip(rows, logits, strict=True):
        request = RequestSampling(row.request.params, [1, 2, 3], 32, (4,))
        request.commit([5, 5, *row.drafts])
        expected += draw(values[None], [SampleRow(request, row.output_index)])
    sampler = Sampler(32, "cpu")
    for _ in range(2):  # and nothing of the drafts stays
        assert sampler.sample(logits, rows).tokens.tolist() == expected


def test_a_seed_gives_a_stream_and_no_seed_gives_another_each_time():
    logits = torch.zeros(1000)
    assert draws(logits, 20, seed=5) == draws(logits, 20, seed=5)
    assert draws(logits, 20, seed=5) != draws(logits, 20, seed=6)
    assert len(set(draws(logits, 20, seed=5))) > 10
    torch.manual_seed(0)
    one = draws(logits, 20, seed=None)
    torch.manual_seed(0)
    assert one != draws(logits, 20, seed=None), "the global generator plays no part"


def test_a_preempted_request_goes_on_where_it_was():
    """Its state stays while others are sampled: the next token is the one of an unbroken run."""
    logits, sampler = torch.randn(50, generator=torch.Generator().manual_seed(0)), Sampler(50, "cpu")
    params = dict(temperature=3.0, seed=4, frequency_penalty=1.0)
    unbroken = draws(logits, 8, **params)
    request, tokens = request_of(50, **params), []
    for index in range(8):
        tokens += sampler.sample(logits[None], [SampleRow(request, index)]).tokens.tolist()
        request.commit(tokens[-1:])
        if index % 3 == 0:
            draws(logits, 2, sampler, presence_penalty=1.0)
    assert tokens == unbroken


def test_an_end_waits_for_min_new_tokens():
    logits = torch.tensor([5.0, 1.0, 4.0, 3.0])
    for temperature in (0.0, 1e-9, 0.01):
        seen = draws(logits, 4, temperature=temperature, min_new_tokens=2, stop_token_ids=(2,))
        assert seen == [3, 3, 0, 0], temperature
    assert draws(logits, 2, temperature=0.0, min_new_tokens=2, ignore_eos=True) == [0, 0], "no end, nothing to wait for"
    assert draws(logits, 2, temperature=0.0, min_new_tokens=2, ignore_eos=True, stop_token_ids=(0,)) == [2, 2]


def test_a_bias_moves_the_distribution_as_it_says():
    logits = torch.tensor([0.0, 1.0, 2.0, 0.5])
    seen = many_draws(logits, 8000, logit_bias={0: 1.5, 2: -INF}, top_k=3, temperature=2.0)
    chances = ((logits.double() + torch.tensor([1.5, 0.0, -INF, 0.0])) / 2).softmax(0)
    assert chisquare([seen.count(t) for t in (0, 1, 3)], (chances[[0, 1, 3]] * 8000).tolist()).pvalue > 1e-4
    assert draws(torch.tensor([20.0, 20.0], dtype=torch.bfloat16), 3, temperature=0.0, logit_bias={1: 0.01}) == [1] * 3
    assert draw(logits[None], [SampleRow(request_of(4, logit_bias=dict.fromkeys(range(4), -INF)), 0)]) == [-1]


@settings(max_examples=100)
@given(params=PARAMS, seed=st.integers(0, 99))
def test_one_row_is_what_the_definition_of_the_kernel_gives(params, seed):
    """The reference form, in float64, with bias and masked ends added by hand."""
    request = request_of(32, prompt=(1, 2, 2, 9), ends=(4,), **{"max_new_tokens": 8, **params})
    request.commit([5, 6, 5])
    logits = torch.randn(1, 32, generator=torch.Generator().manual_seed(seed)) * 3
    edited = logits.double()
    for token, bias in (params.get("logit_bias") or {}).items():
        edited[0, token] += bias
    if params.get("min_new_tokens", 0) > 3:
        edited[0, [4, *params.get("stop_token_ids", ())]] = -INF
    counts = torch.zeros(1, 32, dtype=torch.int32)
    counts[0, [1, 2, 9]], counts[0, 5], counts[0, 6] = 1, 4, 2
    names = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    signed = params["seed"] - (2**64 if params["seed"] >= 2**63 else 0)
    expected = sampling(
        edited,
        torch.tensor([params["temperature"]]),
        torch.tensor([signed]),
        torch.tensor([3]),
        form="reference",
        top_k=torch.tensor([params.get("top_k", 0)]),
        top_p=torch.tensor([params.get("top_p", 1.0)]),
        min_p=torch.tensor([params.get("min_p", 0.0)]),
        counts=counts,
        penalties=torch.tensor([[params.get(name, neutral) for name, neutral in names.items()]]),
    )
    assert draw(logits, [SampleRow(request, 3)]) == expected.tolist()


def test_a_steady_batch_builds_no_tensors_anew(monkeypatch):
    plans = []
    monkeypatch.setattr(sampler_module, "Plan", lambda *arguments: plans.append(1) or Plan(*arguments))
    requests = [request_of(50, temperature=1.0, seed=i, presence_penalty=i % 2) for i in range(6)]
    sampler = Sampler(50, "cpu")
    for index in range(5):
        sampler.sample(torch.zeros(6, 50), [SampleRow(request, index) for request in requests])
    assert len(plans) == 2, "an empty one, and one for the batch"
    sampler.sample(torch.zeros(5, 50), [SampleRow(request, 5) for request in requests[1:]])
    assert len(plans) == 3


def test_plain_requests():
    assert request_of(9, top_p=0.2, top_k=3, min_p=0.5, stop_token_ids=(3,), stop=("a",)).is_plain
    for params in (
        {"temperature": 0.5},
        {"logprobs": 0},
        {"logit_bias": {1: 1.0}},
        {"presence_penalty": 0.1},
        {"min_new_tokens": 1},
    ):
        assert not request_of(9, **params).is_plain, params
    assert request_of(9, presence_penalty=0.1).needs_history and not request_of(9, temperature=1.0).needs_history
