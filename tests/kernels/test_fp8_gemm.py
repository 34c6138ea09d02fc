import re

import pytest
import torch
from kernel_checks import case_id, require_form
from kernel_suite import HAS_TRITON, STATIC_TARGETS, KernelSuite
from offsets import offsets_that_may_wrap

from wholecurve.kernels.fp8_gemm import fp8_gemm
from wholecurve.kernels.fp8_gemm.spec import BENCH, CONFIGS, TESTS, cost
from wholecurve.kernels.fp8_gemm.subject import SUBJECT
from wholecurve.kernels.fp8_quantize import dequantize, fp8_quantize

FORMS = ("reference", "cpu", "interpret")
FP8 = torch.float8_e4m3fn
FOR_TMA = [case for case in TESTS if case["in_features"] % 16 == 0 and 0 not in case.values()]
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")


class TestFp8Gemm(KernelSuite):
    kernel = "fp8_gemm"
    mutants = {
        "scales of the first rows of b": ("tl.int64) * BLOCK_N // BLOCK_K * b_scales_stride_n", "tl.int64) * 0"),
        "scales of b of the first block": ("b_scale_row + wide_block * b_scales_stride_k", "b_scale_row"),
        "scales of a of the first block": (" + wide_block * a_scales_stride_k", ""),
        "scales of a as rows lie": (
            "rows * a_scales_stride_t + wide_block * a_scales_stride_k",
            "rows * tl.cdiv(in_features, BLOCK_K) + wide_block",
        ),
        "sums are scaled again": (
            "acc += tl.dot(left, tl.trans(right)) * scales[:, None]",
            "acc = tl.dot(left, tl.trans(right), acc) * scales[:, None]",
        ),
        "end of a row unmasked": ("lanes < in_features - block * BLOCK_K", "lanes < BLOCK_K"),
        "groups of tiles all full": ("tl.minimum(tiles_m - group * GROUP_M, GROUP_M)", "GROUP_M"),
        "out_features unmasked": ("columns < out_features", "columns < tiles_n * BLOCK_N"),
        "tokens unmasked": (
            "row_inside, column_inside = rows < num_tokens,",
            "row_inside, column_inside = rows < num_tokens + 1,",
        ),
        "32-bit rows": ("rows = tile_m.to(tl.int64)", "rows = tile_m"),
        "32-bit out_features": ("columns = tile_n.to(tl.int64)", "columns = tile_n"),
    }


def operands(num_tokens, out_features, in_features, seed=0):
    """Random a, a_scales, b, b_scales."""
    case = {"num_tokens": num_tokens, "out_features": out_features, "in_features": in_features, "dtype": "float32"}
    arguments = SUBJECT.arguments(case, seed=seed)
    return [arguments[name] for name in ("a", "a_scales", "b", "b_scales")]


def ones(rows, columns):
    return torch.ones(rows, columns).to(FP8)


@pytest.mark.parametrize("form", FORMS)
def test_known_values(form):
    """2 · 3 · (128 · 1 · 0.5 + 2 · 1 · 0.25) for the first 128 rows of b, 4 times that after them."""
    require_form(form)
    a_scales, b_scales = torch.tensor([[2.0, 2.0]]), torch.tensor([[1.5, 0.75], [6.0, 3.0]])
    out = fp8_gemm(ones(1, 130), a_scales, ones(129, 130), b_scales, torch.float32, form=form)
    assert out.shape == (1, 129) and out[0, :128].unique().tolist() == [387.0] and out[0, 128] == 4 * 387.0


@pytest.mark.parametrize("form", FORMS)
def test_long_sum_of_ones_is_exact(form):
    require_form(form)
    blocks = torch.ones(1, 128)
    for dtype in (torch.float32, torch.bfloat16):
        out = fp8_gemm(ones(1, 16384), blocks, ones(1, 16384), blocks, dtype, form=form)
        assert out.dtype == dtype and out.item() == 16384


@pytest.mark.parametrize("form", FORMS)
def test_default_output_is_bfloat16(form):
    require_form(form)
    assert fp8_gemm(*operands(2, 3, 128), form=form).dtype == torch.bfloat16


