import pytest
import torch
from kernel_checks import DTYPES, Guarded, case_id, poisoned_outputs, require_form

from wholecurve.kernels.rms_norm import rms_norm
from wholecurve.kernels.rms_norm.reference import rms_norm_reference
from wholecurve.kernels.rms_norm.spec import TESTS
from wholecurve.profiling.gate import agreement

FORMS = ("reference", "cpu", "interpret")


@pytest.mark.parametrize("case", TESTS, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("style", ["llama", "gemma"])
def test_agrees_with_float64(case, dtype, form, style, monkeypatch):
    require_form(form)
    torch.manual_seed(1)
    guarded = Guarded()
    x, residual = (guarded(torch.randn(case["num_tokens"], case["hidden"]).to(dtype), row_gap=gap) for gap in (5, 3))
    weight = guarded(torch.randn(case["hidden"]).to(dtype))
    with poisoned_outputs(monkeypatch):
        plain = rms_norm(x, weight, 1e-6, form=form, style=style)
        normed, summed = rms_norm(x, weight, 1e-6, residual, form=form, style=style)
    guarded.check()
    assert plain.dtype == normed.dtype == summed.dtype == dtype
    assert torch.equal(summed, (x.float() + residual.float()).to(dtype))
    for output, source in ((plain, x), (normed, summed)):
        expected = rms_norm_reference(source.double(), weight.double(), 1e-6, style=style)
        roundings = 6 if dtype == torch.float32 else 2
        result = agreement(output, expected, ulps=0.02, rtol=roundings * torch.finfo(dtype).eps)
        assert result, result


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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_zero_row_without_eps_is_nan(form):
    require_form(form)
    assert rms_norm(torch.zeros(1, 2), torch.ones(2), 0.0, form=form).isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_gemma_weight_is_an_offset_from_one(form):
    require_form(form)
    x = torch.randn(3, 8)
    assert torch.allclose(
        rms_norm(x, torch.zeros(8), 1e-6, form=form, style="gemma"),
        rms_norm(x, torch.ones(8), 1e-6, form=form),
    )


@pytest.mark.parametrize("form", FORMS)
def test_cast_order_of_each_style(form):
    require_form(form)
    torch.manual_seed(0)
    x, weight = torch.randn(40, 512).bfloat16(), torch.randn(512).bfloat16()
    llama = rms_norm(x, weight, 1e-6, form=form)
    gemma = rms_norm(x, weight - 1, 1e-6, form=form, style="gemma")
    exact = x.double() * torch.rsqrt(x.double().square().mean(1, keepdim=True) + 1e-6)
    once = (exact * (1 + (weight - 1).double())).bfloat16()
    twice = (exact.bfloat16().double() * weight.double()).bfloat16()
    assert (llama != twice).float().mean() < 0.001 and (gemma != once).float().mean() < 0.001
    assert (twice != (exact * weight.double()).bfloat16()).float().mean() > 0.1  # the orders do differ


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
    assert torch.equal(normed, rms_norm(summed, weight, 1e-6, form=form))


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


@pytest.mark.parametrize("form", FORMS)
def test_nan_stays_in_its_row(form):
    require_form(form)
    x = torch.randn(4, 64)
    x[1, 3] = torch.nan
    rows = rms_norm(x, torch.ones(64), 1e-6, form=form).isnan().any(dim=1)
    assert rows.tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 3, 4)}, "must be \\[tokens, hidden\\]"),
        ({"x": torch.ones(2, 8)[:, ::2]}, "last dimension of x is strided"),
        ({"x": torch.ones(4, 2).T}, "last dimension of x is strided"),
        ({"weight": torch.ones(3)}, "weight must be"),
        ({"weight": torch.ones(4).half()}, "weight is torch.float16"),
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


def test_interpreted_form_stays_inside_its_tensors():
    pytest.importorskip("triton")
    from wholecurve.kernels.rms_norm.kernel import rms_norm_launch
    from wholecurve.profiling.sanitizer import sanitize

    for num_tokens, hidden in ((17, 127), (1, 2049)):
        x = torch.randn(num_tokens, hidden + 3)[:, :hidden]
        launch, *_ = rms_norm_launch(x, torch.ones(hidden), 1e-6, x)
        with sanitize(*(argument for argument in launch.arguments if isinstance(argument, torch.Tensor))):
            launch.run(interpreted=True)
