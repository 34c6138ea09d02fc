import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import DTYPES, case_id, require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.fp8_quantize import dequantize, fp8_quantize
from wholecurve.kernels.fp8_quantize.spec import TESTS
from wholecurve.kernels.fp8_quantize.subject import SUBJECT

FORMS = ("reference", "cpu", "interpret")
FP8 = torch.float8_e4m3fn
SMALLEST_NORMAL = 2.0**-126


class TestFp8Quantize(KernelSuite):
    kernel = "fp8_quantize"
    mutants = {
        "no smallest scale": (
            "tl.maximum(tl.div_rn(largest, 448.0), 1.1754943508222875e-38)",
            "tl.div_rn(largest, 448.0)",
        ),
        "amax over the neighbouring row": (
            "(columns < in_features)",
            "((columns < in_features) | (rows < num_rows - 1))",
        ),
        "maximum of values": (
            "tl.where(values == values, tl.abs(values), float",
            "tl.where(values == values, values, float",
        ),
        "powers of two cut off": ("+ 0x7FFFFF) &", ") &"),
        "always a power up": ("+ 0x7FFFFF) &", "+ 0x800000) &"),
        "largest of e4m3fnuz": ("tl.div_rn(largest, 448.0)", "tl.div_rn(largest, 240.0)"),
        "one scale per program": (
            "tl.max(tl.max(magnitude, axis=2), axis=1)",
            "tl.zeros([BLOCKS], tl.float32) + tl.max(magnitude)",
        ),
        "scales of padding rows": ("mask=blocks < tl.cdiv(num_rows, BLOCK_M)", "mask=blocks >= 0"),
        "32-bit rows": ("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    }


def row(*values, width=128):
    """[1, width] float32 that starts with these values."""
    x = torch.zeros(1, width)
    x[0, : len(values)] = torch.tensor(values)
    return x


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale_format", ["float32", "ue8m0"])
def test_block_of_zeros_has_a_finite_scale(form, scale_format):
    require_form(form)
    for block in ((1, 128), (2, 2)):
        q, scales = fp8_quantize(torch.zeros(4, 256), block, scale_format, form=form)
        assert (q.float() == 0).all() and (scales == SMALLEST_NORMAL).all()
        assert (dequantize(q, scales, block) == 0).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale_format", ["float32", "ue8m0"])
def test_scale_of_the_smallest_numbers_does_not_underflow(form, scale_format):
    require_form(form)
    assert torch.tensor(1e-45) / 448 == 0  # what a scale without a floor would be
    for smallest in (1e-45, 1e-40, 448 * 2.0**-127):
        q, scales = fp8_quantize(row(smallest), scale_format=scale_format, form=form)
        assert scales.item() == SMALLEST_NORMAL
        assert dequantize(q, scales)[0, 0].item() == pytest.approx(smallest, abs=2.0**-136)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale_format", ["float32", "ue8m0"])
def test_scale_of_the_largest_number_is_finite(form, scale_format):
    require_form(form)
    q, scales = fp8_quantize(row(3.4e38), scale_format=scale_format, form=form)
    assert scales.isfinite().all() and dequantize(q, scales.double())[0, 0].item() == pytest.approx(3.4e38, rel=2.0**-4)


@pytest.mark.parametrize("form", FORMS)
def test_known_values(form):
    require_form(form)
    x = torch.cat([row(448.0), row(1e-3)], dim=1)
    q, scales = fp8_quantize(x, form=form)
    assert q.dtype == FP8 and q.shape == (1, 256) and scales.dtype == torch.float32
    assert scales[0, 0] == 1.0 and scales[0, 1].item() == pytest.approx(2.232e-6, rel=1e-3)
    assert q[0, 0].item() == q[0, 128].item() == 448.0
    assert dequantize(q, scales)[0, 128].item() == pytest.approx(1e-3, rel=1e-6)
    _, rounded_up = fp8_quantize(x, scale_format="ue8m0", form=form)
    assert rounded_up.tolist() == [[1.0, 2.0**-18]]  # 3.815e-6


@pytest.mark.parametrize("form", FORMS)
def test_powers_of_two_stay(form):
    """A scale that is one already is not rounded up, and an amax that is one comes back exactly."""
    require_form(form)
    for power in (-120, -18, -1, 0, 1, 7, 100):
        q, scales = fp8_quantize(row(448 * 2.0**power), scale_format="ue8m0", form=form)
        assert scales.item() == 2.0**power and q[0, 0].item() == 448
        q, scales = fp8_quantize(row(2.0**power, -(2.0**power) / 4), scale_format="ue8m0", form=form)
        assert dequantize(q, scales)[0, :2].tolist() == [2.0**power, -(2.0**power) / 4]


@pytest.mark.parametrize("form", FORMS)
def test_rounds_to_nearest_even(form):
    require_form(form)
    halfway = [17.0, 19.0, -17.0, -19.0, 2.0**-10, 3 * 2.0**-10, 432.0, 416.0, -432.1]
    q, scales = fp8_quantize(row(448.0, *halfway), form=form)
    assert scales.item() == 1.0
    assert q[0, 1 : len(halfway) + 1].tolist() == [16.0, 20.0, -16.0, -20.0, 0.0, 2.0**-8, 448.0, 416.0, -448.0]


@pytest.mark.parametrize("case", TESTS, ids=case_id)
def test_forms_have_the_same_bits(case):
    require_form("interpret")
    for dtype in DTYPES:
        arguments = SUBJECT.arguments({**case, "dtype": str(dtype).removeprefix("torch.")})
        (q, scales), *others = (fp8_quantize(**arguments, form=form) for form in FORMS)
        for other_q, other_scales in others:
            assert torch.equal(scales, other_scales) and torch.equal(q.view(torch.uint8), other_q.view(torch.uint8))


@pytest.mark.parametrize("scale_format", ["float32", "ue8m0"])
@pytest.mark.parametrize(
    ("shape", "block"), [((150, 2051), (1, 128)), ((700, 1000), (32, 32)), ((300, 2200), (128, 128))]
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_cpu_form_has_the_same_bits_in_parts(shape, block, scale_format):
    """Sizes beyond what it takes at once, NaN and infinities among them."""
    torch.manual_seed(0)
    for dtype in DTYPES:
        x = (torch.randn(shape) * torch.exp2(torch.randint(-100, 12, (shape[0], 1)))).to(dtype)
        x[::41, ::57], x[7::53, 3::91] = torch.nan, -torch.inf
        (q, scales), (other_q, other_scales) = (
            fp8_quantize(x, block, scale_format, form=form) for form in ("reference", "cpu")
        )
        assert torch.equal(scales, other_scales) and torch.equal(q.view(torch.uint8), other_q.view(torch.uint8))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("block", "width"), [((1, 128), 129), ((1, 128), 200), ((32, 32), 65), ((128, 128), 200)])
def test_what_lies_beside_a_partial_block_does_not_count(form, block, width):
    require_form(form)
    torch.manual_seed(0)
    surroundings = torch.full((40, width + 7), 1e30)
    x = surroundings[3:36, 5 : width + 5]
    x.copy_(torch.randn(33, width))
    q, scales = fp8_quantize(x, block, form=form)
    rows, columns = (range(0, size, step) for size, step in zip(x.shape, block))
    largest = [[x[r : r + block[0], c : c + block[1]].abs().max().item() for c in columns] for r in rows]
    assert torch.equal(scales, torch.tensor(largest) / 448)
    assert torch.equal(dequantize(q, scales, block), dequantize(*fp8_quantize(x.contiguous(), block, form=form), block))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale_format", ["float32", "ue8m0"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_block_with_a_bad_number_is_nan_and_alone(form, scale_format, bad):
    require_form(form)
    x = torch.randn(3, 256)
    x[1, 5] = bad
    q, scales = fp8_quantize(x, scale_format=scale_format, form=form)
    assert scales.isinf().tolist() == [[False, False], [True, False], [False, False]]
    nan = dequantize(q, scales).isnan()
    assert nan[1, :128].all() and nan.sum() == 128


@pytest.mark.parametrize("form", FORMS)
def test_a_row_does_not_depend_on_its_batch(form):
    require_form(form)
    x = torch.randn(37, 300).bfloat16()
    q, scales = fp8_quantize(x, form=form)
    for rows in ([0], [36], [5, 20, 36]):
        some_q, some_scales = fp8_quantize(x[rows], form=form)
        assert torch.equal(some_scales, scales[rows])
        assert torch.equal(some_q.view(torch.uint8), q[rows].view(torch.uint8))


@pytest.mark.parametrize("form", FORMS)
def test_view_at_an_odd_address(form):
    require_form(form)
    buffer = torch.randn(4 * 128 + 1).bfloat16()
    x = buffer[1:].view(4, 128)
    q, scales = fp8_quantize(x, form=form)
    wanted_q, wanted_scales = fp8_quantize(x.clone(), form=form)
    assert torch.equal(scales, wanted_scales) and torch.equal(q.view(torch.uint8), wanted_q.view(torch.uint8))


@settings(max_examples=50)
@given(
    exponents=st.lists(st.integers(-100, 100), min_size=3, max_size=3),
    scale_format=st.sampled_from(["float32", "ue8m0"]),
    seed=st.integers(0, 2**20),
)
def test_error_is_half_a_step(exponents, scale_format, seed):
    """Of the number, or of the smallest numbers of its block; a ue8m0 scale is the power of two just above."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 260, generator=generator) * torch.exp2(torch.tensor(exponents).float())[:, None]
    q, scales = fp8_quantize(x, (1, 64), scale_format)
    step = scales.double().repeat_interleave(64, dim=1)[:, :260]
    error = (dequantize(q, scales.double(), (1, 64)) - x.double()).abs()
    assert (error <= (2.0**-4 * x.double().abs()).maximum(2.0**-10 * step) * (1 + 2.0**-20)).all()
    if scale_format == "ue8m0":
        exact = fp8_quantize(x, (1, 64))[1]
        assert ((scales >= exact) & (scales < 2 * exact)).all() and (torch.frexp(scales).mantissa == 0.5).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 3, 4)}, "x must be \\[rows, in_features\\]"),
        ({"x": torch.ones(2, 3).double()}, "it is torch.float64"),
        ({"x": torch.ones(2, 3).int()}, "it is torch.int32"),
        ({"x": torch.ones(2, 8)[:, ::2]}, "last dimension of x is strided"),
        ({"x": torch.ones(4, 2).T}, "last dimension of x is strided"),
        ({"block": (1, 96)}, "two powers of two, it is \\(1, 96\\)"),
        ({"block": (0, 128)}, "two powers of two"),
        ({"block": (128,)}, "two powers of two"),
        ({"scale_format": "e5m2"}, "scale_format 'e5m2' is not one of float32, ue8m0"),
        ({"form": "gpu"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    with pytest.raises(ValueError, match=message):
        fp8_quantize(**{"x": torch.ones(2, 4)} | change)


def test_triton_form_refuses_blocks_that_fit_no_program():
    require_form("interpret")
    x = torch.ones(1, 8)
    fp8_quantize(x, (256, 256))
    with pytest.raises(ValueError, match="blocks up to 16384"):
        fp8_quantize(x, (256, 256), form="interpret")