@pytest.mark.parametrize("form", FORMS)
def test_scales_may_lie_in_any_order(form):
    require_form(form)
    a, a_scales, b, b_scales = operands(5, 300, 384)
    wanted = fp8_gemm(a, a_scales, b, b_scales, torch.float32, form=form)

    def padded(scales):
        """With room behind each row, as TMA would want it for other sizes."""
        wide = torch.full((scales.shape[0], scales.shape[1] + 3), torch.nan)
        wide[:, : scales.shape[1]] = scales
        return wide[:, : scales.shape[1]]

    for lay in (lambda scales: scales.T.contiguous().T, padded, lambda scales: padded(scales.T.contiguous()).T):
        assert torch.equal(fp8_gemm(a, lay(a_scales), b, lay(b_scales), torch.float32, form=form), wanted)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("in_features", [129, 200])
def test_what_lies_beside_the_rows_does_not_count(form, in_features):
    require_form(form)
    a, a_scales, b, b_scales = operands(3, 5, in_features)
    wanted = fp8_gemm(a, a_scales, b, b_scales, torch.float32, form=form)

    def surrounded(matrix):
        wide = torch.full((matrix.shape[0], 256), torch.nan).to(FP8)
        wide[:, : matrix.shape[1]] = matrix
        return wide[:, : matrix.shape[1]]

    out = fp8_gemm(surrounded(a), a_scales, surrounded(b), b_scales, torch.float32, form=form)
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("in_features", [128, 272, 1536])
@pytest.mark.parametrize("form", ["cpu", *(pytest.param(name, marks=needs_triton) for name in CONFIGS)])
def test_a_row_does_not_depend_on_its_batch(form, in_features):
    plan = CONFIGS.get(form)
    a, a_scales, b, b_scales = operands(133, 72, in_features)

    def product(rows):
        arguments = (a[rows], a_scales[rows], b, b_scales, torch.float32)
        return fp8_gemm(*arguments, form="interpret" if plan else form, plan=plan)

    together = product(list(range(133)))
    for rows in ([0], [132], [5, 20, 131], list(range(1, 70))):
        assert torch.equal(product(rows), together[rows])


@needs_triton
def test_every_plan_sums_in_the_same_order():
    arguments = operands(133, 200, 1536)
    first, *others = (fp8_gemm(*arguments, torch.float32, form="interpret", plan=plan) for plan in CONFIGS.values())
    for other in others:
        assert torch.equal(other, first)


@needs_triton
@pytest.mark.parametrize("case", FOR_TMA, ids=case_id)
@pytest.mark.parametrize("plan", [name for name in CONFIGS if CONFIGS[name]["tma"]])
def test_tiles_through_descriptors_agree(case, plan):
    """On every edge that a descriptor can describe: the gate, the count, and the bits of the path with pointers."""
    from wholecurve.kernels.launch import run_all
    from wholecurve.profiling.checks import check_case
    from wholecurve.profiling.counting import count

    config = CONFIGS[plan]
    assert check_case(SUBJECT, case, "interpret", config=config)
    arguments = SUBJECT.arguments(case)
    launches, out = SUBJECT.launches(arguments, config)
    with count() as counts:
        run_all(launches, interpreted=True)
    formula = cost(**case, config=config)
    assert (counts.load_bytes, counts.store_bytes) == (formula.load_bytes, formula.store_bytes)
    assert counts.dot_flops == formula.flops_issued
    assert torch.equal(out, fp8_gemm(**arguments, form="interpret", plan=config | {"tma": False}))


@needs_triton
@pytest.mark.parametrize("case", FOR_TMA[1:], ids=case_id)
@pytest.mark.parametrize("plan", CONFIGS)
def test_formula_is_count_for_every_plan(case, plan):
    from wholecurve.kernels.launch import run_all
    from wholecurve.profiling.counting import count

    launches, _ = SUBJECT.launches(SUBJECT.arguments(case), CONFIGS[plan])
    with count() as counts:
        run_all(launches, interpreted=True)
    formula = cost(**case, config=CONFIGS[plan])
    assert counts.load_bytes + counts.store_bytes == formula.bytes_model
    assert counts.dot_flops == formula.flops_issued


