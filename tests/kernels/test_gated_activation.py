import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_checks import DTYPES, require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.gated_activation import ACTIVATIONS, gated_activation, swiglu

FORMS = ("reference", "cpu", "native", "interpret")
OVERFLOWING = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # exp of the interpreter


class TestGatedActivation(KernelSuite):
    kernel = "gated_activation"
    mutants = {
        "32-bit rows": ("row, start = tl.program_id(0).to(tl.int64)", "row, start = tl.program_id(0)"),
        "exponential in the dtype of the input": (
            "tl.exp(-exponent)",
            "tl.exp(-exponent).to(out.dtype.element_ty).to(tl.float32)",
        ),
        "gate and up swapped": ("(activated * up)", "(activated / gate * up * up)"),
        "up of the tile": ("(source + intermediate)", "(source + BLOCK)"),
        "lanes unmasked": ("inside = lanes < intermediate - start", "inside = lanes < BLOCK"),
        "limit of gate on both sides": ("tl.where(gate > limit, limit, gate)", "tl.clamp(gate, -limit, limit)"),
        "up limited above only": ("tl.where(up < -limit, -limit, up)", "up"),
        "limit after the activation": (
            ("gate = tl.where(gate > limit, limit, gate)", "pass"),
            (
                "activated = activated.to(out",
                "if HAS_LIMIT:\n        activated = tl.where(activated > limit, limit, activated)\n"
                "    activated = activated.to(out",
            ),
        ),
        "alpha without its one": ("up += 1.0", "up += 0.0"),
        "alpha ignored": ("exponent = alpha * gate", "exponent = gate"),
        "tanh for exact": ('if ACTIVATION == "gelu":', 'if ACTIVATION == "gelu_exact":'),
        "cubic term": ("0.044715 * gate * gate * gate", "0.044715 * gate * gate"),
    }


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_both_torch_forms_of_swiglu_have_the_same_bits(dtype):
    torch.manual_seed(0)
    gate_up = (8 * torch.randn(33, 2 * 130)).to(dtype)
    assert torch.equal(swiglu(gate_up, form="cpu"), swiglu(gate_up, form="reference"))
    assert torch.equal(swiglu(gate_up, form="cpu", limit=1.3), swiglu(gate_up, form="reference", limit=1.3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_swiglu_is_the_gated_activation_of_llama(form, dtype):
    require_form(form)
    torch.manual_seed(0)
    gate_up = torch.randn(5, 2 * 64).to(dtype)
    assert torch.equal(swiglu(gate_up, form), gated_activation(gate_up, "silu", form))
    assert torch.equal(swiglu(gate_up, form, limit=0.5), gated_activation(gate_up, "silu", form, limit=0.5))


@pytest.mark.parametrize("form", FORMS)
@OVERFLOWING
def test_known_values(form):
    require_form(form)
    out = swiglu(torch.tensor([[-100.0, 0.0, 100.0, 1.0, 1.0, 1.0]]), form=form)
    assert out[0].tolist() == pytest.approx([0, 0, 100], abs=1e-6)
    # exp(12) overflows fp16: an fp16 sigmoid would give −0 here
    assert float(swiglu(torch.tensor([[-12.0, 1.0]]).half(), form=form)) == pytest.approx(-7.37e-5, rel=1e-2)
    for activation, value in (("silu", 0.7310586), ("gelu", 0.8413447), ("gelu_tanh", 0.8411920)):
        out = gated_activation(torch.tensor([[1.0, 0.0, -1.0, 2.0, 5.0, 2.0]]), activation, form)
        assert out[0].tolist() == pytest.approx([2 * value, 0, 2 * (value - 1)], abs=1e-6)
    # gpt-oss: 3 is cut to 2, σ(1.702 · 2) = 0.967837, up −9 is cut to −2, plus 1
    out = gated_activation(torch.tensor([[3.0, -9.0]]), form=form, limit=2.0, alpha=1.702)
    assert float(out) == pytest.approx(2 * 0.967837 * -1, rel=1e-5)
    # DeepSeek V4: the gate is cut from above only
    out = swiglu(torch.tensor([[30.0, -30.0, 20.0, -0.5]]), form=form, limit=10.0)
    assert out[0].tolist() == pytest.approx([99.99546, 0], abs=1e-4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("limit", [None, 2.0])
@pytest.mark.parametrize("form", FORMS)
@OVERFLOWING
def test_infinite_and_missing_numbers(form, limit, activation):
    require_form(form)
    inf, nan = float("inf"), float("nan")
    gate, up = [-inf, nan, 1.0, inf], [1.0, 1.0, nan, 1.0]
    out = gated_activation(torch.tensor([gate + up]), activation, form, limit=limit)[0]
    assert out[:3].isnan().all()
    assert float(out[3]) == (inf if limit is None else pytest.approx(2, rel=0.15))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("limit", [1.3, 7.0])
def test_limit_is_a_number_of_the_dtype(form, limit):
    """1.3 is 1.296875 in bf16: what is cut is what a bf16 gate of that value gives."""
    require_form(form)
    rounded = torch.tensor(limit).bfloat16()
    cut = swiglu(torch.tensor([[50.0, 50.0]]).bfloat16(), form, limit=limit)
    assert torch.equal(cut, swiglu(rounded.expand(1, 2), form if form != "interpret" else "cpu"))


@pytest.mark.parametrize("form", FORMS)
def test_activation_is_rounded_before_the_product(form):
    require_form(form)
    torch.manual_seed(0)
    gate_up = torch.randn(40, 2 * 256).bfloat16()
    gate, up = gate_up.double().chunk(2, dim=-1)
    activated = gate / (1 + torch.exp(-gate))
    twice, once = (activated.bfloat16().double() * up).bfloat16(), (activated * up).bfloat16()
    out = swiglu(gate_up, form=form)
    assert (out != twice).float().mean() < 0.001 and (twice != once).float().mean() > 0.1


@pytest.mark.parametrize("form", ["reference", "cpu", "native"])
def test_strided_input_is_like_a_contiguous_one(form):
    """Up to the last bit: torch's silu has one exponential for contiguous runs, another for single ones."""
    require_form(form)
    wide = torch.randn(5, 16)
    for strided in (wide[:, ::2], wide.T[:, :4]):
        assert torch.allclose(swiglu(strided, form=form), swiglu(strided.contiguous(), form=form), rtol=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", ["reference", "cpu", "native"])
def test_a_row_does_not_depend_on_its_batch(form, dtype, activation):
    require_form(form)
    torch.manual_seed(0)
    gate_up = torch.randn(67, 2 * 1536).to(dtype)
    torch.set_num_threads(2)  # large enough to be cut between threads in the middle of a row
    together = gated_activation(gate_up, activation, form)
    for rows in ([0], [33], [66], [1, 33, 66]):
        assert torch.equal(together[rows], gated_activation(gate_up[rows], activation, form))


def test_an_interpreted_row_does_not_depend_on_its_batch():
    require_form("interpret")
    gate_up = torch.randn(7, 2 * 1100).bfloat16()
    together = swiglu(gate_up, "interpret")
    assert torch.equal(together[[5]], swiglu(gate_up[[5]], "interpret"))


@given(st.floats(-30, 30, width=16), st.floats(-30, 30, width=16), st.floats(0.5, 20), st.sampled_from(ACTIVATIONS))
def test_a_limit_is_the_same_as_cut_inputs(gate, up, limit, activation):
    rounded = float(torch.tensor(limit).half())
    cut = torch.tensor([[min(gate, rounded), min(max(up, -rounded), rounded)]]).half()
    whole = torch.tensor([[gate, up]]).half()
    limited = gated_activation(whole, activation, limit=limit)
    assert torch.equal(limited, gated_activation(cut, activation))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gate_up": torch.ones(2, 3)}, "must be even"),
        ({"gate_up": torch.ones(4)}, "must be \\[tokens"),
        ({"activation": "relu"}, "'relu' is not one of silu, gelu, gelu_tanh"),
        ({"limit": 0.0}, "limit must be above 0"),
        ({"limit": float("nan")}, "limit must be above 0"),
        ({"activation": "gelu", "alpha": 1.7}, "alpha belongs to silu"),
        ({"form": "cuda"}, "does not exist"),
        ({"form": "interpret", "gate_up": torch.ones(2, 8)[:, ::2]}, "last dimension of gate_up is strided"),
        ({"form": "interpret", "gate_up": torch.ones(2, 8).double()}, "not torch.float64"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    require_form(change.get("form"))
    with pytest.raises(ValueError, match=message):
        gated_activation(**({"gate_up": torch.ones(2, 4)} | change))
