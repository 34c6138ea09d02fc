import pytest
import torch
from kernel_checks import DTYPES, require_form
from kernel_suite import HAS_TRITON, KernelSuite

from wholecurve.kernels.engram_gather import engram_gather
from wholecurve.kernels.engram_gather.spec import BENCH, FP8, cost, sector_bytes
from wholecurve.kernels.engram_gather.subject import SUBJECT, eager
from wholecurve.kernels.fp8_quantize import fp8_quantize

FORMS = ("reference", "cpu", "interpret")
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")


class TestEngramGather(KernelSuite):
    kernel = "engram_gather"
    mutants = {
        "scales of the place, not of the row": (
            "scales + picked[:, None] * num_groups",
            "scales + places[:, None] * num_groups",
        ),
        "one scale per row": ("num_groups + groups[None, :]", "num_groups + 0 * groups[None, :]"),
        "width unmasked": ("(lanes < group_width)", "(lanes < GROUP)"),
        "groups side by side without their width": (" * group_width + lanes", " * GROUP + lanes"),
        "rows back to back": ("picked[:, None, None] * table_stride", "picked[:, None, None] * GROUP"),
        "power of two off by one": ("factors.to(tl.int32) << 23", "factors.to(tl.int32) + 1 << 23"),
        "rows behind the last": ("mask=asked_for[:, None, None] & in_group", "mask=in_group"),
        "32-bit places": ("places = tl.program_id(0).to(tl.int64)", "places = tl.program_id(0)"),
        "32-bit rows": (
            "picked = tl.load(rows + places, mask=asked_for, other=-1)",
            "picked = tl.load(rows + places, mask=asked_for, other=-1).to(tl.int32)",
        ),
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_known_values(form, dtype):
    require_form(form)
    table = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]], dtype=dtype)
    out = engram_gather(table, torch.tensor([[2, 0], [2, 2]]), form=form)
    assert out.dtype == dtype and out.tolist() == [[7, 8, 9, 1, 2, 3], [7, 8, 9, 7, 8, 9]]
    assert engram_gather(table, torch.tensor([[1]]), out_dtype=torch.float32, form=form).dtype == torch.float32
    assert engram_gather(table, torch.empty(0, 5, dtype=torch.int64), form=form).shape == (0, 15)
    assert engram_gather(table, torch.empty(4, 0, dtype=torch.int64), form=form).shape == (4, 0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale_dtype", [torch.float32, E8M0], ids=str)
def test_each_group_has_its_scale(form, scale_dtype):
    require_form(form)
    table = torch.tensor([[1, -2, 3, 4], [448, 0.5, 1, 1]]).to(E4M3)
    scales = torch.tensor([[0.5, 4], [2.0**-9, 2.0**9]]).to(scale_dtype)
    out = engram_gather(table, torch.tensor([[1, 0]]), scales, form=form)
    assert out.dtype == torch.bfloat16 and out.tolist() == [[0.875, 2.0**-10, 512, 512, 0.5, -1, 12, 16]]


@pytest.mark.parametrize("form", FORMS)
def test_every_power_of_two_that_a_byte_holds(form):
    require_form(form)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].view(E8M0)
    table = torch.full((256, 1), 0.5).to(E4M3)
    out = engram_gather(table, torch.arange(256)[:, None], scales, torch.float32, form=form)[:, 0].double()
    assert torch.equal(out[:255], torch.exp2(torch.arange(255).double() - 128)) and out[255].isnan()


@pytest.mark.parametrize("form", FORMS)
def test_gathers_what_was_quantised(form):
    require_form(form)
    torch.manual_seed(0)
    weight = torch.randn(40, 256)
    table, scales = fp8_quantize(weight, (1, 32), "ue8m0")
    rows = torch.randint(0, 40, (5, 24))
    wanted = weight[rows].flatten(1)
    largest = weight.abs().amax()
    for kind in (scales, scales.to(E8M0)):
        out = engram_gather(table, rows, kind, torch.float32, form=form)
        assert ((out - wanted).abs() <= 2.0**-4 * wanted.abs() + 2.0**-16 * largest).all()


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_a_wider_table(form):
    require_form(form)
    wide = torch.full((9, 100), torch.nan)
    wide[:, 3:40] = torch.randn(9, 37)
    rows = torch.tensor([[8, 0, 3]])
    assert torch.equal(engram_gather(wide[:, 3:40], rows, form=form), wide[rows[0], 3:40].view(1, -1))


@pytest.mark.parametrize("form", FORMS)
def test_nan_stays_in_its_row(form):
    require_form(form)
    table = torch.randn(3, 64).bfloat16()
    table[1] = torch.nan
    out = engram_gather(table, torch.tensor([[0, 1], [2, 0]]), form=form).view(2, 2, 64)
    assert out.isnan().any(-1).tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("row", [-1, 3, 2**40])
def test_row_outside_the_table_is_an_error(form, row):
    require_form(form)
    with pytest.raises(IndexError, match="of a table of 3"):
        engram_gather(torch.ones(3, 4), torch.tensor([[0, row]]), form=form)


