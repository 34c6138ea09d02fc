import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import require_form
from kernel_suite import KernelSuite, case_id

from wholecurve.kernels.top_k import top_k
from wholecurve.kernels.top_k.spec import TESTS
from wholecurve.kernels.top_k.subject import SUBJECT
from wholecurve.profiling.checks import check_case

FORMS = ("reference", "cpu", "interpret")
INF, NAN = torch.inf, torch.nan
every_form = pytest.mark.parametrize("form", FORMS)


class TestTopK(KernelSuite):
    kernel = "top_k"
    dtypes = None
    mutant_cases = (
        {"lengths": [5, 0, 3], "width": 9, "k": 7, "values": "normal"},
        {"lengths": [300, 20], "width": 300, "k": 130, "values": "bits"},
        {"lengths": [200, 30], "width": 201, "k": 25, "values": "holes"},
        {"lengths": [8193], "width": 8193, "k": 5000, "values": "relu"},
        {"lengths": [8200], "width": 8200, "k": 4500, "values": "equal"},
    )
    mutants = {
        "32-bit rows": ("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        "one equal score too many": ("(equal_so_far < wanted)", "(equal_so_far <= wanted)"),
        "equal scores from the end": (
            "taken = larger | (equal & (equal_so_far < wanted))",
            "taken = larger | (equal & (equal_so_far >= tl.sum(equal.to(tl.int32)) - wanted))",
        ),
        "−0 below +0": ("bits == 0x80000000, 0", "bits == 0x80000001, 0"),
        "NaN above +inf": ("(bits & 0x7FFFFFFF) > 0x7F800000", "(bits & 0x7FFFFFFF) > 0x7FFFFFFF"),
        "−inf taken": ("LOWEST: tl.constexpr = 0x007FFFFF", "LOWEST: tl.constexpr = 0x007FFFFE"),
        "negative scores in reverse": ("bits ^ 0xFFFFFFFF", "bits ^ 0x80000000"),
        "digits not narrowed": ("counted & ((keys >> (32 - BITS * step)) == last_key)", "counted"),
        "last digit left out": ("tl.static_range(32 // BITS)", "tl.static_range(32 // BITS - 1)"),
        "larger ones counted again": ("wanted -= tl.sum(tl.where(found, above, 0))", "wanted = wanted"),
        "equal ones of a block forgotten": ("equal_before += in_block >> 16", "equal_before = in_block >> 16"),
        "larger ones of a block forgotten": ("larger_before += in_block &", "larger_before = in_block &"),
        "no padding": ("mask=(places >= num_taken) & (places < k)", "mask=(places > num_taken) & (places < k)"),
        "length ignored": ("tl.minimum(tl.load(lengths + row).to(tl.int32), width)", "width"),
    }


@every_form
@pytest.mark.parametrize(
    ("row", "k", "taken"),
    [
        ([1.0, 3.0, 2.0, 4.0], 2, [1, 3]),
        ([5.0], 1, [0]),
        ([5.0], 3, [0, -1, -1]),
        ([0.0, 0.0, 0.0, 0.0], 2, [0, 1]),
        ([0.0, 1.0, 0.0, 0.0, 2.0, 0.0], 4, [0, 1, 2, 4]),  # what ReLU leaves: ties at exactly 0
        ([-1.0, -1.0, -2.0, -1.0], 2, [0, 1]),
        ([-0.0, 0.0, -0.0, 0.0], 3, [0, 1, 2]),
        ([0.0, -0.0, 1e-45, -1e-45], 2, [0, 2]),
        ([-INF, 1.0, -INF], 2, [1, -1]),
        ([-INF, -INF], 2, [-1, -1]),
        ([-3.4028234663852886e38, -INF], 2, [0, -1]),
        ([1.0, NAN, INF, 2.0], 1, [1]),
        ([INF, NAN, 2.0], 1, [0]),
        ([1.0, NAN, -NAN, -INF], 2, [1, 2]),
        ([3.4028234663852886e38, INF], 1, [1]),
        ([1.0, 1.0000001, 1.0000002], 1, [2]),
    ],
    ids=str,
)
def test_known_values(form, row, k, taken):
    require_form(form)
    out = top_k(torch.tensor([row]), k, form=form)
    assert out.dtype == torch.int32 and out.tolist() == [taken]


@every_form
def test_lengths_hide_the_rest_of_a_row(form):
    require_form(form)
    scores = torch.tensor([[1.0, 2.0, 9.0, NAN], [1.0, 2.0, 9.0, NAN], [1.0, 2.0, 9.0, 3.0]])
    for dtype in (torch.int32, torch.int64):
        out = top_k(scores, 2, form=form, lengths=torch.tensor([2, 0, 3], dtype=dtype))
        assert out.tolist() == [[0, 1], [-1, -1], [1, 2]]


@every_form
def test_the_width_of_the_tensor_changes_nothing(form):
    """Ties are where a library's choice depends on the width: the same row must give the same set in any tensor."""
    require_form(form)
    torch.manual_seed(0)
    row = torch.randn(100).relu()
    expected = top_k(row[None], 70, form=form)
    for width in (101, 300, 9000):
        wide = torch.full((2, width), -INF)
        wide[1, :100] = row
        assert torch.equal(top_k(wide, 70, form=form)[1], expected[0])
        wide[1, 100:] = 7.0
        cut = top_k(wide, 70, form=form, lengths=torch.tensor([0, 100]))
        assert torch.equal(cut[1], expected[0])


@every_form
def test_strided_rows(form):
    require_form(form)
    torch.manual_seed(0)
    scores = torch.randn(4, 50)
    apart = torch.full((4, 80), INF)
    apart[:, 3:53] = scores
    assert torch.equal(top_k(apart[:, 3:53], 9, form=form), top_k(scores, 9, form=form))
    assert torch.equal(top_k(scores[:1].expand(4, -1), 9, form=form)[3], top_k(scores, 9, form=form)[0])


@every_form
def test_is_the_set_of_torch_where_nothing_ties(form):
    require_form(form)
    torch.manual_seed(0)
    scores = torch.randperm(9000)[None].float() - 4500
    for k in (1, 512, 2048, 9000):
        assert torch.equal(top_k(scores, k, form=form), scores.topk(k).indices.sort().values.int())


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.0, INF, -INF, NAN, 1e-45]), min_size=7, max_size=7),
        min_size=1,
        max_size=3,
    ),
    k=st.integers(1, 9),
    data=st.data(),
)
def test_forms_follow_the_rule(rows, k, data):
    """Against Python's sort: by score downwards, then by position upwards."""
    lengths = data.draw(st.lists(st.integers(0, 7), min_size=len(rows), max_size=len(rows)))
    expected = []
    for row, length in zip(rows, lengths):
        values = [INF if value != value else value for value in row[:length]]
        order = sorted((-value, position) for position, value in enumerate(values) if value > -INF)[:k]
        expected.append(sorted(position for _, position in order) + [-1] * (k - len(order)))
    for form in ("reference", "cpu"):
        assert top_k(torch.tensor(rows), k, form=form, lengths=torch.tensor(lengths)).tolist() == expected


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40), st.integers(1, 40))
def test_any_bits(patterns, k):
    """Every pattern of 32 bits is a score that all forms rank alike."""
    pytest.importorskip("triton")
    scores = torch.tensor([patterns], dtype=torch.int32).view(torch.float32)
    expected = top_k(scores, k, form="reference")
    assert torch.equal(top_k(scores, k, form="cpu"), expected)
    assert torch.equal(top_k(scores, k, form="interpret"), expected)


