import pytest
import torch
from kernel_checks import require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.moe_permute import moe_permute
from wholecurve.kernels.moe_unpermute import moe_unpermute
from wholecurve.kernels.moe_unpermute.spec import BENCH
from wholecurve.kernels.moe_unpermute.subject import SUBJECT, eager

FORMS = ("reference", "cpu", "interpret")
NAN = torch.nan
every_form = pytest.mark.parametrize("form", FORMS)


class TestMoeUnpermute(KernelSuite):
    kernel = "moe_unpermute"
    mutants = {
        "32-bit rows": ("tokens = tl.program_id(0).to(tl.int64)", "tokens = tl.program_id(0)"),
        "row 0 for a slot without one": ("mask=(rows[:, None] >= 0) & is_column", "mask=is_column"),
        "no weights": ("share[:, None] * values", "values"),
        "the first slot's weights": ("weights + (tokens * TOP_K + slot)", "weights + (tokens * TOP_K)"),
        "last slot forgotten": ("tl.static_range(TOP_K)", "tl.static_range(TOP_K - 1)"),
        "sum in the dtype of y": (
            "total += share[:, None] * values.to(tl.float32)",
            "total = (total + share[:, None] * values.to(tl.float32)).to(values.dtype).to(tl.float32)",
        ),
        "product in the dtype of y": (
            "share[:, None] * values.to(tl.float32)",
            "(share[:, None].to(values.dtype) * values).to(tl.float32)",
        ),
        "columns unmasked": ("is_token[:, None] & is_column", "is_token[:, None]"),
    }


@every_form
def test_known_values(form):
    require_form(form)
    y = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    weights = torch.tensor([[0.5, 0.25], [2.0, 1.0], [1.0, 1.0], [0.5, 0.5]])
    inverse = torch.tensor([[0, 2], [1, -1], [-1, -1], [1, 1]]).int()  # the last one names a row twice: both count
    assert moe_unpermute(y, inverse, weights, form).tolist() == [[1.25, 12.5], [4, 40], [0, 0], [2, 20]]


@every_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_no_slot_names_does_not_matter(form, dtype):
    require_form(form)
    y = torch.tensor([[NAN], [2.0], [torch.inf]]).to(dtype)
    inverse = torch.tensor([[-1, 1], [1, -1], [-1, -1]]).int()
    weights = torch.tensor([[NAN, 1.5], [0.5, torch.inf], [NAN, NAN]])
    assert moe_unpermute(y, inverse, weights, form).tolist() == [[3.0], [1.0], [0.0]]


@every_form
def test_sum_is_in_the_order_of_slots(form):
    """In fp32 1e8 + 1 is 1e8: another order gives another sum."""
    require_form(form)
    y = torch.tensor([[1e8], [1.0], [-1e8]])
    inverse = torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 0, 1]]).int()
    assert moe_unpermute(y, inverse, torch.ones(4, 3), form).tolist() == [[0.0], [1.0], [0.0], [1.0]]


@every_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("top_k", [1, 4])
def test_undoes_the_permutation(form, dtype, top_k):
    require_form(form)
    torch.manual_seed(0)
    x, experts = torch.randn(37, 65).to(dtype), torch.randint(0, 7, (37, top_k))
    permuted, _, _, inverse = moe_permute(x, experts, 7, form)
    assert torch.equal(moe_unpermute(permuted, inverse, torch.full((37, top_k), 1 / top_k), form), x)


@every_form
def test_shares_of_expert_parallelism_add_up(form):
    require_form(form)
    torch.manual_seed(0)
    x, experts = torch.randn(20, 16), torch.randint(0, 8, (20, 2))
    total = torch.zeros_like(x)
    for first in (0, 4):
        permuted, _, _, inverse = moe_permute(x, experts, 4, form, first_expert=first)
        total += moe_unpermute(permuted, inverse, torch.full((20, 2), 0.5), form)
    assert torch.equal(total, x)


@pytest.mark.parametrize("form", ["cpu", "interpret"])
@pytest.mark.parametrize("hidden", [3, 64, 515])
def test_a_token_does_not_depend_on_its_batch(form, hidden):
    require_form(form)
    torch.manual_seed(0)
    inverse, weights = torch.randperm(70 * 2).view(70, 2).int(), torch.rand(70, 2)
    inverse[torch.rand(70, 2) < 0.2] = -1
    inverse[50:60] = torch.randperm(20).view(10, 2).int()  # tokens that keep all their slots
    for dtype in (torch.float32, torch.bfloat16):
        y = torch.randn(140, hidden).to(dtype)
        together = moe_unpermute(y, inverse, weights, form)
        for first, last in ((0, 1), (50, 60), (55, 56), (63, 66)):
            alone = moe_unpermute(y, inverse[first:last], weights[first:last], form)
            assert torch.equal(alone, together[first:last])


@every_form
def test_rows_with_gaps_and_misaligned_ones(form):
    require_form(form)
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        y = torch.randn(6 * 13 + 1).to(dtype)[1:].view(6, 13)[:, :9]
        arguments = torch.tensor([[5, 0], [3, -1]]).int(), torch.rand(2, 2)
        assert torch.equal(moe_unpermute(y, *arguments, form), moe_unpermute(y.contiguous(), *arguments, form))


def test_baseline_agrees():
    arguments = SUBJECT.arguments(BENCH["qwen3-64"] | {"dropped": 7, "dtype": "float32"})
    assert torch.allclose(eager(**arguments), moe_unpermute(**arguments, form="cpu"), atol=1e-5)


@every_form
@pytest.mark.parametrize("row", [4, -2])
def test_refuses_rows_that_y_lacks(form, row):
    require_form(form)
    with pytest.raises(IndexError, match="y has the rows 0 to 3"):
        moe_unpermute(torch.ones(4, 2), torch.tensor([[0, row]]).int(), torch.ones(1, 2), form)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.ones(4)}, "must be \\[rows, hidden\\]"),
        ({"y": torch.ones(4, 4)[:, ::2]}, "last dimension of y is strided"),
        ({"y": torch.ones(2, 4).T}, "last dimension of y is strided"),
        ({"inverse": torch.zeros(3, 2).long()}, "inverse must be"),
        ({"inverse": torch.zeros(6).int()}, "inverse must be"),
        ({"inverse": torch.zeros(3, 0).int()}, "inverse must be"),
        ({"inverse": torch.zeros(3, 4).int()[:, ::2]}, "inverse must be"),
        ({"weights": torch.ones(3, 3)}, "weights must be \\[3, 2\\]"),
        ({"weights": torch.ones(3, 2).double()}, "weights must be"),
        ({"weights": torch.ones(2, 3).T}, "weights must be"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    arguments = {"y": torch.ones(4, 2), "inverse": torch.zeros(3, 2).int(), "weights": torch.ones(3, 2)}
    with pytest.raises(ValueError, match=message):
        moe_unpermute(**(arguments | change))


def test_triton_form_refuses_other_dtypes():
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match=r"takes torch\.bfloat16"):
        moe_unpermute(torch.ones(1, 4).double(), torch.zeros(1, 1).int(), torch.ones(1, 1), "interpret")
