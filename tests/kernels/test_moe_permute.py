import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.moe_permute import moe_permute
from wholecurve.kernels.moe_permute.spec import BENCH
from wholecurve.kernels.moe_permute.subject import SUBJECT, eager

FORMS = ("reference", "cpu", "interpret")
every_form = pytest.mark.parametrize("form", FORMS)


class TestMoePermute(KernelSuite):
    kernel = "moe_permute"
    dtypes = ("bfloat16", "float32")
    mutants = {
        "32-bit rows": ("rows = tl.program_id(0).to(tl.int64) * ROWS", "rows = tl.program_id(0) * ROWS"),
        "a slot counts itself": ("(compared[None, :] < lanes[:, None])", "(compared[None, :] <= lanes[:, None])"),
        "not stable": ("(compared[None, :] < lanes[:, None])", "(compared[None, :] > lanes[:, None])"),
        "slots of its own program counted before": (
            "tl.where(others < program, step, 0)",
            "tl.where(others <= program, step, 0)",
        ),
        "other programs forgotten": ("tl.where(others < program, step, 0)", "tl.where(others < 0, step, 0)"),
        "only the first programs counted": ("range(0, programs, BLOCK_PROGRAMS)", "range(0, 1, BLOCK_PROGRAMS)"),
        "offsets of the ends": ("tl.cumsum(total, axis=0) - total", "tl.cumsum(total, axis=0)"),
        "the experts behind those here kept": ("(expert >= 0) & (expert < NUM_EXPERTS)", "(expert >= 0)"),
        "dropped slots keep their rows": ("tl.where(kept, rows, -1)", "rows"),
        "dropped slots in the order": ("tl.where(kept, slots, -1)", "slots"),
        "first expert forgotten": (".to(tl.int64) - first_expert", ".to(tl.int64)"),
        "slots taken for tokens": ("tokens = (slots // TOP_K)", "tokens = (slots // 1)"),
        "rows of dropped slots left as they are": (
            "tl.store(permuted + rows * hidden + columns, values, mask=inside)",
            "tl.store(permuted + rows * hidden + columns, values, mask=inside & (slots >= 0))",
        ),
    }


def maps(x, experts, num_experts, form, **options):
    return [output.tolist() for output in moe_permute(x, experts, num_experts, form, **options)]


@every_form
def test_known_values(form):
    require_form(form)
    x, experts = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([[2, 0], [0, -1], [2, 7]]).int()
    permuted, offsets, order, inverse = maps(x, experts, 4, form)
    assert permuted == [[1, 2], [3, 4], [1, 2], [5, 6], [0, 0], [0, 0]]
    assert offsets == [0, 2, 2, 4, 4] and order == [1, 2, 0, 4, -1, -1]
    assert inverse == [[2, 0], [1, -1], [3, -1]]


@every_form
def test_token_that_names_an_expert_twice_has_two_rows(form):
    require_form(form)
    permuted, offsets, order, inverse = maps(torch.tensor([[1.0], [2.0]]), torch.tensor([[1, 1], [0, 1]]), 2, form)
    assert permuted == [[2], [1], [1], [2]] and offsets == [0, 1, 4] and order == [2, 0, 1, 3]
    assert inverse == [[1, 2], [0, 3]]


@every_form
@pytest.mark.parametrize("num_tokens", [1, 40, 300])
def test_all_rows_on_one_expert_and_one_row_each(form, num_tokens):
    require_form(form)
    x = torch.arange(num_tokens).float()[:, None]
    for expert in (0, 6):
        permuted, offsets, order, _ = moe_permute(x, torch.full((num_tokens, 1), expert), 7, form)
        assert torch.equal(permuted, x) and order.tolist() == list(range(num_tokens))
        assert offsets.tolist() == [0] * (expert + 1) + [num_tokens] * (7 - expert)
    backwards = torch.arange(num_tokens).flip(0)[:, None]
    permuted, offsets, *_ = moe_permute(x, backwards, num_tokens, form)
    assert torch.equal(permuted, x.flip(0)) and offsets.tolist() == list(range(num_tokens + 1))


@every_form
def test_ranks_of_expert_parallelism_share_the_rows_out(form):
    require_form(form)
    torch.manual_seed(0)
    x, experts = torch.randn(30, 4), torch.randint(-1, 8, (30, 3))
    whole, all_offsets, _, all_inverse = moe_permute(x, experts, 8, form)
    here = 0
    for first in (0, 4):
        permuted, offsets, _, inverse = moe_permute(x, experts, 4, form, first_expert=first)
        count = int(offsets[-1])
        assert torch.equal(permuted[:count], whole[here : here + count]) and not permuted[count:].any()
        assert torch.equal(offsets + all_offsets[first], all_offsets[first : first + 5])
        own = (experts >= first) & (experts < first + 4)
        assert torch.equal(inverse >= 0, own) and torch.equal(inverse[own] + here, all_inverse[own])
        here += count
    assert here == int(all_offsets[-1])