@pytest.mark.parametrize("case", TESTS, ids=case_id)
def test_baseline_agrees(case):
    finding = check_case(SUBJECT, case, "eager", variant=SUBJECT.baselines["eager"])
    assert finding, finding


def test_cost_by_hand():
    """A row that fits into a block is read once, a longer one five times: four digits of 8 bits and the compaction."""
    short = SUBJECT.cost({"lengths": [10, 0], "width": 20, "k": 5})
    assert short.load_bytes == 4 * 10 + 2 * 4 and short.store_bytes == 2 * 5 * 4
    assert short.bytes_min == short.bytes_model and short.flops == 0
    long = SUBJECT.cost({"lengths": None, "num_rows": 2, "width": 9000, "k": 5})
    assert long.load_bytes == 5 * 2 * 9000 * 4 and long.bytes_min == 2 * 9000 * 4 + 2 * 5 * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": torch.ones(4)}, "scores must be"),
        ({"scores": torch.ones(2, 4).bfloat16()}, "must be torch.float32"),
        ({"scores": torch.ones(2, 8)[:, ::2]}, "last dimension of scores is strided"),
        ({"scores": torch.ones(1, 1).expand(2, 2**30 + 1)}, "up to 2..30 positions"),
        ({"k": 0}, "k must be at least 1"),
        ({"lengths": torch.ones(3).int()}, "lengths must be"),
        ({"lengths": torch.ones(2)}, "lengths must be"),
        ({"lengths": torch.tensor([4, 5])}, "lengths of 4 to 5 do not fit rows of 4"),
        ({"lengths": torch.tensor([-1, 4])}, "lengths of -1 to 4 do not fit"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    with pytest.raises(ValueError, match=message):
        top_k(**{"scores": torch.ones(2, 4), "k": 2} | change)
