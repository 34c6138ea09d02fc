"""The cost formulas against what the interpreted kernels move and compute, and against cases done by hand."""

import pytest
import torch
from kernel_checks import case_id, paged_cache

from wholecurve.kernels.cost import Cost, ceil_div, next_power_of_2
from wholecurve.kernels.decode_attention import decode_attention
from wholecurve.kernels.decode_attention import spec as decode_spec
from wholecurve.kernels.kv_store import spec as kv_store_spec
from wholecurve.kernels.prefill_attention import spec as prefill_spec
from wholecurve.kernels.rms_norm import rms_norm
from wholecurve.kernels.rms_norm import spec as rms_norm_spec
from wholecurve.kernels.rope import spec as rope_spec
from wholecurve.kernels.swiglu import spec as swiglu_spec

SPECS = [rms_norm_spec, decode_spec, prefill_spec, rope_spec, swiglu_spec, kv_store_spec]


def counting():
    pytest.importorskip("triton")
    from wholecurve.profiling.counting import count

    return count()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("case", rms_norm_spec.TESTS, ids=case_id)
def test_rms_norm_bytes_are_counted_bytes(case, dtype, has_residual):
    x = torch.randn(case["num_tokens"], case["hidden"]).to(dtype)
    with counting() as counts:
        rms_norm(
            x,
            torch.ones(case["hidden"], dtype=dtype),
            1e-6,
            x.clone() if has_residual else None,
            form="interpret",
        )
    cost = rms_norm_spec.cost(**case, item_bytes=dtype.itemsize, has_residual=has_residual)
    assert counts.load_bytes + counts.store_bytes == cost.bytes_model
    assert counts.unique_load_bytes + counts.unique_store_bytes == cost.bytes_min
    assert counts.dot_flops == cost.flops_issued == 0


@pytest.mark.parametrize("has_residual", [False, True])
def test_rms_norm_flops_are_counted_flops(has_residual):
    """On shapes that fill their tiles: the interpreter counts the padding too."""
    for case in ({"num_tokens": 32, "hidden": 128}, {"num_tokens": 3, "hidden": 2048}):
        x = torch.randn(case["num_tokens"], case["hidden"])
        residual = x.clone() if has_residual else None
        with counting() as counts:
            rms_norm(x, torch.ones(case["hidden"]), 1e-6, residual, form="interpret")
        assert counts.elementwise == rms_norm_spec.cost(**case, item_bytes=4, has_residual=has_residual).flops


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("case", decode_spec.TESTS, ids=case_id)
def test_decode_attention_bytes_and_products_are_counted_ones(case, dtype):
    paged = (case["contexts"], case["block_size"], case["num_kv_heads"], case["head_dim"], dtype)
    k_cache, v_cache, block_table, context_lens, _, _ = paged_cache(*paged)
    q = torch.randn(len(case["contexts"]), case["num_heads"], case["head_dim"]).to(dtype)
    with counting() as counts:
        decode_attention(q, k_cache, v_cache, block_table, context_lens, 1.0, form="interpret")
    reach = block_table.shape[1] * case["block_size"]
    cost = decode_spec.cost(**case, item_bytes=dtype.itemsize, table_tokens=reach)
    assert counts.load_bytes + counts.store_bytes == cost.bytes_model
    assert counts.dot_flops == cost.flops_issued >= cost.flops
    splits = sum(ceil_div(context, decode_spec.SPLIT_TOKENS) for context in case["contexts"])
    partials = 2 * splits * case["num_heads"] * (case["head_dim"] + 2) * 4
    # the query of a sequence without context is an input by formula, the kernel does not read it
    unread = case["contexts"].count(0) * case["num_heads"] * case["head_dim"] * dtype.itemsize
    assert counts.unique_load_bytes + counts.unique_store_bytes == cost.bytes_min + partials - unread


def test_decode_attention_by_hand():
    """One sequence of 3 tokens, 4 query heads on 2 key-value heads of 64 in bf16, pages of 2."""
    cost = decode_spec.cost([3], 4, 2, 64, 2, item_bytes=2)
    kv, rows = 3 * 2 * 64 * 2 * 2, 2 * 4 * 64 * 2
    assert cost.bytes_min == kv + rows + 4 * (2 + 1)
    assert cost.flops == 2 * 3 * 4 * 64 * 2
    assert cost.flops / kv == 2  # 2 query heads share a key-value head, 2 bytes an element


def test_prefill_attention_by_hand():
    """Prefix 3, 2 new tokens: the rows see 4 and 5 keys. A sequence without new tokens costs nothing."""
    assert prefill_spec.seen_pairs(2, 5) == 9
    assert prefill_spec.seen_pairs(4, 4) == 10
    assert prefill_spec.seen_pairs(5, 3) == 6  # two of the five queries see nothing
    assert prefill_spec.seen_pairs(0, 7) == 0
    cost = prefill_spec.cost([(2, 5), (0, 100)], 4, 2, 64, 4, item_bytes=2)
    assert cost.flops == 4 * 9 * 4 * 64
    assert cost.bytes_min == 2 * 5 * 2 * 64 * 2 + 2 * 2 * 4 * 64 * 2 + 4 * 2


@pytest.mark.parametrize("new", [0, 1, 5, 9])
@pytest.mark.parametrize("context", [0, 1, 5, 9])
def test_seen_pairs_are_those_of_the_mask(new, context):
    mask = torch.ones(new, context).tril(context - new)
    assert prefill_spec.seen_pairs(new, context) == int(mask.sum())


def test_elementwise_kernels_by_hand():
    assert swiglu_spec.cost(3, 5, item_bytes=2) == Cost(bytes_min=3 * 3 * 5 * 2, flops=60)
    # 2 tokens, 3 heads of 8 of which 4 channels rotate: 2 pairs a head, 6 flops a pair
    rope_cost = rope_spec.cost(2, 3, 8, 4, item_bytes=2, distinct_positions=1)
    assert rope_cost == Cost(bytes_min=2 * 2 * 3 * 8 * 2 + 4 * 4 + 16, flops=2 * 3 * 2 * 6)
    # one of 3 tokens skipped: 2 tokens · (k and v) · (read and write) · 2 heads of 4 in bf16, 3 slots
    assert kv_store_spec.cost(3, 2, 4, item_bytes=2, skipped=1) == Cost(bytes_min=2 * 2 * 2 * 8 * 2 + 24, flops=0)


@pytest.mark.parametrize("spec", SPECS, ids=lambda module: module.__name__.split(".")[-2])
def test_costs_of_bench_cases_are_positive_and_lists_are_apart(spec):
    for case in spec.BENCH:
        cost = spec.cost(**{name: value for name, value in case.items() if name in cost_arguments(spec)}, item_bytes=2)
        assert cost.bytes_min > 0 and (cost.bytes_model is None or cost.bytes_model >= cost.bytes_min * 0.99)
        assert case not in spec.TESTS


def cost_arguments(spec):
    return spec.cost.__code__.co_varnames[: spec.cost.__code__.co_argcount]


def test_next_power_of_2():
    assert [next_power_of_2(number) for number in (0, 1, 2, 3, 128, 129)] == [1, 1, 2, 4, 128, 256]