@needs_triton
def test_own_choice_of_a_plan():
    """Descriptors where the device has them and the rows fit, and never by the number of tokens."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    def uses_tma(case, device):
        (launch,), _ = SUBJECT.launches(SUBJECT.arguments(case, device))
        return isinstance(launch.arguments[0], TensorDescriptor) and launch.options["TMA"]

    case = {"num_tokens": 4, "out_features": 8, "in_features": 272}
    assert uses_tma(case, "meta") and not uses_tma(case, "cpu")
    assert not uses_tma(case | {"in_features": 200}, "meta")
    assert not uses_tma(case | {"num_tokens": 0}, "meta") and not uses_tma(case | {"in_features": 0}, "meta")
    tiles = set()
    for num_tokens in (1, 64, 4096):
        (launch,), _ = SUBJECT.launches(SUBJECT.arguments(case | {"num_tokens": num_tokens}, "meta"))
        tiles.add((launch.options["BLOCK_M"], launch.options["BLOCK_N"], launch.options["num_warps"]))
    assert len(tiles) == 1


@needs_triton
@pytest.mark.parametrize("in_features", [129, 200])
def test_plan_with_descriptors_refuses_rows_it_cannot_describe(in_features):
    a, a_scales, b, b_scales = operands(3, 5, in_features)
    with pytest.raises(ValueError, match=r"multiples of 16 bytes, they have strides \(\d+, 1\)"):
        fp8_gemm(a, a_scales, b, b_scales, form="interpret", plan=CONFIGS["128x128 tma"])


@needs_triton
@pytest.mark.parametrize("plan", CONFIGS)
@pytest.mark.parametrize("target", STATIC_TARGETS)
def test_production_code_uses_fp8_matrix_units(plan, target):
    """Without spills; every product of a block starts from zero, so that it ends in a float32 sum."""
    from wholecurve.profiling.compile import compile_launch
    from wholecurve.profiling.resources import resources

    small, large = BENCH["64x2112x7168"], BENCH["4096x24576x1536"]
    for case in (small, large, large | {"column_major": False}):
        (launch,), _ = SUBJECT.launches(SUBJECT.arguments(case, "meta"), CONFIGS[plan])
        compiled = compile_launch(launch, target)
        assert offsets_that_may_wrap(compiled.asm["ttir"]) == []
        found = resources(compiled, target)
        assert found.spill_bytes == found.stack_bytes == 0
        assert ("tma_load" in found.copies) == CONFIGS[plan]["tma"]
        pattern = {
            "sm_90": rf"wgmma\.mma_async\.sync\.aligned\.m64n{CONFIGS[plan]['block_n']}k32\.f32\.e4m3\.e4m3",
            "sm_100": r"tcgen05\.mma\.cta_group::1\.kind::f8f6f4",
        }[target]
        assert re.search(pattern, compiled.asm["ptx"])
        (start,) = re.findall(r"tt\.dot %\w+, %\w+, (%\w+)", compiled.asm["ttir"])
        assert re.search(rf"^\s*{start} = arith\.constant dense<0\.0", compiled.asm["ttir"], flags=re.MULTILINE)


@pytest.mark.parametrize("form", FORMS)
def test_product_of_what_was_quantised(form):
    """fp8 with a scale per block keeps 4 bits of each number: the product is off by some percent of its noise."""
    require_form(form)
    torch.manual_seed(0)
    x, weight = torch.randn(9, 500), torch.randn(150, 500)
    a, b = fp8_quantize(x), fp8_quantize(weight, (128, 128))
    out = fp8_gemm(*a, *b, torch.float32, form=form)
    exact = x.double() @ weight.double().T
    assert (out - exact).norm() / exact.norm() < 0.05
    wanted = dequantize(a[0], a[1].double()) @ dequantize(b[0], b[1].double(), (128, 128)).T
    assert torch.allclose(out.double(), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.ones(2, 3, 4).to(FP8)}, "a must be \\[rows, in_features\\]"),
        ({"a": torch.ones(2, 130)}, "a must be float8_e4m3fn, it is torch.float32"),
        ({"b": torch.ones(3, 130).to(torch.float8_e5m2)}, "b must be float8_e4m3fn"),
        ({"a": ones(2, 260)[:, ::2]}, "last dimension of a is strided"),
        ({"b": ones(130, 3).T}, "last dimension of b is strided"),
        ({"b": ones(3, 128)}, "a has 130 in_features but b has 128"),
        ({"a_scales": torch.ones(2, 1)}, "a_scales must be \\(2, 2\\) float32, they are \\(2, 1\\)"),
        ({"a_scales": torch.ones(2, 2).bfloat16()}, "a_scales must be"),
        ({"b_scales": torch.ones(3, 2)}, "b_scales must be \\(1, 2\\)"),
        ({"out_dtype": torch.float64}, "out_dtype must be"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    arguments = {"a": ones(2, 130), "a_scales": torch.ones(2, 2), "b": ones(3, 130), "b_scales": torch.ones(1, 2)}
    assert fp8_gemm(**arguments).tolist() == [[130.0] * 3] * 2
    with pytest.raises(ValueError, match=message):
        fp8_gemm(**arguments | change)
