import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_checks import DTYPES, require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.rope import rope, rope_tables
from wholecurve.profiling.gate import agreement

CPU = torch.device("cpu")
FORMS = ("reference", "cpu", "native", "interpret")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
OPTIONS = [
    {},
    {"inverse": True},
    {"layout": "interleaved"},
    {"layout": "interleaved", "inverse": True},
]


class TestRope(KernelSuite):
    kernel = "rope"
    mutants = {
        "32-bit tokens": ("token = tl.program_id(0).to(tl.int64)", "token = tl.program_id(0)"),
        "32-bit positions": ("tl.load(positions + token).to(tl.int64)", "tl.load(positions + token).to(tl.int32)"),
        "inverse ignored": ("sine = -sine", "sine = sine"),
        "sign of the second sum": ("second * cosine + first * sine", "second * cosine - first * sine"),
        "pairs past the table": ("(pair < PAIRS) & known", "known"),
        "halves of the whole head": ("x + (rows + PAIRS) + pair", "x + (rows + BLOCK_PAIRS) + pair"),
        "rotary part always first": ("load_pairs(x, source + OFFSET", "load_pairs(x, source"),
        "other channels not copied": ("if BLOCK_REST:", "if BLOCK_REST > 99999:"),
        "channels before the rotary part": ("tl.where(rest < OFFSET, rest, rest + 2 * PAIRS)", "(rest + 2 * PAIRS)"),
        "heads unmasked": ("inside = head < heads", "inside = head < heads + BLOCK_HEADS"),
        "position of the program": ("tl.load(positions + token)", "tl.load(positions + tl.program_id(1))"),
    }


@pytest.mark.parametrize("form", FORMS)
def test_known_values(form):
    require_form(form)
    cos, sin = rope_tables(4, 1e4, 2, torch.float32, CPU)
    x, position = torch.tensor([[[1.0, 2, 3, 4, 9, 9]]]), torch.tensor([1])
    out = rope(x, position, cos, sin, form=form)
    assert out.flatten().tolist() == pytest.approx([-1.9841, 1.9599, 2.4624, 4.0198, 9, 9], abs=1e-4)
    out = rope(x, position, cos, sin, form=form, layout="interleaved")
    assert out.flatten().tolist() == pytest.approx([-1.1426, 1.9221, 2.9599, 4.0298, 9, 9], abs=1e-4)
    out = rope(x.roll(2, -1), position, cos, sin, form=form, layout="interleaved", offset=2)
    assert out.flatten().tolist() == pytest.approx([9, 9, -1.1426, 1.9221, 2.9599, 4.0298], abs=1e-4)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_position_zero_is_the_identity(form, options):
    require_form(form)
    x = torch.randn(3, 2, 64)
    tables = rope_tables(64, 1e4, 1, x.dtype, CPU)
    assert torch.equal(rope(x, torch.zeros(3, dtype=torch.int64), *tables, form=form, **options), x)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("offset", [0, 8, 24])
@pytest.mark.parametrize("form", FORMS)
def test_inverse_undoes_the_rotation(form, layout, offset):
    require_form(form)
    torch.manual_seed(0)
    x, positions = torch.randn(9, 2, 64), torch.randperm(50)[:9]
    tables = rope_tables(40, 1e4, 50, x.dtype, CPU)
    options = {"form": form, "layout": layout, "offset": offset}
    turned = rope(x, positions, *tables, **options)
    assert not torch.allclose(turned, x, atol=0.1)
    assert torch.allclose(rope(turned, positions, *tables, **options, inverse=True), x, atol=2e-6)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("form", FORMS)
