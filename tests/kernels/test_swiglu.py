import pytest
import torch
from kernel_checks import DTYPES, Guarded, case_id

from wholecurve.kernels.swiglu import swiglu
from wholecurve.kernels.swiglu.spec import TESTS
from wholecurve.profiling.gate import agreement

FORMS = ("reference", "cpu")


@pytest.mark.parametrize("case", TESTS, ids=case_id)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_agrees_with_float64(case, dtype, form):
    torch.manual_seed(0)
    guarded = Guarded()
    gate_up = guarded(torch.randn(case["num_tokens"], 2 * case["intermediate"]).to(dtype), row_gap=7)
    out = swiglu(gate_up, form=form)
    guarded.check()
    gate, up = gate_up[:, : case["intermediate"]].double(), gate_up[:, case["intermediate"] :].double()
    assert out.dtype == dtype and out.shape == gate.shape
    result = agreement(out, gate / (1 + torch.exp(-gate)) * up, ulps=1e-3, rtol=4 * torch.finfo(dtype).eps)
    assert result, result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_forms_have_the_same_bits(dtype):
    torch.manual_seed(0)
    gate_up = (8 * torch.randn(33, 2 * 130)).to(dtype)
    assert torch.equal(swiglu(gate_up, form="cpu"), swiglu(gate_up, form="reference"))


@pytest.mark.parametrize("form", FORMS)
def test_known_values(form):
    out = swiglu(torch.tensor([[-100.0, 0.0, 100.0, 1.0, 1.0, 1.0]]), form=form)
    assert out[0].tolist() == pytest.approx([0, 0, 100], abs=1e-6)
    # exp(12) overflows fp16: an fp16 sigmoid would give −0 here
    assert float(swiglu(torch.tensor([[-12.0, 1.0]]).half(), form=form)) == pytest.approx(-7.37e-5, rel=1e-2)
    assert swiglu(torch.tensor([[-torch.inf, 1.0]]), form=form).isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_strided_input_is_like_a_contiguous_one(form):
    """Up to the last bit: torch's silu has one exponential for contiguous runs, another for single ones."""
    wide = torch.randn(5, 16)
    for strided in (wide[:, ::2], wide.T[:, :4]):
        assert torch.allclose(swiglu(strided, form=form), swiglu(strided.contiguous(), form=form), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_row_does_not_depend_on_its_batch(form, dtype):
    torch.manual_seed(0)
    gate_up = torch.randn(67, 2 * 1536).to(dtype)
    torch.set_num_threads(2)  # large enough to be cut between threads in the middle of a row
    together = swiglu(gate_up, form=form)
    for rows in ([0], [33], [66], [1, 33, 66]):
        assert torch.equal(together[rows], swiglu(gate_up[rows], form=form))


@pytest.mark.parametrize(
    ("gate_up", "message"), [(torch.ones(2, 3), "must be even"), (torch.ones(4), "must be \\[tokens")]
)
def test_refuses_what_it_cannot_do(gate_up, message):
    with pytest.raises(ValueError, match=message):
        swiglu(gate_up)
