import pytest
import torch
from kernel_checks import DTYPES, require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.qk_norm_rope import qk_norm_rope
from wholecurve.kernels.rms_norm import rms_norm
from wholecurve.kernels.rope import rope, rope_tables

CPU = torch.device("cpu")
FORMS = ("reference", "cpu", "native", "interpret")


class TestQkNormRope(KernelSuite):
    kernel = "qk_norm_rope"
    mutants = {
        "32-bit tokens": ("tl.program_id(0).to(tl.int64), tl", "tl.program_id(0), tl"),
        "32-bit heads": ("(block.to(tl.int64) * BLOCK_HEADS", "(block * BLOCK_HEADS"),
        "no eps": ("squares / HEAD_DIM + eps", "squares / HEAD_DIM"),
        "mean over the pairs alone": ("squares += ", "squares += 0.0 * "),
        "mean over the tile": ("squares / HEAD_DIM", "squares / (2 * BLOCK_PAIRS + BLOCK_REST)"),
        "weights of q for k": ("k, k_weight, k_out", "k, q_weight, k_out"),
        "k blocks counted from q's": ("block - q_blocks", "block"),
        "gemma without its one": ("(1.0 + scale)", "scale"),
        "weight of the first half for both": (
            "weighed(second * factor, second_scale",
            "weighed(second * factor, first_scale",
        ),
        "rest not normalised": ("weighed(other * factor", "weighed(other"),
        "strides of q for k": (
            "num_kv_heads, k_stride_t, k_stride_h, eps",
            "num_kv_heads, q_stride_t, q_stride_h, eps",
        ),
    }


def inputs(dtype=torch.float32, num_tokens=6, num_heads=4, num_kv_heads=2, head_dim=16, weight_dtype=None):
    """q and k of one projection with their v, weights, positions and tables."""
    torch.manual_seed(0)
    qkv = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, head_dim).to(dtype)
    return {
        "q": qkv[:, :num_heads],
        "k": qkv[:, num_heads : num_heads + num_kv_heads],
        "q_weight": torch.randn(head_dim).to(weight_dtype or dtype),
        "k_weight": torch.randn(head_dim).to(weight_dtype or dtype),
        "eps": 1e-6,
        "positions": torch.randint(0, 40, (num_tokens,)),
        **dict(zip(("cos", "sin"), rope_tables(head_dim, 1e4, 40, torch.float32, CPU))),
    }