def test_the_norm_of_every_pair_is_kept(form, layout):
    require_form(form)
    x, positions = torch.randn(7, 3, 16), torch.arange(7) * 5
    out = rope(x, positions, *rope_tables(16, 1e4, 40, x.dtype, CPU), form=form, layout=layout)
    pairs = (lambda t: t.unflatten(2, (8, 2)).norm(dim=3)) if layout == "interleaved" else None
    pairs = pairs or (lambda t: t.unflatten(2, (2, 8)).norm(dim=2))
    assert torch.allclose(pairs(out), pairs(x), atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_the_layouts_differ_by_the_order_of_channels_only(form):
    require_form(form)
    x, positions, tables = torch.randn(4, 2, 16), torch.arange(4), rope_tables(16, 1e4, 4, torch.float32, CPU)
    order = torch.arange(16).view(2, 8).T.flatten()  # of a half-split head as pairs
    assert torch.equal(
        rope(x[..., order], positions, *tables, form=form, layout="interleaved"),
        rope(x, positions, *tables, form=form)[..., order],
    )


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_scores_depend_on_the_distance_only(layout):
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 64).double()
    tables = rope_tables(64, 1e4, 100, torch.float64, CPU)
    at = lambda x, position: rope(x, torch.tensor([position]), *tables, layout=layout)  # noqa: E731
    scores = [float((at(q, 10 + shift) * at(k, 3 + shift)).sum()) for shift in (0, 1, 80)]
    assert scores == pytest.approx([scores[0]] * 3, rel=1e-9)
    assert float((at(q, 10) * at(k, 4)).sum()) != pytest.approx(scores[0], rel=1e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", ["reference", "cpu", "native"])
def test_bits_of_hugging_face(form, dtype):
    """q · cos + rotate_half(q) · sin with tables in the dtype of q."""
    require_form(form)
    torch.manual_seed(0)
    x, positions = torch.randn(20, 3, 64).to(dtype), torch.arange(20)
    cos, sin = rope_tables(64, 1e4, 20, dtype, CPU)
    wide_cos, wide_sin = (torch.cat([table, table], dim=-1)[:, None] for table in (cos, sin))
    rotated = torch.cat([-x[..., 32:], x[..., :32]], dim=-1)
    assert torch.equal(rope(x, positions, cos, sin, form=form), x * wide_cos + rotated * wide_sin)


@pytest.mark.parametrize("form", ["reference", "cpu", "native"])
def test_fp32_tables_round_a_half_input_once(form):
    require_form(form)
    x, positions = torch.randn(20, 3, 64).bfloat16(), torch.arange(20)
    cos, sin = rope_tables(64, 1e4, 20, torch.float32, CPU)
    once = rope(x.float(), positions, cos, sin, form=form).bfloat16()
    assert torch.equal(rope(x, positions, cos, sin, form=form), once)


@given(
    st.integers(0, 70),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from(["half", "interleaved"]),
    st.booleans(),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
)
def test_the_cpu_form_has_the_bits_of_the_definition(
    num_tokens, heads, pairs, before, after, layout, inverse, dtype, table_dtype
):
    x = torch.randn(num_tokens, heads + 1, before + 2 * pairs + after).to(dtype)[:, 1:]
    before_call, positions = x.clone(), torch.randint(0, 90, (num_tokens,))
    tables = rope_tables(2 * pairs, 1e4, 90, table_dtype, CPU)
    options = {"layout": layout, "inverse": inverse, "offset": before}
    out = rope(x, positions, *tables, form="cpu", **options)
    assert torch.equal(out, rope(x, positions, *tables, form="reference", **options))
    assert out.dtype == dtype and out.is_contiguous() and torch.equal(x, before_call)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("options", [{}, {"layout": "interleaved", "inverse": True, "offset": 20}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_inputs_turned_in_pieces_have_the_same_bits(dtype, options, threads):
    torch.manual_seed(0)
    x, positions = torch.randn(1000, 9, 84).to(dtype)[:, 1:], torch.randint(0, 90, (1000,))
    tables = rope_tables(64 if options else 84, 1e4, 90, torch.float32, CPU)
    torch.set_num_threads(threads)
    out = rope(x, positions, *tables, form="cpu", **options)
    assert torch.equal(out, rope(x, positions, *tables, form="reference", **options))
    assert torch.equal(out[777:778], rope(x[777:778], positions[777:778], *tables, form="cpu", **options))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_row_does_not_depend_on_its_batch(form, options):
    require_form(form)
    torch.manual_seed(0)
    tables = rope_tables(64, 1e4, 90, torch.float32, CPU)
    for dtype in DTYPES:
        x, positions = torch.randn(67, 12, 64).to(dtype), torch.randint(0, 90, (67,))
        together = rope(x, positions, *tables, form=form, **options)
        for rows in ([0], [66], [5, 20, 66]):
            alone = rope(x[rows], positions[rows], *tables, form=form, **options)
            assert torch.equal(together[rows], alone)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_positions_in_any_order_and_more_than_once(form, index_dtype):
    require_form(form)
    x = torch.randn(6, 1, 8)
    tables = rope_tables(8, 1e4, 20, torch.float32, CPU)
    positions = [7, 0, 19, 7, 7, 3]
    out = rope(x, torch.tensor(positions, dtype=index_dtype), *tables, form=form)
    for token, position in enumerate(positions):
        alone = rope(x[token : token + 1], torch.tensor([position]), *tables, form=form)
        assert torch.equal(out[token : token + 1], alone)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("form", FORMS)
def test_heads_may_lie_outside_tokens(form, layout):
    require_form(form)
    x, positions, tables = torch.randn(5, 3, 8), torch.arange(5), rope_tables(8, 1e4, 9, torch.float32, CPU)
    by_head = x.transpose(0, 1).contiguous().transpose(0, 1)
    out = rope(by_head, positions, *tables, form=form, layout=layout)
    assert out.is_contiguous() and torch.equal(out, rope(x, positions, *tables, form=form, layout=layout))


@pytest.mark.parametrize("form", FORMS)
def test_nan_stays_in_its_pair(form):
    require_form(form)
    x = torch.randn(2, 2, 8)
    x[1, 0, 5] = torch.nan
    out = rope(x, torch.tensor([3, 4]), *rope_tables(8, 1e4, 9, torch.float32, CPU), form=form)
    assert out.isnan().nonzero().tolist() == [[1, 0, 1], [1, 0, 5]]


@pytest.mark.parametrize("position", [-1, -10, 10, 11])
@pytest.mark.parametrize("form", FORMS)
def test_position_outside_the_table_is_an_error(form, position):
    require_form(form)
    cos, sin = rope_tables(64, 1e4, 10, torch.float32, CPU)
    with pytest.raises(IndexError, match=rf"rope: positions .*{position}.* table of 10 positions"):
        rope(torch.ones(2, 1, 64), torch.tensor([3, position]), cos, sin, form=form)


@pytest.mark.parametrize("position", [-1, 10, 2**40])
def test_kernel_reads_nothing_outside_the_table(position):
    """On a GPU no position is looked at before the launch; its token must not pass for a rotated one."""
    pytest.importorskip("triton")
    from wholecurve.kernels.rope.kernel import launches
    from wholecurve.profiling.sanitizer import sanitize

    tables = rope_tables(8, 1e4, 10, torch.float32, CPU)
    started, out = launches(torch.ones(2, 1, 12), torch.tensor([3, position]), *tables)
    with sanitize(*started[0].tensors):
        started[0].run(interpreted=True)
    assert out[1, :, :8].isnan().all() and (out[1, :, 8:] == 1).all() and out[0].isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 64)}, "must be \\[tokens"),
        ({"x": torch.ones(2, 1, 128)[..., ::2]}, "last dimension of x is strided"),
        ({"positions": torch.zeros(3, dtype=torch.int64)}, "2 tokens but positions"),
        ({"positions": torch.zeros(2)}, "int32 or int64"),
        ({"x": torch.ones(2, 1, 32)}, "rotate 64 of 32"),
        ({"offset": 1}, "rotate 64 of 64 channels from channel 1"),
        ({"offset": -1}, "from channel -1"),
        ({"sin": torch.ones(9, 32)}, "cos is"),
        ({"sin": torch.ones(10, 32).half()}, "cos is"),
        ({"layout": "pairs"}, "'pairs' is not one of half, interleaved"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    cos, sin = rope_tables(64, 1e4, 10, torch.float32, CPU)
    arguments = {
        "x": torch.ones(2, 1, 64),
        "positions": torch.zeros(2, dtype=torch.int64),
        "cos": cos,
        "sin": sin,
    }
    with pytest.raises(ValueError, match=message):
        rope(**(arguments | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 1, 64).double()}, "x is torch.float64"),
        ({"cos": torch.ones(10, 32).double(), "sin": torch.ones(10, 32).double()}, "no tables of torch.float64"),
        ({"positions": torch.zeros(4, dtype=torch.int64)[::2]}, "positions must be contiguous"),
        ({"cos": torch.ones(10, 64)[:, ::2]}, "last dimension of cos is strided"),
    ],
)
def test_triton_form_refuses(change, message):
    pytest.importorskip("triton")
    cos, sin = rope_tables(64, 1e4, 10, torch.float32, CPU)
    arguments = {
        "x": torch.ones(2, 1, 64),
        "positions": torch.zeros(2, dtype=torch.int64),
        "cos": cos,
        "sin": sin,
    }
    with pytest.raises(ValueError, match=message):
        rope(**(arguments | change), form="interpret")


