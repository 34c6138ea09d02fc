import math

import pytest
import torch
from kernel_checks import DTYPES, require_form
from kernel_suite import HAS_TRITON, KernelSuite

from wholecurve.kernels.engram_gate import engram_gate
from wholecurve.kernels.engram_gate.subject import SUBJECT, eager

FORMS = ("reference", "cpu", "interpret")
without_eps = pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")  # in rows beyond the tokens


class TestEngramGate(KernelSuite):
    kernel = "engram_gate"
    mutants = {
        "no eps": (
            "tl.rsqrt(tl.sum(h * h, axis=1, keep_dims=True) / width + eps)",
            "tl.rsqrt(tl.sum(h * h, axis=1, keep_dims=True) / width)",
        ),
        "mean over the tile": (
            "tl.sum(k * k, axis=1, keep_dims=True) / width",
            "tl.sum(k * k, axis=1, keep_dims=True) / BLOCK",
        ),
        "keys not normalised": ("(k * k_norm * k_weight)", "(k * k_weight)"),
        "weights of the first stream": ("hidden_weight + stream * hidden_weight_stride", "hidden_weight"),
        "keys of the first stream": (" + stream * keys_stride_s", ""),
        "value of the first token": ("value + tokens * value_stride", "value + 0 * tokens"),
        "score not scaled": (" * score_scale", ""),
        "no sign": ("tl.where(score < 0, -root, score)", "root"),
        "no root": ("tl.sqrt(tl.maximum(tl.abs(score), 1e-6))", "tl.maximum(tl.abs(score), 1e-6)"),
        "value not gated": ("(h + gate * v)", "(h + v)"),
        "32-bit tokens": ("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    }


def arguments(num_tokens=3, streams=4, width=64, dtype="float32", seed=0):
    return SUBJECT.arguments({"num_tokens": num_tokens, "streams": streams, "width": width, "dtype": dtype}, seed=seed)


@pytest.mark.parametrize("form", FORMS)
@without_eps
def test_known_values(form):
    """h = [3, 4] and k = ±[3, 4] normalise to rows of mean square 1: s = ±2 / √2, the gate is sigmoid(±√√2)."""
    require_form(form)
    h = torch.tensor([[[3.0, 4.0], [3.0, 4.0], [3.0, 4.0], [3.0, 4.0]]])
    k = torch.tensor([[[3.0, 4.0], [-3.0, -4.0], [-4.0, 3.0], [30.0, 40.0]]])
    ones = torch.ones(4, 2)
    out = engram_gate(h, k, torch.tensor([[1.0, -2.0]]), ones, ones, 0.0, form=form)
    gates = [1 / (1 + math.exp(-side * math.sqrt(math.sqrt(2)))) for side in (1, -1)]
    for stream, gate in enumerate((*gates, 0.5, gates[0])):  # an orthogonal key gives exactly half
        assert out[0, stream].tolist() == pytest.approx([3 + gate, 4 - 2 * gate], rel=1e-6)


@pytest.mark.parametrize("form", FORMS)
@without_eps
def test_small_scores_keep_their_sign(form):
    """|s| below 10⁻⁶ counts as 10⁻⁶, so the gate jumps by 5 · 10⁻⁴ at 0."""
    require_form(form)
    h, value = torch.tensor([[[1.0, 1.0]]]), torch.tensor([[4096.0, 0.0]])
    ones = torch.ones(1, 2)
    for weight, root in ((1e-8, 1e-3), (-1e-8, -1e-3), (0.0, 0.0)):
        out = engram_gate(h, h, value, ones, torch.full((1, 2), weight), 0.0, form=form)
        assert out[0, 0].tolist() == pytest.approx([1 + 4096 / (1 + math.exp(-root)), 1.0], abs=2e-3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("eps", [1e-6, 1e-20])
def test_streams_of_zeros_are_half_open(form, eps):
    """1e-20 is the eps of DeepSeek-V4.1."""
    require_form(form)
    zeros, ones = torch.zeros(2, 4, 128), torch.ones(4, 128)
    value = torch.randn(2, 128)
    assert torch.equal(
        engram_gate(zeros, zeros, value, ones, ones, eps, form=form), 0.5 * value[:, None].expand(2, 4, 128)
    )


@pytest.mark.parametrize("form", FORMS)
@without_eps
def test_scale_of_the_inputs_does_not_matter(form):
    require_form(form)
    given = arguments()
    wanted = engram_gate(**given | {"eps": 0.0}, form=form) - given["hidden"]
    out = engram_gate(**given | {"eps": 0.0, "keys": given["keys"] * 1024}, form=form) - given["hidden"]
    assert torch.allclose(out, wanted, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_views_of_one_projection(form):
    """Keys and value come from one product, streams may lie in another order, weights in a wider tensor."""
    require_form(form)
    given = arguments(5, 4, 24)
    packed = torch.full((5, 5 * 24 + 3), torch.nan)
    packed[:, : 4 * 24] = given["keys"].flatten(1)
    packed[:, 4 * 24 : 5 * 24] = given["value"]
    views = {
        "keys": packed[:, : 4 * 24].unflatten(1, (4, 24)),
        "value": packed[:, 4 * 24 : 5 * 24],
        "hidden": given["hidden"].transpose(0, 1).contiguous().transpose(0, 1),
        "key_weight": torch.cat([given["key_weight"], torch.full((4, 8), torch.nan)], dim=1)[:, :24],
    }
    assert torch.equal(engram_gate(**given | views, form=form), engram_gate(**given, form=form))


@pytest.mark.parametrize("form", FORMS)
def test_one_stream_is_each_of_four(form):
    require_form(form)
    given = arguments(3, 4, 100)
    together = engram_gate(**given, form=form)
    for stream in range(4):
        one = slice(stream, stream + 1)
        names = {name: given[name][:, one] for name in ("hidden", "keys")}
        names |= {name: given[name][one] for name in ("hidden_weight", "key_weight")}
        assert torch.equal(engram_gate(**given | names, form=form), together[:, one])


@pytest.mark.parametrize("form", FORMS)
def test_a_token_does_not_depend_on_its_batch(form):
    require_form(form)
    for dtype in ("bfloat16", "float16", "float32"):
        given = arguments(37, 2, 600, dtype)
        together = engram_gate(**given, form=form)
        for rows in ([0], [36], [5, 20, 36]):
            some = {name: given[name][rows] for name in ("hidden", "keys", "value")}
            assert torch.equal(engram_gate(**given | some, form=form), together[rows])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["hidden", "keys"])
def test_nan_stays_in_its_stream(form, name):
    require_form(form)
    given = arguments()
    given[name][1, 2, 7] = torch.nan
    bad = engram_gate(**given, form=form).isnan()
    assert bad[1, 2].all() and bad.sum() == 64


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_composition_agrees(dtype):
    """What a model file would write differs by roundings of its dtype between the calls."""
    given = arguments(4, 4, 200, str(dtype).removeprefix("torch."))
    wanted, tolerance = engram_gate(**given), 16 * torch.finfo(dtype).eps
    assert torch.allclose(eager(**given).float(), wanted.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.ones(2, 8)}, "hidden must be \\[tokens, streams, width\\]"),
        ({"keys": torch.ones(2, 3, 8)}, "keys must be \\(2, 4, 8\\) torch.float32, it is \\(2, 3, 8\\)"),
        ({"value": torch.ones(2, 4, 8)}, "value must be \\(2, 8\\)"),
        ({"value": torch.ones(2, 8).half()}, "value must be .* torch.float16"),
        ({"hidden_weight": torch.ones(8)}, "hidden_weight must be \\(4, 8\\)"),
        ({"key_weight": torch.ones(4, 8).bfloat16()}, "key_weight must be"),
        ({"hidden": torch.ones(2, 4, 16)[..., ::2]}, "last dimension of hidden is strided"),
        ({"key_weight": torch.ones(8, 4).T}, "last dimension of key_weight is strided"),
        ({"form": "gpu"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    given = arguments(2, 4, 8)
    engram_gate(**given)
    with pytest.raises(ValueError, match=message):
        engram_gate(**given | change)


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_triton_form_refuses_other_dtypes_and_widths():
    given = arguments(1, 1, 8)
    with pytest.raises(ValueError, match=r"takes torch\.bfloat16"):
        engram_gate(**{n: v.double() if isinstance(v, torch.Tensor) else v for n, v in given.items()}, form="interpret")
    with pytest.raises(ValueError, match="streams up to 16384"):
        engram_gate(**arguments(1, 1, 16385), form="interpret")
