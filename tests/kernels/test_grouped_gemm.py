import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import DTYPES, HALF_DTYPES, require_form
from kernel_suite import KernelSuite, case_id

from wholecurve.kernels.grouped_gemm import grouped_gemm
from wholecurve.kernels.grouped_gemm.spec import BENCH, CONFIGS, TESTS, expand_rows, num_slots
from wholecurve.kernels.grouped_gemm.subject import SUBJECT, eager, library
from wholecurve.kernels.moe_permute import moe_permute
from wholecurve.kernels.moe_unpermute import moe_unpermute
from wholecurve.profiling.checks import check_case

FORMS = ("reference", "cpu", "interpret")
NAN = torch.nan
every_form = pytest.mark.parametrize("form", FORMS)
BY_DESCRIPTORS = ("tma = has_tma(x.device) and fits_descriptors", "tma = fits_descriptors")


class TestGroupedGemm(KernelSuite):
    kernel = "grouped_gemm"
    mutants = {
        "32-bit rows": ("first_row.to(tl.int64) + tl.arange", "first_row + tl.arange"),
        "empty experts without a slot": ("(starts // BLOCK_M + experts <= slot)", "(starts // BLOCK_M <= slot)"),
        "the expert before": ("(starts // BLOCK_M + experts <= slot)", "(starts // BLOCK_M + experts < slot)"),
        "lanes behind the offsets taken for experts": ("<= slot) & (experts <= NUM_EXPERTS)", "<= slot)"),
        "tail left as it is": ("    if first_row >= end:", "    if (first_row >= end) | (expert == NUM_EXPERTS):"),
        "tail taken for another expert": (
            "summed = tl.where(expert < NUM_EXPERTS, in_features, 0)",
            "summed = in_features",
        ),
        "last slot missing": (
            "slots * triton.cdiv(out_features, block_n)",
            "(slots - 1) * triton.cdiv(out_features, block_n)",
        ),
        "the first expert's weights": ("matrix = weights + wide_expert * weights_stride_expert", "matrix = weights"),
        "features behind the last one": ("inside = depth < in_features - first", "inside = depth < in_features"),
        "first step alone": (
            "range(0, summed, BLOCK_K):\n            inside",
            "range(0, tl.minimum(summed, BLOCK_K), BLOCK_K):\n            inside",
        ),
        "columns unmasked": (
            "(row[:, None] < end) & (column[None, :] < out_features),\n    )",
            "(row[:, None] < end),\n    )",
        ),
        "sum starts again": ("acc = tl.dot(left, right, acc, ", "acc = tl.dot(left, right, "),
        "tiles in another order on x and weights": (
            "within % together, within // together",
            "within // together, within % together",
        ),
        "descriptors: the first expert's weights": (
            BY_DESCRIPTORS,
            ("expert * out_features + column_tile", "column_tile"),
        ),
        "descriptors: rows of the first tile": (
            BY_DESCRIPTORS,
            ("x.load([first_row, first])", "x.load([start, first])"),
        ),
        "descriptors: first column tile alone": (
            BY_DESCRIPTORS,
            ("out_features + column_tile * BLOCK_N", "out_features"),
        ),
    }


def offsets_of(rows):
    return torch.tensor([0, *itertools.accumulate(rows)], dtype=torch.int32)