@every_form
def test_other_integers_and_far_numbers(form):
    """int64 experts, whole numbers as rows, and an expert that wraps to one here in 32 bits."""
    require_form(form)
    x = torch.arange(6, dtype=torch.uint8).view(3, 2)
    experts = torch.tensor([[2**32 + 1], [1], [-(2**31)]])
    permuted, offsets, order, inverse = moe_permute(x, experts, 3, form)
    assert permuted.dtype == torch.uint8 and permuted.tolist() == [[2, 3], [0, 0], [0, 0]]
    assert offsets.tolist() == [0, 0, 1, 1] and order.tolist() == [1, -1, -1] and inverse.tolist() == [[-1], [0], [-1]]
    assert {map.dtype for map in (offsets, order, inverse)} == {torch.int32}


@every_form
def test_bits_are_copied_from_rows_with_gaps_and_misaligned_ones(form):
    require_form(form)
    buffer = torch.full((4 * 9 + 1,), torch.nan).bfloat16()
    x = buffer[1:].view(4, 9)[:, :5]
    x.copy_(torch.tensor([1.0, -0.0, torch.inf, torch.nan, 1e-40]))
    permuted, *_ = moe_permute(x, torch.tensor([[1, 0], [0, 1], [1, 0], [0, 1]]), 2, form)
    assert torch.equal(permuted.view(torch.int16), x[:1].expand(8, 5).contiguous().view(torch.int16))


@every_form
def test_without_tokens(form):
    require_form(form)
    permuted, offsets, order, inverse = moe_permute(torch.ones(0, 3), torch.ones(0, 2).int(), 4, form)
    assert permuted.shape == (0, 3) and order.shape == (0,) and inverse.shape == (0, 2)
    assert offsets.tolist() == [0] * 5


@settings(max_examples=40)
@given(data=st.data())
def test_rows_are_sorted_by_expert_token_and_slot(data):
    top_k = data.draw(st.integers(1, 4))
    num_experts = data.draw(st.integers(1, 9))
    first = data.draw(st.integers(0, 3))
    named = st.integers(-1, num_experts + 3)
    rows = data.draw(st.lists(st.lists(named, min_size=top_k, max_size=top_k), max_size=70))
    flat = [expert - first for row in rows for expert in row]
    kept = [slot for slot in range(len(flat)) if 0 <= flat[slot] < num_experts]
    order = sorted(kept, key=lambda slot: (flat[slot], slot))
    offsets = [sum(flat[slot] < expert for slot in kept) for expert in range(num_experts + 1)]
    x = torch.arange(len(rows)).float()[:, None] + 1
    experts = torch.tensor(rows, dtype=torch.int32).view(len(rows), top_k)
    for form in FORMS:
        require_form(form)
        permuted, found, found_order, inverse = moe_permute(x, experts, num_experts, form, first_expert=first)
        behind = [-1] * (len(flat) - len(kept))
        assert found.tolist() == offsets and found_order.tolist() == order + behind
        assert permuted[:, 0].tolist() == [slot // top_k + 1 for slot in order] + [0] * len(behind)
        assert inverse.flatten().tolist() == [order.index(slot) if slot in order else -1 for slot in range(len(flat))]


def test_baseline_agrees():
    arguments = SUBJECT.arguments(BENCH["qwen3-64"] | {"dropped": 30})
    assert torch.equal(eager(**arguments), moe_permute(**arguments, form="cpu")[0][: 64 * 8 - 30])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 3, 4)}, "must be \\[tokens, hidden\\]"),
        ({"x": torch.ones(2, 8)[:, ::2]}, "last dimension of x is strided"),
        ({"x": torch.ones(4, 2).T}, "last dimension of x is strided"),
        ({"experts": torch.ones(3, 2).int()}, "experts must be \\[2, top_k\\]"),
        ({"experts": torch.ones(2).int()}, "experts must be"),
        ({"experts": torch.ones(2, 0).int()}, "experts must be"),
        ({"experts": torch.ones(2, 2)}, "int32 or int64"),
        ({"experts": torch.ones(2, 4).int()[:, ::2]}, "experts must be contiguous"),
        ({"num_experts": 0}, "at least 1"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    with pytest.raises(ValueError, match=message):
        moe_permute(**({"x": torch.ones(2, 4), "experts": torch.ones(2, 2).int(), "num_experts": 3} | change))


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_compiles_for_as_many_experts_as_there_are(target):
    pytest.importorskip("triton")
    from offsets import offsets_that_may_wrap

    from wholecurve.profiling.compile import compile_launch

    case = {"num_tokens": 6554, "top_k": 10, "hidden": 4096, "num_experts": 512}
    for launch in SUBJECT.launches(SUBJECT.arguments(case, "meta"))[0]:
        assert offsets_that_may_wrap(compile_launch(launch, target).asm["ttir"]) == []