def test_tables_hold_the_angles_of_llama():
    cos, sin = rope_tables(64, 5e5, 1000, torch.float32, CPU)
    inverse = 1.0 / (5e5 ** (torch.arange(0, 64, 2, dtype=torch.int64).float() / 64))  # transformers' own line
    angles = torch.outer(torch.arange(1000).float(), inverse)
    assert cos.shape == sin.shape == (1000, 32)
    assert torch.equal(cos, angles.cos()) and torch.equal(sin, angles.sin())


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        LLAMA3,
        LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 512},
        YARN,
        YARN | {"attention_factor": 1.25},
        YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
        YARN | {"beta_fast": 20, "beta_slow": 2, "truncate": False},
        YARN | {"original_max_position_embeddings": 64},
        {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        {"rope_type": "proportional", "partial_rotary_factor": 1.0, "factor": 2.0},
    ],
    ids=str,
)
def test_scaled_tables_are_those_of_transformers(scaling):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=700,
        rope_parameters={"rope_theta": 1e5} | scaling,
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(700)[None])
    ours = rope_tables(64, 1e5, 700, torch.float32, CPU, config.rope_parameters)
    for theirs, table in zip((cos, sin), ours):
        assert torch.equal(theirs[0, :, :32], table)


def test_yarn_leaves_fast_pairs_and_slows_slow_ones():
    """By hand: at base 1e4 and 64 channels, pair i turns 2048/2π · 1e4^(−i/32) times over 2048 positions."""
    scaling = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 2048, "attention_factor": 1.0}
    stretched = rope_tables(64, 1e4, 2, torch.float64, CPU, scaling)[1][1].asin()
    plain = rope_tables(64, 1e4, 2, torch.float64, CPU)[1][1].asin()
    turns = 2048 / (2 * math.pi) * 1e4 ** (-torch.arange(32) / 32)
    assert torch.allclose(stretched[turns > 40], plain[turns > 40])
    assert torch.allclose(stretched[turns < 0.9], plain[turns < 0.9] / 16)
    ratio = plain / stretched
    assert (ratio[1:] >= ratio[:-1] - 1e-9).all() and ((ratio > 1.01) & (ratio < 15.9)).sum() > 5