@needs_triton
def test_kernel_reads_no_row_outside_the_table():
    """What a GPU does where a CPU raises."""
    from wholecurve.profiling.sanitizer import sanitize

    rows = torch.tensor([[1, -1, 3, 2**40, 2]])
    (launch,), out = SUBJECT.launches({"table": torch.ones(3, 4), "rows": rows})
    with sanitize(*launch.tensors):
        launch.run(interpreted=True)
    assert out.view(5, 4).unique(dim=1).flatten().tolist() == [1, 0, 0, 0, 1]


@needs_triton
def test_table_may_lie_in_pinned_host_memory(monkeypatch):
    table = torch.ones(8, 4)
    arguments = {"table": table, "rows": torch.empty(2, 3, dtype=torch.int64, device="meta")}
    with pytest.raises(ValueError, match="table must be on meta or in pinned host memory"):
        SUBJECT.launches(arguments)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    (launch,), out = SUBJECT.launches(arguments)
    assert launch.arguments[0] is table and out.device.type == "meta"


def test_sectors_of_random_rows():
    assert [sector_bytes(1, 64, sector) for sector in (32, 64, 128)] == [64, 64, 128]
    assert sector_bytes(1000, 256, 128) == 256_000
    # rows of 96 bytes begin at 0 or 32 of a sector of 64 and need two of them either way
    assert sector_bytes(10, 96, 64) == 1280
    # rows of 48 bytes begin at 0 or 16 of a sector of 32: bytes 0 to 47 and 16 to 63 are two sectors each
    assert sector_bytes(10, 48, 32) == 640
    # 8 scales of one byte begin anywhere by eights, and never cross
    assert sector_bytes(5, 8) == 160
    # one byte past a sector: 31 of 32 places cross twice... the mean is (33 + 31) / 32 sectors
    assert sector_bytes(32, 33) == (33 + 31) * 32
    assert sector_bytes(0, 64) == sector_bytes(7, 0) == 0
    for row_bytes in range(1, 200):
        assert sector_bytes(1, row_bytes) >= row_bytes


def test_cost_counts_a_row_once():
    """By hand: 2 tokens of 3 heads ask for 4 rows of 128 in bf16."""
    one = cost(2, 3, 128, 4, 50)
    assert one.bytes_min == 4 * 256 + 6 * 8 + 6 * 256 and one.bytes_model == 6 * 256 + 6 * 8 + 6 * 256
    fp8 = cost(2, 3, 256, 4, 50, **FP8)
    assert fp8.bytes_min == 4 * 264 + 6 * 8 + 6 * 512
    assert all(case["distinct_rows"] <= case["table_rows"] for case in BENCH.values())


def test_cases_ask_for_as_many_rows_as_they_say():
    for case in SUBJECT.spec.TESTS:
        assert SUBJECT.arguments(case)["rows"].unique().numel() == case["distinct_rows"]


def test_composition_agrees():
    for case in SUBJECT.spec.TESTS:
        arguments = SUBJECT.arguments(case)
        assert torch.equal(eager(**arguments), engram_gather(**arguments))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": torch.ones(4)}, "table must be \\[rows, width\\]"),
        ({"table": torch.ones(4, 8).double()}, "it is torch.float64"),
        ({"table": torch.ones(4, 8)[:, ::2]}, "last dimension of table is strided"),
        ({"rows": torch.ones(2, dtype=torch.int64)}, "rows must be \\[tokens, heads\\] int64"),
        ({"rows": torch.ones(2, 2, dtype=torch.int32)}, "rows must be"),
        ({"table": torch.ones(4, 8).to(E4M3)}, "a table has scales if it is float8_e4m3fn"),
        ({"scales": torch.ones(4, 2)}, "and not otherwise"),
        ({"table": torch.ones(4, 8).to(E4M3), "scales": torch.ones(4, 3)}, "do not divide the rows"),
        ({"table": torch.ones(4, 8).to(E4M3), "scales": torch.ones(3, 2)}, "do not divide"),
        ({"table": torch.ones(4, 8).to(E4M3), "scales": torch.ones(4, 2).half()}, "float32 or float8_e8m0fnu"),
        ({"out_dtype": E4M3}, "out_dtype must be"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    arguments = {"table": torch.ones(4, 8), "rows": torch.ones(2, 2, dtype=torch.int64)}
    with pytest.raises(ValueError, match=message):
        engram_gather(**arguments | change)


@needs_triton
def test_triton_form_refuses_strided_rows_and_wide_tables():
    with pytest.raises(ValueError, match="rows must be contiguous"):
        engram_gather(torch.ones(4, 8), torch.ones(2, 4, dtype=torch.int64)[:, ::2], form="interpret")
    with pytest.raises(ValueError, match="rows up to 16384, the table has 16385"):
        engram_gather(torch.ones(2, 16385), torch.ones(1, 1, dtype=torch.int64), form="interpret")
