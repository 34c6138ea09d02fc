"""Upper bounds against numbers computed by hand on a model small enough for that."""

import pytest

from wholecurve.models.bounds import Ceilings, decode_bound, prefill_bound
from wholecurve.models.config import ModelConfig

# layer: q 8·8, k and v 8·4 each, o 8·8, MLP 3·8·10 = 432 matrix elements; norms 16; head 20·8; last norm 8
TOY = ModelConfig(20, 8, 10, 1, 2, 1, 4, 1e-5, 1e4, 1000, True)
WEIGHT_BYTES = 2 * (432 + 16 + 160 + 8)
KV_BYTES = 2 * (2 * 4)
ROW_FLOPS = 2 * (432 + 160)
KEY_FLOPS = 4 * 2 * 4
PREFILL_FLOPS_6 = 2 * 6 * 432 + KEY_FLOPS * 21 + 2 * 160
NEVER = 1e30


def test_decode_is_bound_by_reads_when_compute_is_free():
    """Context 6 + 8 / 2 = 10; of 8 output tokens the first comes from the prefill."""
    bound = decode_bound(TOY, Ceilings(1e6, NEVER), 2, 3, prompt_tokens=6, output_tokens=8)
    read = WEIGHT_BYTES + 3 * 10 * KV_BYTES
    assert bound["decode_speed_tok_per_s"] == pytest.approx(1e6 / read, rel=1e-12)
    assert bound["output_throughput_tok_per_s"] == pytest.approx(8 / 7 * 3 * 1e6 / read, rel=1e-12)


def test_decode_is_bound_by_compute_when_reads_are_free():
    """The prefill costs throughput, not the speed of a user."""
    bound = decode_bound(TOY, Ceilings(NEVER, 1e6), 2, 3, prompt_tokens=6, output_tokens=8)
    row = ROW_FLOPS + 10 * KEY_FLOPS
    assert bound["decode_speed_tok_per_s"] == pytest.approx(1e6 / (3 * row), rel=1e-12)
    token = 7 / 8 * row + PREFILL_FLOPS_6 / 8
    assert bound["output_throughput_tok_per_s"] == pytest.approx(1e6 / token, rel=1e-12)


def test_a_request_of_one_token_is_its_prefill():
    bound = decode_bound(TOY, Ceilings(1e6, 1e6), 2, 3, prompt_tokens=6, output_tokens=1)
    assert bound["output_throughput_tok_per_s"] == pytest.approx(1e6 / PREFILL_FLOPS_6, rel=1e-12)


def test_prefill_is_bound_by_the_slower_of_reads_and_compute():
    reads = prefill_bound(TOY, Ceilings(1e3, NEVER), 2, 6)
    assert reads == {"input_throughput_tok_per_s": pytest.approx(6 * 1e3 / WEIGHT_BYTES, rel=1e-12)}
    compute = prefill_bound(TOY, Ceilings(NEVER, 1e3), 2, 6)
    assert compute == {"input_throughput_tok_per_s": pytest.approx(6 * 1e3 / PREFILL_FLOPS_6, rel=1e-12)}
    both = prefill_bound(TOY, Ceilings(1e3, 1e3), 2, 6)
    assert both == min(reads, compute, key=lambda bound: bound["input_throughput_tok_per_s"])


def test_more_users_are_never_faster_each_and_never_slower_together():
    bounds = [decode_bound(TOY, Ceilings(1e6, 3e6), 2, c, 30, 20) for c in (1, 2, 4, 8, 16, 32, 64)]
    speeds = [bound["decode_speed_tok_per_s"] for bound in bounds]
    together = [bound["output_throughput_tok_per_s"] for bound in bounds]
    assert speeds == sorted(speeds, reverse=True) and together == sorted(together)
    # both ceilings are met on the way: reads at the start, compute at the end
    assert speeds[0] > speeds[-1] * 2 and together[-1] == pytest.approx(together[-2])


@pytest.mark.parametrize("faster", [Ceilings(2e6, 1e6), Ceilings(1e6, 2e6), Ceilings(2e6, 2e6)])
def test_a_better_machine_never_lowers_a_bound(faster):
    base = Ceilings(1e6, 1e6)
    for load in (1, 4, 16, 64):
        before, after = (decode_bound(TOY, ceilings, 2, load, 30, 20) for ceilings in (base, faster))
        assert all(after[name] >= before[name] for name in before)
        before, after = (prefill_bound(TOY, ceilings, 2, load) for ceilings in (base, faster))
        assert all(after[name] >= before[name] for name in before)


def test_longer_contexts_and_wider_numbers_cost_speed():
    ceilings = Ceilings(1e6, NEVER)
    short, long = (decode_bound(TOY, ceilings, 2, 4, prompt, 20) for prompt in (10, 1000))
    assert long["decode_speed_tok_per_s"] < short["decode_speed_tok_per_s"]
    half, full = (decode_bound(TOY, ceilings, itemsize, 4, 10, 20) for itemsize in (2, 4))
    assert full["decode_speed_tok_per_s"] == pytest.approx(half["decode_speed_tok_per_s"] / 2)
