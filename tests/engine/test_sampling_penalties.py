"""Penalties: by hand, against transformers where the definitions agree, and over a run of many steps."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_rows import draw, request_of

from wholecurve.engine.sampling import Sampler, SampleRow
from wholecurve.engine.sampling.counts import PenaltyCounts

VOCAB = 20


def penalised_by_hand(logits, prompt, output, repetition=1.0, presence=0.0, frequency=0.0):
    """The definition, token by token."""
    values = logits.double().clone()
    for token in {*prompt, *output}:
        values[token] = values[token] / repetition if values[token] > 0 else values[token] * repetition
    for token in set(output):
        values[token] -= presence + frequency * output.count(token)
    return values


@settings(max_examples=100)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), max_size=8),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=12),
    penalties=st.tuples(
        st.sampled_from([0.5, 1.0, 1.7]), st.sampled_from([-1.0, 0.0, 1.3]), st.sampled_from([-0.4, 0.0, 0.6])
    ),
    seed=st.integers(0, 50),
)
def test_greedy_with_penalties_by_hand(prompt, output, penalties, seed):
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    request = request_of(VOCAB, prompt, **dict(zip(names, penalties, strict=True)))
    request.commit(output)
    expected = penalised_by_hand(logits, prompt, output, *penalties)
    token = draw(logits[None], [SampleRow(request, len(output))])[0]
    assert expected[token] >= expected.max() - 1e-5


def test_repetition_and_frequency_by_numbers():
    """Prompt 1, output 2 2: −1 · 1.5 stays behind, 3 / 1.5 − 2 · 0.7 = 0.6 is less than 0.61."""
    logits = torch.tensor([0.61, -1.0, 3.0])
    for output, expected in (([], 2), ([2], 2), ([2, 2], 0)):
        request = request_of(3, (1,), repetition_penalty=1.5, frequency_penalty=0.7)
        request.commit(output)
        assert draw(logits[None], [SampleRow(request, len(output))]) == [expected]


def test_a_prompt_counts_for_repetition_alone():
    logits = torch.tensor([1.0, 1.5])
    for name, expected in (("repetition_penalty", 0), ("presence_penalty", 1), ("frequency_penalty", 1)):
        assert draw(logits[None], [SampleRow(request_of(2, (1,), **{name: 2.0}), 0)]) == [expected], name


@settings(max_examples=50)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8),
    penalty=st.sampled_from([0.6, 1.2, 2.5]),
    temperature=st.sampled_from([0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 3, 7]),
    min_p=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 50),
)
def test_what_transformers_keeps_and_how_likely(prompt, penalty, temperature, top_k, min_p, seed):
    """Its processors in their order give the probabilities; ours must be drawn at the same share of the running sum."""
    from transformers import generation

    from wholecurve.kernels.sampling.philox import sampling_uniform

    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    processors = generation.LogitsProcessorList([generation.RepetitionPenaltyLogitsProcessor(penalty)])
    processors.append(generation.TemperatureLogitsWarper(temperature))
    if top_k:
        processors.append(generation.TopKLogitsWarper(top_k))
    if min_p:
        processors.append(generation.MinPLogitsWarper(min_p))
    chances = processors(torch.tensor([prompt]), logits[None].double())[0].softmax(0)
    numbers = range(40)
    rows = [
        SampleRow(
            request_of(
                VOCAB,
                prompt,
                seed=number,
                repetition_penalty=penalty,
                temperature=temperature,
                top_k=top_k,
                min_p=min_p,
            ),
            0,
        )
        for number in numbers
    ]
    tokens = draw(logits.expand(len(rows), -1), rows)
    running = chances.cumsum(0)
    for token, share in zip(
        tokens, sampling_uniform(torch.tensor(numbers), torch.zeros(40, dtype=torch.int64)).tolist()
    ):
        assert chances[token] > 0
        assert running[token] - chances[token] - 1e-5 <= share <= running[token] + 1e-5


@settings(max_examples=40)
@given(data=st.data())
def test_counts_over_a_run_are_counts_from_scratch(data):
    """Requests come, go, come back, and hold drafts that are dropped: the table says what their tokens say."""
    prompts = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=4))
    requests = [request_of(10, prompt, presence_penalty=1.0) for prompt in prompts]
    table = PenaltyCounts(10, torch.device("cpu"))
    for _ in range(8):
        places = data.draw(st.lists(st.sampled_from(range(len(requests))), min_size=1, unique=True))
        rows = []
        for place in places:
            drafts = data.draw(st.lists(st.integers(0, 9), max_size=3))
            rows += [SampleRow(requests[place], 0, drafts[:i]) for i in range(len(drafts) + 1)]
        for row, counts in zip(rows, table.of_rows(rows).tolist(), strict=True):
            tokens = [*row.request.output_ids, *row.drafts]
            assert counts == [2 * tokens.count(t) + (t in row.request.prompt_ids) for t in range(10)]
        for place in places:
            requests[place].commit(data.draw(st.lists(st.integers(0, 9), max_size=3)))


def test_counts_are_kept_only_for_penalties():
    request = request_of(10, temperature=1.0)
    request.commit([1, 2])
    assert request.output_ids == []


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_neutral_rows_beside_penalised_ones(name):
    logits = torch.randn(2, 30, generator=torch.Generator().manual_seed(3))
    plain, penalised = request_of(30), request_of(30, **{name: 2.0})
    penalised.commit([int(logits[1].argmax())])
    plain.commit([int(logits[0].argmax())])
    tokens = Sampler(30, "cpu").sample(logits, [SampleRow(plain, 1), SampleRow(penalised, 1)]).tokens.tolist()
    assert tokens[0] == logits[0].argmax() and tokens[1] != logits[1].argmax()