@pytest.mark.parametrize("form", FORMS)
def test_known_values(form):
    """[3, 4] is [0.8485, 1.1314] normalised; position 1 turns the one pair by one radian."""
    require_form(form)
    head = torch.tensor([[[3.0, 4.0]]])
    one, tables = torch.ones(2), rope_tables(2, 1e4, 2, torch.float32, CPU)
    q, k = qk_norm_rope(head, 5 * head, one, 2 * one, 0.0, torch.tensor([1]), *tables, form=form)
    assert q.flatten().tolist() == pytest.approx([-0.4936, 1.3253], abs=1e-4)
    assert k.flatten().tolist() == pytest.approx([-0.9871, 2.6506], abs=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("style", ["llama", "gemma"])
@pytest.mark.parametrize("form", FORMS)
def test_is_the_norm_of_each_head_and_then_the_rotation(form, style, dtype):
    """Bit for bit up to one unit: the interpreted norm sums a head in two halves."""
    require_form(form)
    case = inputs(dtype)
    outputs = qk_norm_rope(**case, form=form, style=style)
    for x, weight, out in zip((case["q"], case["k"]), (case["q_weight"], case["k_weight"]), outputs):
        normed = rms_norm(x.reshape(-1, 16), weight, 1e-6, form="reference", style=style).view(x.shape)
        steps = rope(normed, case["positions"], case["cos"], case["sin"], form="reference")
        assert out.is_contiguous() and out.dtype == dtype
        if form == "reference":
            assert torch.equal(out, steps)
        assert torch.allclose(out.float(), steps.float(), rtol=0, atol=2 * float(steps.max()) * torch.finfo(dtype).eps)


@pytest.mark.parametrize("form", FORMS)
def test_v_and_inputs_are_not_written(form):
    require_form(form)
    case = inputs()
    whole = case["q"]._base
    before = whole.clone()
    qk_norm_rope(**case, form=form)
    assert torch.equal(whole, before)


@pytest.mark.parametrize("form", FORMS)
def test_only_one_of_both_may_have_a_weight(form):
    """DeepSeek V4 normalises its q heads without a weight."""
    require_form(form)
    case = inputs()
    q, k = qk_norm_rope(**case, form=form)
    plain_q, same_k = qk_norm_rope(**(case | {"q_weight": None}), form=form)
    same_q, plain_k = qk_norm_rope(**(case | {"k_weight": None}), form=form)
    assert torch.equal(k, same_k) and torch.equal(q, same_q)
    one = torch.ones(16)
    ones_q, ones_k = qk_norm_rope(**(case | {"q_weight": one, "k_weight": one}), form=form)
    assert torch.equal(plain_q, ones_q) and torch.equal(plain_k, ones_k)


@pytest.mark.parametrize("form", FORMS)
def test_a_gated_projection_of_q_may_have_wider_heads(form):
    """Qwen3-Next keeps a gate beside each query head: heads of q are 2 · D apart, those of k D."""
    require_form(form)
    case = inputs()
    gated = torch.randn(6, 4, 32)
    gated[..., :16] = case["q"]
    for out, packed in zip(qk_norm_rope(**(case | {"q": gated[..., :16]}), form=form), qk_norm_rope(**case, form=form)):
        assert torch.equal(out, packed)


@pytest.mark.parametrize("form", FORMS)
def test_a_token_does_not_depend_on_its_batch(form):
    require_form(form)
    for dtype in DTYPES:
        case = inputs(dtype, num_tokens=23, num_heads=9, num_kv_heads=3, head_dim=64)
        together = qk_norm_rope(**case, form=form)
        for rows in ([0], [22], [3, 11]):
            part = case | {name: case[name][rows] for name in ("q", "k", "positions")}
            for out, all_of_it in zip(qk_norm_rope(**part, form=form), together):
                assert torch.equal(out, all_of_it[rows])


@pytest.mark.parametrize("form", FORMS)
def test_nan_stays_in_its_head(form):
    require_form(form)
    case = inputs()
    case["k"][2, 1, 5] = torch.nan
    q, k = qk_norm_rope(**case, form=form)
    assert q.isfinite().all() and k.isnan().any(dim=2).nonzero().tolist() == [[2, 1]]


@pytest.mark.parametrize("position", [-1, 40])
@pytest.mark.parametrize("form", FORMS)
def test_position_outside_the_table_is_an_error(form, position):
    require_form(form)
    case = inputs()
    case["positions"][3] = position
    with pytest.raises(IndexError, match=r"qk_norm_rope: positions .* table of 40 positions"):
        qk_norm_rope(**case, form=form)


@pytest.mark.parametrize("position", [-1, 40, 2**40])
def test_kernel_reads_nothing_outside_the_table(position):
    pytest.importorskip("triton")
    from wholecurve.kernels.qk_norm_rope.kernel import launches
    from wholecurve.profiling.sanitizer import sanitize

    case = inputs()
    case["positions"][3] = position
    started, outputs = launches(**case)
    with sanitize(*started[0].tensors):
        started[0].run(interpreted=True)
    for out in outputs:
        assert out[3].isnan().all() and out[[0, 1, 2, 4, 5]].isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.ones(6, 16)}, "of q: x must be"),
        ({"k": torch.ones(6, 2, 32)[..., ::2]}, "of k: last dimension of x is strided"),
        ({"k": torch.ones(5, 2, 16)}, "of k: 5 tokens but positions"),
        ({"k": torch.ones(6, 2, 32), "k_weight": None}, "q is .* but k is .*32"),
        ({"k": torch.ones(6, 2, 16).half(), "k_weight": None}, "q is .* but k is .*float16"),
        ({"q_weight": torch.ones(8)}, "q_weight must be \\[16\\]"),
        ({"k_weight": torch.ones(16).half()}, "k_weight is torch.float16"),
        ({"style": "bert"}, "style 'bert'"),
        ({"layout": "pairs"}, "layout 'pairs'"),
        ({"offset": 2}, "rotate 16 of 16 channels from channel 2"),
        ({"form": "interpret", "q_weight": torch.ones(32)[::2]}, "q_weight must be contiguous"),
        ({"form": "interpret", "positions": torch.zeros(12, dtype=torch.int64)[::2]}, "positions must be contiguous"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    require_form(change.get("form"))
    with pytest.raises(ValueError, match=f"qk_norm_rope: .*{message}"):
        qk_norm_rope(**(inputs() | change))


def test_refuses_a_form_that_it_lacks():
    with pytest.raises(ValueError, match="'cuda' does not exist"):
        qk_norm_rope(**inputs(), form="cuda")
