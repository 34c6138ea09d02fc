import pytest
import torch
from kernel_checks import DTYPES, require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.rms_norm import rms_norm
from wholecurve.kernels.rms_norm.spec import TESTS, cost

FORMS = ("reference", "cpu", "native", "interpret")


class TestRmsNorm(KernelSuite):
    kernel = "rms_norm"
    mutants = {
        "no eps": ("mean_square + eps", "mean_square"),
        "mean over the tile": ("/ hidden\n", "/ BLOCK\n"),
        "32-bit rows": ("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        "variance before the sum": (
            "wide = values.to(tl.float32)",
            "wide = tl.load(x + rows * x_stride + columns, mask=inside, other=0.0).to(tl.float32)",
        ),
        "columns unmasked": ("(rows < num_tokens) & (columns < hidden)", "(rows < num_tokens) & (columns < BLOCK)"),
        "rows unmasked": ("inside = (rows < num_tokens) &", "inside = (rows < num_tokens + ROWS) &"),
        "no weight": (".to(tl.float32) * scale", ".to(tl.float32)"),
        "gemma without its one": ("(1.0 + scale)", "scale"),
        "variance over a strided view": (
            "tl.sum(wide * wide,",
            "tl.sum(tl.where(columns % 2 == 0, 2.0, 0.0) * wide * wide,",
        ),
        "residual not rounded": (
            "(values.to(tl.float32) + other.to(tl.float32)).to(values.dtype)\n",
            "values.to(tl.float32) + other.to(tl.float32) * 1.002\n",
        ),
        "stride of the other tensor": ("residual + rows * residual_stride", "residual + rows * x_stride"),
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")  # in the padding rows of the tile
def test_known_values(form):
    require_form(form)
    two = torch.ones(2)
    assert rms_norm(torch.tensor([[3.0, 4.0]]), two, 0.0, form=form).tolist() == [
        pytest.approx([0.848528, 1.131371], abs=1e-6)
    ]
    normed, summed = rms_norm(torch.tensor([[2.0, 3.0]]), two, 0.0, torch.ones(1, 2), form=form)
    assert summed.tolist() == [[3.0, 4.0]] and normed[0].tolist() == pytest.approx([0.848528, 1.131371], abs=1e-6)
    assert rms_norm(torch.zeros(1, 2), two, 1e-6, form=form).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_zero_row_without_eps_is_nan(form, dtype):
    require_form(form)
    assert rms_norm(torch.zeros(1, 2, dtype=dtype), torch.ones(2, dtype=dtype), 0.0, form=form).isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_gemma_weight_is_an_offset_from_one(form):
    require_form(form)
    x = torch.randn(3, 8)
    assert torch.allclose(
        rms_norm(x, torch.zeros(8), 1e-6, form=form, style="gemma"),
        rms_norm(x, torch.ones(8), 1e-6, form=form),
    )


@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_cast_order_of_each_style(form, weight_dtype):
    require_form(form)
    torch.manual_seed(0)
    x, weight = torch.randn(40, 512).bfloat16(), torch.randn(512).to(weight_dtype)
    llama = rms_norm(x, weight, 1e-6, form=form)
    gemma = rms_norm(x, weight - 1, 1e-6, form=form, style="gemma")
    assert llama.dtype == gemma.dtype == torch.bfloat16
    exact = x.double() * torch.rsqrt(x.double().square().mean(1, keepdim=True) + 1e-6)
    once = (exact * (1 + (weight - 1).double())).bfloat16()
    twice = (exact.bfloat16().double() * weight.double()).bfloat16()
    assert (llama != twice).float().mean() < 0.001 and (gemma != once).float().mean() < 0.001
    assert (twice != (exact * weight.double()).bfloat16()).float().mean() > 0.1  # the orders do differ


@pytest.mark.parametrize("style", ["llama", "gemma"])
@pytest.mark.parametrize("form", FORMS)
def test_no_weight_is_a_weight_of_one(form, style):
    require_form(form)
    torch.manual_seed(0)
    x, one = torch.randn(5, 96).bfloat16(), torch.full((96,), 1.0 if style == "llama" else 0.0).bfloat16()
    for plain, weighted in zip(
        rms_norm(x, None, 1e-6, x, form=form, style=style), rms_norm(x, one, 1e-6, x, form=form, style=style)
    ):
        assert torch.equal(plain, weighted)


@pytest.mark.parametrize("form", FORMS)
def test_variance_comes_from_the_rounded_sum(form):
    require_form(form)
    torch.manual_seed(0)
    x, residual, weight = (
        torch.randn(8, 2).bfloat16(),
        torch.randn(8, 2).bfloat16() / 64,
        torch.ones(2).bfloat16(),
    )
    normed, summed = rms_norm(x, weight, 1e-6, residual, form=form)
    assert torch.equal(summed, (x.float() + residual.float()).bfloat16())
    assert torch.equal(normed, rms_norm(summed, weight, 1e-6, form=form))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_the_residual_may_be_x_itself(form, dtype):
    require_form(form)
    x = torch.randn(4, 6).to(dtype)
    before = x.clone()
    _, summed = rms_norm(x, torch.ones(6, dtype=dtype), 1e-6, x, form=form)
    assert torch.equal(summed, 2 * before) and torch.equal(x, before)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_does_not_depend_on_its_batch(form):
    require_form(form)
    torch.manual_seed(0)
    for dtype in DTYPES:
        x, weight = torch.randn(37, 576).to(dtype), torch.randn(576).to(dtype)
        together = rms_norm(x, weight, 1e-6, form=form)
        assert torch.equal(together, rms_norm(x, weight, 1e-6, form=form))
        for rows in ([0], [36], [5, 20, 36]):
            assert torch.equal(together[rows], rms_norm(x[rows], weight, 1e-6, form=form))


@pytest.mark.parametrize("threads", [2, 3])
def test_a_wide_row_does_not_depend_on_its_batch_nor_on_threads(threads):
    torch.manual_seed(0)
    x, weight = torch.randn(9, 8192).bfloat16(), torch.randn(8192).bfloat16()
    alone = rms_norm(x[3:4], weight, 1e-6, form="cpu")
    torch.set_num_threads(threads)
    assert torch.equal(rms_norm(x, weight, 1e-6, form="cpu")[3:4], alone)
    assert torch.equal(rms_norm(x[3:4], weight, 1e-6, form="cpu"), alone)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_nan_stays_in_its_row(form, dtype):
    require_form(form)
    x = torch.randn(4, 64).to(dtype)
    x[1, 3] = torch.nan
    rows = rms_norm(x, torch.ones(64, dtype=dtype), 1e-6, form=form).isnan().any(dim=1)
    assert rows.tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 3, 4)}, "must be \\[tokens, hidden\\]"),
        ({"x": torch.ones(2, 8)[:, ::2]}, "last dimension of x is strided"),
        ({"x": torch.ones(4, 2).T}, "last dimension of x is strided"),
        ({"residual": torch.ones(4, 2).T}, "last dimension of residual is strided"),
        ({"weight": torch.ones(3)}, "weight must be"),
        ({"weight": torch.ones(4).half()}, "weight is torch.float16"),
        ({"weight": torch.ones(4).double()}, "weight is torch.float64"),
        ({"residual": torch.ones(3, 4)}, "residual must be"),
        ({"residual": torch.ones(2, 4).half()}, "residual must be"),
        ({"style": "bert"}, "style"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    arguments = {"x": torch.ones(2, 4), "weight": torch.ones(4), "eps": 1e-6} | change
    with pytest.raises(ValueError, match=message):
        rms_norm(**arguments)


def test_triton_form_refuses_other_dtypes_and_widths():
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match=r"takes torch\.bfloat16"):
        rms_norm(torch.ones(1, 4).double(), torch.ones(4).double(), 1e-6, form="interpret")
    with pytest.raises(ValueError, match="rows up to"):
        rms_norm(torch.ones(1, 70000), torch.ones(70000), 1e-6, form="interpret")
    with pytest.raises(ValueError, match="weight must be contiguous"):
        rms_norm(torch.ones(1, 4), torch.ones(8)[::2], 1e-6, form="interpret")


def test_compulsory_bytes_are_each_byte_once():
    pytest.importorskip("triton")
    from wholecurve import kernels
    from wholecurve.kernels.launch import run_all
    from wholecurve.profiling.counting import count

    subject = kernels.load_subject("rms_norm")
    for case in TESTS:
        launches, _ = subject.launches(subject.arguments(case))
        with count() as counts:
            run_all(launches, interpreted=True)
        assert counts.unique_load_bytes + counts.unique_store_bytes == cost(**case).bytes_min


@pytest.mark.parametrize("has_residual", [False, True])
def test_flops_are_counted_flops(has_residual):
    """On shapes that fill their tiles: the interpreter counts the padding too."""
    pytest.importorskip("triton")
    from wholecurve.profiling.counting import count

    for case in ({"num_tokens": 32, "hidden": 128}, {"num_tokens": 3, "hidden": 2048}):
        x = torch.randn(case["num_tokens"], case["hidden"])
        with count() as counts:
            rms_norm(x, torch.ones(case["hidden"]), 1e-6, x if has_residual else None, form="interpret")
        assert counts.elementwise == cost(**case, has_residual=has_residual).flops
