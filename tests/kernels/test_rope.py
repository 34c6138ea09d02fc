import pytest
import torch
from kernel_checks import DTYPES, Guarded, case_id

from wholecurve.kernels.rope import rope, rope_tables
from wholecurve.kernels.rope.spec import TESTS
from wholecurve.profiling.gate import agreement

CPU = torch.device("cpu")


def rope_by_rotation(x, positions, rotary_dim, base):
    """Float64 rotation of each pair as a complex number; shares no code with the operation."""
    x, half = x.double(), rotary_dim // 2
    speeds = base ** (-2 * torch.arange(half).double() / rotary_dim)
    turn = torch.polar(torch.ones(len(positions), half).double(), positions[:, None].double() * speeds)[:, None]
    pairs = torch.complex(x[..., :half], x[..., half:rotary_dim]) * turn
    return torch.cat([pairs.real, pairs.imag, x[..., rotary_dim:]], dim=-1)


@pytest.mark.parametrize("case", TESTS, ids=case_id)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_agrees_with_complex_rotation(case, dtype, index_dtype):
    torch.manual_seed(0)
    guarded = Guarded()
    x = guarded(torch.randn(case["num_tokens"], case["heads"], case["head_dim"]).to(dtype), row_gap=5)
    positions = guarded(torch.randint(0, 50, (case["num_tokens"],)).to(index_dtype))
    cos, sin = (guarded(table) for table in rope_tables(case["rotary_dim"], 1e4, 50, dtype, CPU))
    out = rope(x, positions, cos, sin)
    guarded.check()
    assert out.dtype == dtype
    # a half table rounds each cosine, the products and the sum; an angle of 50 carries up to 50 ulps more
    ulps = 2 if dtype.itemsize == 2 else 128
    result = agreement(out, rope_by_rotation(x, positions, case["rotary_dim"], 1e4), ulps=ulps)
    assert result, result
    assert torch.equal(out[..., case["rotary_dim"] :], x[..., case["rotary_dim"] :])


def test_known_values():
    cos, sin = rope_tables(4, 1e4, 2, torch.float32, CPU)
    out = rope(torch.tensor([[[1.0, 2, 3, 4, 9, 9]]]), torch.tensor([1]), cos, sin)
    assert out.flatten().tolist() == pytest.approx([-1.9841, 1.9599, 2.4624, 4.0198, 9, 9], abs=1e-4)


def test_position_zero_is_the_identity():
    x = torch.randn(3, 2, 64)
    assert torch.equal(rope(x, torch.zeros(3, dtype=torch.int64), *rope_tables(64, 1e4, 1, x.dtype, CPU)), x)


def test_tables_hold_the_angles_of_llama():
    cos, sin = rope_tables(64, 5e5, 1000, torch.float32, CPU)
    inverse = 1.0 / (5e5 ** (torch.arange(0, 64, 2, dtype=torch.int64).float() / 64))  # transformers' own line
    angles = torch.outer(torch.arange(1000).float(), inverse)
    assert cos.shape == sin.shape == (1000, 32)
    assert torch.equal(cos, angles.cos()) and torch.equal(sin, angles.sin())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_hugging_face(dtype):
    """q · cos + rotate_half(q) · sin with tables in the dtype of q."""
    torch.manual_seed(0)
    x, positions = torch.randn(20, 3, 64).to(dtype), torch.arange(20)
    cos, sin = rope_tables(64, 1e4, 20, dtype, CPU)
    wide_cos, wide_sin = (torch.cat([table, table], dim=-1)[:, None] for table in (cos, sin))
    rotated = torch.cat([-x[..., 32:], x[..., :32]], dim=-1)
    assert torch.equal(rope(x, positions, cos, sin), x * wide_cos + rotated * wide_sin)


def test_fp32_tables_round_a_half_input_once():
    x, positions = torch.randn(20, 3, 64).bfloat16(), torch.arange(20)
    cos, sin = rope_tables(64, 1e4, 20, torch.float32, CPU)
    assert torch.equal(rope(x, positions, cos, sin), rope(x.float(), positions, cos, sin).bfloat16())


def test_scores_depend_on_the_distance_only():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 64).double()
    tables = rope_tables(64, 1e4, 100, torch.float64, CPU)
    at = lambda x, position: rope(x, torch.tensor([position]), *tables)  # noqa: E731
    scores = [float((at(q, 10 + shift) * at(k, 3 + shift)).sum()) for shift in (0, 1, 80)]
    assert scores == pytest.approx([scores[0]] * 3, rel=1e-9)
    assert float((at(q, 10) * at(k, 4)).sum()) != pytest.approx(scores[0], rel=1e-3)


@pytest.mark.parametrize("position", [-1, -10, 10, 11])
def test_position_outside_the_table_is_an_error(position):
    cos, sin = rope_tables(64, 1e4, 10, torch.float32, CPU)
    with pytest.raises(IndexError, match=rf"positions .*{position}.* table of 10 positions"):
        rope(torch.ones(2, 1, 64), torch.tensor([3, position]), cos, sin)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 64)}, "must be \\[tokens"),
        ({"positions": torch.zeros(3, dtype=torch.int64)}, "2 tokens but positions"),
        ({"x": torch.ones(2, 1, 32)}, "rotate 64 of 32"),
        ({"sin": torch.ones(9, 32)}, "cos is"),
        ({"form": "triton"}, "does not exist"),
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


def test_odd_head_size_is_refused():
    with pytest.raises(ValueError, match="must be even"):
        rope_tables(63, 1e4, 4, torch.float32, CPU)
