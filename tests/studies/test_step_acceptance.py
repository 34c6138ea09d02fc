"""Tokens per step by both readings, and acceptance patterns that all contenders share."""

import pytest
import torch

from wholecurve.errors import UserError
from wholecurve.studies.steps.acceptance import Acceptance, request_seeds, step_number


@pytest.mark.parametrize(
    ("drafts", "rate", "reading", "tokens"),
    [
        (3, 0.75, "conditional", 1 + 0.75 + 0.75**2 + 0.75**3),
        (3, 0.75, "marginal", 3.25),
        (5, 0.5, "marginal", 3.5),
        (1, 0.3, "conditional", 1.3),
        (1, 0.3, "marginal", 1.3),
        (4, 1.0, "conditional", 5.0),
        (4, 0.0, "marginal", 1.0),
        (0, 0.9, "conditional", 1.0),
    ],
)
def test_tokens_per_step(drafts, rate, reading, tokens):
    assert Acceptance(drafts, rate, reading).tokens_per_step == pytest.approx(tokens, abs=1e-12)


def test_three_drafts_at_three_quarters_are_said_with_the_reading():
    assert Acceptance(3, 0.75, "conditional").label == "3 drafts at 0.75 conditional (2.734 tokens per step)"
    assert Acceptance(1, 0.75, "marginal").label == "1 draft at 0.75 marginal (1.75 tokens per step)"
    assert Acceptance(0, 0.75, "marginal").label == "no drafts (1 token per step)"


@pytest.mark.parametrize("reading", ["conditional", "marginal"])
def test_patterns_have_the_mean_of_the_reading(reading):
    acceptance = Acceptance(3, 0.75, reading)
    seeds = request_seeds(2000, seed=1)
    accepted = torch.cat([acceptance.accepted(seeds, step) for step in range(10)])
    assert 1 + accepted.double().mean().item() == pytest.approx(acceptance.tokens_per_step, abs=0.03)
    if reading == "marginal":
        assert set(accepted.tolist()) == {0, 3}


def test_a_request_and_step_have_their_numbers_whoever_asks():
    seeds = request_seeds(64, seed=4)
    three, five, higher = (
        Acceptance(3, 0.6, "conditional"),
        Acceptance(5, 0.6, "conditional"),
        Acceptance(3, 0.8, "conditional"),
    )
    for step in range(5):
        accepted = three.accepted(seeds, step)
        assert torch.equal(accepted, five.accepted(seeds, step).clamp(max=3))  # other drafts: the same first three
        assert (higher.accepted(seeds, step) >= accepted).all()  # another rate: never fewer at a higher one
        assert torch.equal(accepted[:8], three.accepted(request_seeds(8, seed=4), step))  # another batch
    assert not torch.equal(three.accepted(seeds, 0), three.accepted(seeds, 1))
    assert not torch.equal(three.accepted(seeds, 0), three.accepted(request_seeds(64, seed=5), 0))


def test_steps_do_not_share_numbers():
    assert step_number(1) - step_number(0) > 63  # the most drafts of a step, and its added token


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0.5, "conditional"), "drafts is -1; a step verifies 0 to 63"),
        ((64, 0.5, "conditional"), "drafts is 64"),
        ((3, 1.5, "conditional"), "acceptance is 1.5; it must lie between 0 and 1"),
        ((3, float("nan"), "conditional"), "acceptance is nan"),
        ((3, 0.5, "joint"), "reading is 'joint'; it must be conditional or marginal"),
    ],
)
def test_wrong_numbers_are_one_line(arguments, message):
    with pytest.raises(UserError, match=message):
        Acceptance(*arguments)
