"""Compulsory bytes and FLOPs against cases done by hand; what the Triton forms move is counted in each suite."""

import pytest
import torch

from wholecurve.kernels.cost import ceil_div, next_power_of_2
from wholecurve.kernels.gated_activation import spec as gated_activation
from wholecurve.kernels.kv_store import spec as kv_store
from wholecurve.kernels.prefill_attention import spec as prefill
from wholecurve.kernels.rope import spec as rope


def test_prefill_attention():
    """Prefix 3, 2 new tokens: the rows see 4 and 5 keys. A sequence without new tokens costs nothing but its length."""
    cost = prefill.cost([(2, 5), (0, 100)], 4, 2, 64, 4)
    assert cost.flops == 4 * 9 * 4 * 64
    kv, q_and_out, pages, lengths = 2 * 5 * 2 * 64 * 2, 2 * 2 * 4 * 64 * 2, 4 * 2, 4 * (2 + 3)
    assert cost.bytes_min == kv + q_and_out + pages + lengths


@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("new", [0, 1, 5, 9])
@pytest.mark.parametrize("context", [0, 1, 5, 9])
def test_seen_pairs_are_those_of_the_mask(new, context, window):
    mask = torch.ones(new, context).tril(context - new)
    if window is not None:
        mask = mask.triu(context - new - window + 1)
    assert prefill.seen_pairs(new, context, window) == int(mask.sum())


def test_gated_activation():
    """3 tokens of width 5: gate, up and output once; silu takes 4 operations an element with the product."""
    cost = gated_activation.cost(3, 5)
    assert (cost.bytes_min, cost.flops) == (3 * 3 * 5 * 2, 60)


def test_rope():
    """2 tokens, 3 heads of 8 of which 4 channels rotate: 2 pairs a head, 6 flops a pair."""
    cost = rope.cost(2, 3, 8, 4)
    assert cost.flops == 2 * 3 * 2 * 6
    assert cost.bytes_min == 2 * (2 * 3 * 8 * 2) + 2 * (2 * 2 * 4) + 2 * 8  # rows, table rows, positions


def test_kv_store():
    """One of 3 tokens skipped: 2 tokens · (k and v) · (read and write) · 2 heads of 4 in bf16, and 3 slots."""
    cost = kv_store.cost(3, 2, 4, 16, skipped=1)
    assert (cost.bytes_min, cost.flops) == (2 * 2 * 2 * 8 * 2 + 24, 0)


def test_rounding_up():
    assert [next_power_of_2(number) for number in (0, 1, 2, 3, 128, 129)] == [1, 1, 2, 4, 128, 256]
    assert [ceil_div(amount, 4) for amount in (0, 1, 4, 5)] == [0, 1, 1, 2]