@every_form
@pytest.mark.parametrize(
    "rows", [[0, 5, 0], [5, 0, 0], [0, 0, 5], [0, 2, 0, 3, 0], [1, 1, 1, 1], [0, 0], [3, 0, 0, 0, 70]], ids=str
)
@pytest.mark.parametrize("tail", [0, 3, 70])
def test_whole_numbers_are_exact(form, rows, tail):
    """Empty first, last and middle experts; what lies behind the last row comes out as 0 whatever it holds."""
    require_form(form)
    torch.manual_seed(0)
    x = torch.randint(-3, 4, (sum(rows) + tail, 8)).float()
    weights = torch.randint(-3, 4, (len(rows), 5, 8)).float()
    wanted = torch.cat([x.new_zeros(0, 5)] + [part @ w.T for part, w in zip(x[: sum(rows)].split(rows), weights)])
    x[sum(rows) :] = NAN
    weights[[count == 0 for count in rows]] = NAN  # nor do the weights of an expert without rows matter
    for dtype in (torch.float32, torch.bfloat16):
        out = grouped_gemm(x.to(dtype), weights.to(dtype), offsets_of(rows), form)
        assert out.dtype == dtype and torch.equal(out[: sum(rows)].float(), wanted) and not out[sum(rows) :].any()


@every_form
def test_nan_stays_in_its_row(form):
    require_form(form)
    x, weights = torch.ones(9, 8), torch.ones(3, 4, 8)
    x[3, 2] = NAN
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        out = grouped_gemm(x.to(dtype), weights.to(dtype), offsets_of([2, 3, 4]), form)
        assert out.isnan().any(dim=1).tolist() == [row == 3 for row in range(9)]


# not the interpreted form in fp32: a row's place in its tile decides how NumPy sums it
@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        *(("interpret", dtype) for dtype in HALF_DTYPES),
        *(pytest.param("cpu", dtype, marks=pytest.mark.bit_exact) for dtype in DTYPES),
    ],
    ids=str,
)
@pytest.mark.parametrize(("in_features", "out_features"), [(65, 33), (512, 520)])
def test_a_row_does_not_depend_on_its_batch(form, dtype, in_features, out_features):
    require_form(form)
    torch.manual_seed(0)
    x = torch.randn(40, in_features).to(dtype)
    weights = torch.randn(3, out_features, in_features).to(dtype)
    others = torch.randn(9, in_features).to(dtype)
    together = grouped_gemm(x, weights, offsets_of([0, 40, 0]), form)
    for before, first, count, behind in (
        (0, 39, 1, 0),
        (1, 3, 1, 1),
        (2, 0, 3, 4),
        (5, 8, 2, 0),
        (0, 5, 7, 2),
        (3, 1, 4, 1),
    ):
        rows = torch.cat([others[:before], x[first : first + count], others[9 - behind :]])
        out = grouped_gemm(rows, weights, offsets_of([before, count, behind]), form)
        assert torch.equal(out[before : before + count], together[first : first + count])


@every_form
def test_a_mixture_of_experts(form):
    """Permuted, two products, added up: what `transformers` computes expert by expert."""
    require_form(form)
    torch.manual_seed(0)
    num_experts, top_k, hidden, inner = 6, 2, 24, 16
    x, up, down = (
        torch.randn(11, hidden),
        torch.randn(num_experts, inner, hidden),
        torch.randn(num_experts, hidden, inner),
    )
    experts, shares = torch.randint(0, num_experts, (11, top_k)).int(), torch.rand(11, top_k)
    permuted, offsets, _, inverse = moe_permute(x, experts, num_experts, form)
    inside = F.silu(grouped_gemm(permuted, up, offsets, form))
    out = moe_unpermute(grouped_gemm(inside, down, offsets, form), inverse, shares, form)
    wanted = torch.zeros_like(x)
    for token, slot in itertools.product(range(11), range(top_k)):
        expert = experts[token, slot]
        wanted[token] += shares[token, slot] * (F.silu(x[token] @ up[expert].T) @ down[expert].T)
    assert torch.allclose(out, wanted, atol=1e-4, rtol=1e-4)


@every_form
def test_strided_operands(form):
    require_form(form)
    torch.manual_seed(0)
    buffer = torch.randn(7 * 13 + 1)
    x = buffer[1:].view(7, 13)[:, :9]
    weights = torch.randn(4, 6, 11)[::2, 1:, 2:]
    out = grouped_gemm(x, weights, offsets_of([3, 2]), form)
    assert torch.allclose(out, grouped_gemm(x.contiguous(), weights.contiguous(), offsets_of([3, 2]), form), atol=1e-5)