def test_yarn_attention_factor_scales_both_tables():
    plain, grown = (
        rope_tables(8, 1e4, 3, torch.float64, CPU, YARN | {"attention_factor": factor}) for factor in (1.0, 0.5)
    )
    for table, half in zip(plain, grown):
        assert torch.equal(table * 0.5, half)
    cos, _ = rope_tables(8, 1e4, 1, torch.float64, CPU, YARN)
    assert float(cos[0, 0]) == pytest.approx(0.1 * math.log(4) + 1)


def test_tables_in_half_precision_are_the_rounded_fp32_ones():
    for half, single in zip(*(rope_tables(32, 1e4, 99, dtype, CPU, YARN) for dtype in (torch.bfloat16, torch.float32))):
        assert torch.equal(half, single.bfloat16())


@pytest.mark.parametrize(
    ("head_dim", "scaling", "message"),
    [
        (63, None, "must be even"),
        (64, {"rope_type": "dynamic", "factor": 2.0}, "'dynamic' is not one of default"),
        (64, {"rope_type": "linear"}, "'linear' needs factor"),
        (64, {"rope_type": "llama3", "factor": 8.0}, "needs low_freq_factor, high_freq_factor, original"),
        (64, {"rope_type": "linear", "factor": 2.0, "beta_fast": 3}, "'linear' has no beta_fast"),
        (64, {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}, "base is 10000.0 but rope_theta is 500000.0"),
    ],
)
def test_tables_refuse_what_they_cannot_do(head_dim, scaling, message):
    with pytest.raises(ValueError, match=message):
        rope_tables(head_dim, 1e4, 4, torch.float32, CPU, scaling)


def test_a_wide_angle_table_agrees_with_float64():
    """fp32 angles carry up to half an ulp of the angle: of position 1000, 6e-5."""
    for single, double in zip(*(rope_tables(64, 1e4, 1000, dtype, CPU) for dtype in (torch.float32, torch.float64))):
        assert agreement(single, double, ulps=1024)
