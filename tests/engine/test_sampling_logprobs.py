"""Logprobs: those of the model's own logits, whatever is done with them afterwards."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_rows import request_of

from wholecurve.engine.sampling import Sampler, SampleRow, TokenLogprobs


@settings(max_examples=60)
@given(
    wanted=st.lists(st.none() | st.integers(0, 12), min_size=1, max_size=5),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_they_are_the_log_softmax(wanted, seed, dtype):
    """Few values, so that there are ties; the sampled tokens come from edited, penalised and heated logits."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randint(-9, 9, (len(wanted), 10), generator=generator) / 4).to(dtype)
    others = dict(temperature=9.0, logit_bias={3: 2.0}, repetition_penalty=2.0, top_k=8, min_new_tokens=1)
    rows = [
        SampleRow(request_of(10, logprobs=number, seed=seed + i, **(others if i % 2 else {})), 0)
        for i, number in enumerate(wanted)
    ]
    step = Sampler(10, "cpu").sample(logits, rows)
    if all(number is None for number in wanted):
        assert step.logprobs is None
        return
    everything = logits.double().log_softmax(-1).tolist()
    for number, token, row, found in zip(wanted, step.tokens.tolist(), everything, step.logprobs, strict=True):
        if number is None:
            assert found is None
            continue
        assert found.token_id == token and found.logprob == pytest.approx(row[token], abs=1e-5)
        best = sorted(range(10), key=lambda i: (-row[i], i))[:number]
        assert [i for i, _ in found.alternatives] == best
        assert [value for _, value in found.alternatives] == pytest.approx([row[i] for i in best], abs=1e-5)


def test_tokens_that_cannot_be_chosen_have_none():
    inf, nan = math.inf, math.nan
    logits = torch.tensor([[-inf, 1.0, nan, 1.0], [nan, nan, -inf, -inf]])
    rows = [SampleRow(request_of(4, logprobs=3), 0)] * 2
    first, second = Sampler(4, "cpu").sample(logits, rows).logprobs
    half = pytest.approx(math.log(0.5))
    assert first == TokenLogprobs(1, half, ((1, half), (3, half)))
    assert second == TokenLogprobs(-1, -inf, ())


def test_all_of_a_large_vocabulary():
    """Ties by the hundred, in order of id; the probabilities sum to one."""
    logits = torch.randint(0, 9, (1, 5000), generator=torch.Generator().manual_seed(0)).float()
    for number in (5000, 4999, 700):
        row = SampleRow(request_of(5000, logprobs=number), 0)
        found = Sampler(5000, "cpu").sample(logits, [row]).logprobs[0].alternatives
        assert [i for i, _ in found] == sorted(range(5000), key=lambda i: (-logits[0, i], i))[:number]
        if number == 5000:
            assert sum(math.exp(value) for _, value in found) == pytest.approx(1, abs=1e-5)