@settings(max_examples=30)
@given(data=st.data())
def test_every_row_gets_its_own_expert(data):
    """x and weights are numbers of rows and experts, so that each product names who made it."""
    rows = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=12))
    tail = data.draw(st.integers(0, 40))
    total = sum(rows)
    x = torch.stack([torch.arange(total + tail), torch.ones(total + tail)], dim=1).float()
    weights = torch.tensor([[[1.0, 1000.0 * (expert + 1)]] for expert in range(len(rows))])
    made = [1000 * (expert + 1) for expert, count in enumerate(rows) for _ in range(count)]
    wanted = [row + thousands for row, thousands in enumerate(made)] + [0] * tail
    for form in FORMS:
        require_form(form)
        assert grouped_gemm(x, weights, offsets_of(rows), form)[:, 0].tolist() == wanted


@pytest.mark.parametrize("tile_rows", [16, 64])
def test_slots_suffice_for_every_way_to_spread_rows(tile_rows):
    """Between the first slots of two experts lie at least the tiles of the first one."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        rows = torch.randint(0, 3 * tile_rows, (5,), generator=generator).tolist()
        starts = [0, *itertools.accumulate(rows)]
        firsts = [start // tile_rows + expert for expert, start in enumerate(starts)]
        firsts.append(num_slots(starts[-1], 5, tile_rows))
        for first, behind, count in zip(firsts, firsts[1:], rows):
            assert behind - first >= -(-count // tile_rows)


@pytest.mark.parametrize(("config", "dtype"), [*((name, "bfloat16") for name in CONFIGS), ("64x256 tma", "float32")])
def test_every_configuration_agrees_and_costs_what_the_formula_says(config, dtype):
    pytest.importorskip("triton")
    from wholecurve.profiling.counting import count

    for case in TESTS:
        case = case | {"dtype": dtype}
        if CONFIGS[config]["tma"] and (case["in_features"] % 8 or not SUBJECT.cost(case).store_bytes):
            with pytest.raises(ValueError, match="descriptors need"):
                SUBJECT.launches(SUBJECT.arguments(case), CONFIGS[config])
            continue
        with count() as counts:
            finding = check_case(SUBJECT, case, "interpret", config=CONFIGS[config])
        assert finding, finding
        cost = SUBJECT.cost(case, config=CONFIGS[config])
        found = (counts.load_bytes, counts.store_bytes, counts.dot_flops)
        assert found == (cost.load_bytes, cost.store_bytes, cost.flops_issued), case_id(case)


def test_descriptors_only_where_they_describe_the_operands():
    pytest.importorskip("triton")
    from wholecurve.kernels.grouped_gemm.kernel import fits_descriptors

    x, weights = torch.ones(4, 8).bfloat16(), torch.ones(2, 8, 8).bfloat16()
    assert fits_descriptors(x, weights)
    assert not fits_descriptors(torch.ones(4, 9).bfloat16()[:, :8], weights)  # rows of 18 bytes
    assert not fits_descriptors(torch.ones(33).bfloat16()[1:].view(4, 8), weights)  # 2 bytes off
    assert not fits_descriptors(x, torch.ones(4, 8, 8).bfloat16()[::2])  # another expert between two
    assert not fits_descriptors(x[:0], weights)


@pytest.mark.parametrize(("target", "instruction"), [("sm_90", "wgmma.mma_async"), ("sm_100", "tcgen05.mma")])
def test_production_uses_the_matrix_units_and_does_not_spill(target, instruction):
    pytest.importorskip("triton")
    from offsets import offsets_that_may_wrap

    from wholecurve.profiling.compile import compile_launch
    from wholecurve.profiling.resources import resources

    arguments = SUBJECT.arguments(BENCH["qwen3-gate-up-64"], "meta")
    for config in (None, CONFIGS["64x256"]):  # by descriptors and through pointers
        (launch,), _ = SUBJECT.launches(arguments, config)
        compiled = compile_launch(launch, target)
        assert instruction in compiled.asm["ptx"]
        assert ("cp.async.bulk.tensor" in compiled.asm["ptx"]) == (config is None)
        assert resources(compiled, target).spill_bytes == 0
        assert offsets_that_may_wrap(compiled.asm["ttir"]) == []


def test_routing_rules():
    rule = {"tokens": 5, "top_k": 3, "experts": 4}
    assert expand_rows([1, 2]) == [1, 2]
    assert expand_rows(rule | {"routing": "one"}) == [15, 0, 0, 0]
    assert expand_rows(rule | {"routing": "balanced"}) == [4, 4, 4, 3]
    assert expand_rows(rule | {"routing": "skewed"}) == [5, 5, 4, 1]
    for case in BENCH.values():
        rows = expand_rows(case["rows_per_expert"])
        rule = case["rows_per_expert"]
        assert (
            sum(rows) == rule["tokens"] * rule["top_k"] and max(rows) <= rule["tokens"] and len(rows) == rule["experts"]
        )


def test_cost_counts_the_weights_that_are_touched():
    sizes = dict(in_features=64, out_features=32)
    one, all_four = (SUBJECT.cost(dict(rows_per_expert=rows, **sizes)) for rows in ([8, 0, 0, 0], [2, 2, 2, 2]))
    assert all_four.bytes_min - one.bytes_min == 3 * 64 * 32 * 2 and one.flops == all_four.flops == 2 * 8 * 64 * 32


def test_baselines_agree():
    arguments = SUBJECT.arguments({"rows_per_expert": [3, 0, 5], "in_features": 32, "out_features": 16, "tail": 2})
    arguments["x"][8:] = 0
    own = grouped_gemm(**arguments, form="cpu")
    for baseline in (eager, library):
        assert torch.allclose(baseline(**arguments)[:8].float(), own[:8].float(), atol=0.02)


@every_form
@pytest.mark.parametrize("offsets", [[1, 2, 3], [0, 3, 2], [0, 2, 5], [0, -1, 2]], ids=str)
def test_refuses_offsets_that_are_none(form, offsets):
    require_form(form)
    with pytest.raises(IndexError, match="must rise from 0 to at most 4"):
        grouped_gemm(torch.ones(4, 8), torch.ones(2, 3, 8), torch.tensor(offsets).int(), form)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(8)}, "must be \\[rows, in_features\\]"),
        ({"x": torch.ones(4, 16)[:, ::2]}, "last dimension of x is strided"),
        ({"x": torch.ones(8, 4).T}, "last dimension of x is strided"),
        ({"weights": torch.ones(2, 3, 7)}, "weights must be \\[experts, out_features, 8\\]"),
        ({"weights": torch.ones(3, 8)}, "weights must be"),
        ({"weights": torch.ones(2, 8, 3).mT}, "last dimension of weights is strided"),
        ({"weights": torch.ones(2, 3, 8).half()}, "weights are torch.float16"),
        ({"offsets": torch.zeros(2).int()}, "offsets must be \\[3\\]"),
        ({"offsets": torch.zeros(3).long()}, "offsets must be"),
        ({"offsets": torch.zeros(6).int()[::2]}, "offsets must be"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    arguments = {"x": torch.ones(4, 8), "weights": torch.ones(2, 3, 8), "offsets": torch.tensor([0, 1, 4]).int()}
    with pytest.raises(ValueError, match=message):
        grouped_gemm(**(arguments | change))


def test_triton_form_refuses_other_dtypes():
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match=r"takes torch\.bfloat16"):
        grouped_gemm(torch.ones(1, 4).double(), torch.ones(1, 4, 4).double(), offsets_of([1]), "interpret")
