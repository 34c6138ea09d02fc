import importlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.moe_router import moe_router
from wholecurve.kernels.moe_router.spec import BENCH
from wholecurve.kernels.moe_router.subject import SUBJECT, clear_rows, eager, first_columns, top_columns

FORMS = ("reference", "cpu", "interpret")
SCORINGS = ("softmax", "sigmoid", "sqrt_softplus")
INF, NAN = torch.inf, torch.nan
every_form = pytest.mark.parametrize("form", FORMS)


class TestMoeRouter(KernelSuite):
    kernel = "moe_router"
    mutants = {
        "32-bit rows": ("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        "bias in the weights": ("tl.where(taken, scores, 0.0)", "tl.where(taken, choice, 0.0)"),
        "bias forgotten": ("choice = scores + tl.load(bias", "choice = scores + 0.0 * tl.load(bias"),
        "excluded groups take part with 0": (
            "in_best_groups(keys, NUM_GROUPS, TOP_GROUPS, ROWS, BLOCK_G, BLOCK_S), keys, NOT_CHOSEN)",
            "in_best_groups(keys, NUM_GROUPS, TOP_GROUPS, ROWS, BLOCK_G, BLOCK_S), keys, ids.to(tl.int64) ^ LAST_ID)",
        ),
        "groups by their best alone": ("value_of(best) + value_of(second)", "value_of(best)"),
        "groups by their best twice": ("tl.where(members == best[:, :, None], NOT_CHOSEN, members)", "members"),
        "one group too few": ("tl.static_range(TOP_GROUPS)", "tl.static_range(TOP_GROUPS - 1)"),
        "padding takes part with 0": (
            "tl.where(real, rank_keys(choice, ids), NOT_CHOSEN)",
            "rank_keys(choice, ids)",
        ),
        "padding in the softmax": ('logits = tl.where(real, logits, -float("inf"))', "logits = logits"),
        "ties to the highest expert": (
            ("| (ids ^ LAST_ID)", "| ids"),
            ("((best & LAST_ID) ^ LAST_ID)", "(best & LAST_ID)"),
        ),
        "negative numbers in reverse": ("ordered = tl.where(bits < 0, bits ^ SIGN_FLIP, bits)", "ordered = bits"),
        "an expert twice": ("keys = tl.where(taken, NOT_CHOSEN, keys)", "keys = keys"),
        "weights as they are": ("    if RENORMALIZE:", "    if False:"),
        "renormalised when not asked to": ("    if RENORMALIZE:", "    if True:"),
        "no scale": ("chosen_weights * scale", "chosen_weights"),
        "no root": ("return tl.sqrt(", "return ("),
    }


def logit(probability):
    return math.log(probability / (1 - probability))


@every_form
def test_bias_decides_the_choice_and_no_weight(form):
    require_form(form)
    logits, bias = torch.tensor([[logit(0.6), logit(0.5)]]), torch.tensor([-1.0, 0.0])
    for renormalize, weight in ((False, 0.5), (True, 1.0)):
        weights, experts = moe_router(logits, 1, form, scoring="sigmoid", bias=bias, renormalize=renormalize)
        assert experts.tolist() == [[1]] and experts.dtype == torch.int32
        assert weights.dtype == torch.float32 and weights.tolist() == [[pytest.approx(weight)]]
    scaled, _ = moe_router(logits, 1, form, scoring="sigmoid", bias=bias, scale=2.5)
    assert scaled.tolist() == [[pytest.approx(2.5)]]


@every_form
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("value", [0.0, -3.0])
def test_equal_logits_give_the_lowest_experts(form, scoring, value):
    require_form(form)
    logits = torch.full((3, 12), value)
    weights, experts = moe_router(logits, 5, form, scoring=scoring)
    assert experts.tolist() == [[0, 1, 2, 3, 4]] * 3 and torch.allclose(weights, torch.tensor(0.2))
    for bias in (None, torch.ones(12)):
        groups = dict(num_groups=4, top_groups=2, bias=bias)
        assert moe_router(logits, 5, form, scoring=scoring, **groups)[1].tolist() == [[0, 1, 2, 3, 4]] * 3


@every_form
@pytest.mark.parametrize(
    ("row", "chosen"),
    [
        ([1.0, 3.0, 3.0, 3.0], [1, 2]),  # a tie at the edge
        ([0.0, -0.0, 0.0], [0, 1]),
        ([-0.0, 0.0, -0.0], [0, 1]),
        ([-2.0, -1.0, -3.0], [1, 0]),
        ([-1.0, 1e-45, 0.0], [1, 2]),
        ([-INF, 2.0, -INF, 1.0], [1, 3]),
        ([-INF, 2.0, -INF], [1, 0]),
        ([-200.0, -300.0, 50.0], [2, 0]),  # the softmax of the first two is 0
        ([30.0, 40.0, 20.0], [1, 0]),  # the sigmoid of the first two is 1
    ],
    ids=str,
)
@pytest.mark.parametrize("scoring", SCORINGS)
def test_choice_is_by_the_logits(form, row, chosen, scoring):
    require_form(form)
    logits = torch.tensor([row])
    for dtype in (torch.float32, torch.bfloat16):
        assert moe_router(logits.to(dtype), 2, form, scoring=scoring)[1].tolist() == [chosen]


@every_form
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN slice")
def test_nan_ranks_last_and_stays_in_its_row(form):
    require_form(form)
    logits = torch.tensor([[NAN, 1.0, 2.0, -INF], [4.0, 1.0, 2.0, 3.0], [NAN] * 4])
    weights, experts = moe_router(logits, 2, form)
    assert weights.isnan().any(dim=1).tolist() == [True, False, True] and experts[1].tolist() == [0, 3]
    assert experts[2].tolist() == [0, 1]
    weights, experts = moe_router(logits, 3, form, scoring="sigmoid", bias=torch.zeros(4))
    assert experts.tolist() == [[2, 1, 3], [0, 3, 2], [0, 1, 2]]  # σ(−∞) = 0 is above NaN
    assert weights.isnan().any(dim=1).tolist() == [False, False, True]
    _, experts = moe_router(logits, 2, form, scoring="sigmoid", num_groups=2, top_groups=1)
    assert experts.tolist() == [[2, 3], [3, 2], [0, 1]]
    logits = torch.tensor([[NAN, 3.0, 3.0, 1.0, 1.0, 1.0]])
    assert moe_router(logits, 3, form, scoring="sigmoid", num_groups=2, top_groups=1)[1].tolist() == [[1, 2, 0]]


@every_form
def test_groups_by_the_sum_of_their_two_best(form):
    require_form(form)
    rows = [[0.9, 0.05, 0.04, 0.5, 0.5, 0.01]]  # .95 against 1.0
    logits = torch.tensor([[logit(score) for score in row] for row in rows])
    groups = dict(scoring="sigmoid", num_groups=2, top_groups=1)
    weights, experts = moe_router(logits, 2, form, renormalize=False, **groups)
    assert experts.tolist() == [[3, 4]] and weights.tolist() == [[pytest.approx(0.5)] * 2]
    # all below 0: a mask of 0 would let the others in
    weights, experts = moe_router(logits, 3, form, bias=torch.full((6,), -2.0), renormalize=False, **groups)
    assert experts.tolist() == [[3, 4, 5]] and weights.tolist() == [pytest.approx([0.5, 0.5, 0.01])]
    # experts that a bias switches off still come before those of other groups
    bias = torch.tensor([0.0, 0.0, 0.0, 5.0, -INF, 5.0])
    assert moe_router(logits, 3, form, bias=bias, **groups)[1].tolist() == [[3, 5, 4]]


@every_form
def test_softmax_of_all_renormalised_is_softmax_of_the_chosen(form):
    """What gpt-oss computes."""
    require_form(form)
    torch.manual_seed(0)
    logits = torch.randn(6, 32) * 4
    weights, experts = moe_router(logits, 4, form)
    assert torch.allclose(weights, logits.topk(4).values.softmax(dim=1), atol=1e-6, rtol=1e-5)
    assert torch.equal(experts.long(), logits.topk(4).indices)


@every_form
@pytest.mark.parametrize("scoring", SCORINGS)
def test_small_scores_keep_their_digits(form, scoring):
    """log(1 + eˣ) and 1/(1 + e⁻ˣ) of −30 are e⁻³⁰, not 0."""
    require_form(form)
    logits = torch.tensor([[-1.0, -5.0, -9.0, -17.0, -30.0, -50.0, 0.0, 3.0, 20.0]])
    weights, _ = moe_router(logits, 9, form, scoring=scoring, renormalize=False)
    exact, _ = moe_router(logits.double(), 9, "reference", scoring=scoring, renormalize=False)
    assert torch.allclose(weights.double(), exact, rtol=2e-5, atol=0), weights / exact - 1


def parity_cases():
    return {
        "qwen3_moe": ("Qwen3MoeTopKRouter", dict(scoring="softmax")),
        "gpt_oss": ("GptOssTopKRouter", dict(scoring="softmax")),
        "deepseek_v3": ("DeepseekV3TopkRouter", dict(scoring="sigmoid", num_groups=4, top_groups=2, scale=2.5)),
        "deepseek_v4": ("DeepseekV4TopKRouter", dict(scoring="sqrt_softplus", scale=1.5)),
    }


@pytest.mark.parametrize("family", parity_cases())
def test_agrees_with_transformers(family):
    transformers = pytest.importorskip("transformers")
    name, options = parity_cases()[family]
    config_class = name.split("Top")[0] + "Config"
    if not hasattr(transformers, config_class):
        pytest.skip(f"this transformers has no {config_class}")
    sizes = dict(num_experts=16, num_local_experts=16, n_routed_experts=16, num_experts_per_tok=4, hidden_size=32)
    groups = dict(n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=options.get("scale", 1.0))
    config = getattr(transformers, config_class)(**sizes, **groups)
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    torch.manual_seed(0)
    router = getattr(module, name)(config)
    for tensor in (*router.parameters(), *router.buffers()):  # zeros would leave bias and ties untested
        torch.nn.init.normal_(tensor.data, std=0.3)
    with torch.no_grad():
        logits, weights, experts = router(torch.randn(50, 32))
    bias = getattr(router, "e_score_correction_bias", None)
    for form in FORMS:
        require_form(form)
        own_weights, own_experts = moe_router(logits.detach(), 4, form, bias=bias, **options)
        order = experts.argsort(dim=1)  # transformers may leave the chosen unsorted
        own_order = own_experts.long().argsort(dim=1)
        assert torch.equal(own_experts.long().gather(1, own_order), experts.gather(1, order))
        assert torch.allclose(own_weights.gather(1, own_order), weights.gather(1, order), atol=1e-6)


@pytest.mark.parametrize("form", ["cpu", "interpret"])
@pytest.mark.parametrize("num_experts", [128, 60, 7])
@pytest.mark.parametrize("scoring", SCORINGS)
def test_a_token_does_not_depend_on_its_batch(form, num_experts, scoring):
    require_form(form)
    torch.manual_seed(0)
    logits = torch.randn(53, num_experts)
    logits[::5] = logits[::5].round()  # ties
    together = moe_router(logits, 4, form, scoring=scoring)
    for first, last in ((0, 1), (1, 2), (5, 8), (52, 53), (3, 53)):
        alone = moe_router(logits[first:last], 4, form, scoring=scoring)
        assert all(torch.equal(part, whole[first:last]) for part, whole in zip(alone, together))


@every_form
def test_rows_with_gaps_and_misaligned_ones(form):
    require_form(form)
    torch.manual_seed(0)
    buffer = torch.randn(5 * 19 + 1).bfloat16()
    logits = buffer[1:].view(5, 19)[:, :13]
    for one, other in zip(moe_router(logits, 3, form), moe_router(logits.contiguous(), 3, form)):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("num_experts", "top_k"), [(128, 8), (384, 6), (512, 10), (513, 3), (4096, 8)])
@pytest.mark.parametrize("offset", [0.0, -6.0, 1e-38])
def test_cpu_form_chooses_as_the_definition_among_many_ties(dtype, num_experts, top_k, offset):
    """Numbers of 16 bits: positive and negative ones, zeros of both signs, infinities and NaN, subnormal ones."""
    torch.manual_seed(0)
    logits = (torch.randn(300, num_experts) * (abs(offset) or 2.0) + offset).to(getattr(torch, dtype))
    logits[::7] = (logits[::7] > 0).to(logits.dtype) * -1.0
    logits[1::7, ::3], logits[2::7, ::50], logits[3::7, 5] = torch.inf, torch.nan, -torch.nan
    logits[4::7] = -torch.inf
    logits[4::14, 9:12] = 1.0
    for options in ({}, {"renormalize": False}, {"scoring": "sigmoid"}):
        weights, experts = moe_router(logits, top_k, "cpu", **options)
        wanted_weights, wanted = moe_router(logits, top_k, "reference", **options)
        assert torch.equal(experts, wanted)
        assert torch.allclose(weights, wanted_weights, rtol=1e-5, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("has_bias", [False, True])
def test_cpu_form_chooses_groups_as_the_definition_does(has_bias):
    torch.manual_seed(0)
    logits = torch.randn(300, 64).bfloat16()
    logits[::5] = logits[::5].round()
    logits[1::5, ::9], logits[2::5, 3], logits[3::5, :40], logits[4::10, 17] = (
        torch.nan,
        torch.inf,
        -torch.inf,
        torch.nan,
    )
    bias = torch.randn(64).round() if has_bias else None
    if has_bias:
        bias[5], bias[30:34] = torch.inf, -torch.inf
    options = dict(scoring="sigmoid", bias=bias, num_groups=8, top_groups=3, scale=2.5)
    for rows in (logits, logits[:7]):
        weights, experts = moe_router(rows, 6, "cpu", **options)
        wanted_weights, wanted = moe_router(rows, 6, "reference", **options)
        assert torch.equal(experts, wanted)
        assert torch.allclose(weights, wanted_weights, rtol=1e-5, atol=1e-30, equal_nan=True)


def test_cpu_form_in_parts():
    torch.manual_seed(0)
    logits = torch.randn(2100, 128).bfloat16()
    whole = moe_router(logits, 8, scale=0.5)
    parts = [moe_router(part, 8, scale=0.5) for part in logits.split(700)]
    assert all(torch.equal(one, torch.cat(other)) for one, other in zip(whole, zip(*parts)))


LEVELS = (-1.75, -0.5, 0.0, 0.25, 2.5)  # no two pairs of their sigmoids have nearly the same sum


@settings(max_examples=40)
@given(data=st.data())
def test_choice_is_the_sorted_one(data):
    """Few numbers as logits, full of ties, against a sort in plain Python."""
    num_groups = data.draw(st.sampled_from([None, 2, 3]))
    size = data.draw(st.integers(2, 5))
    num_experts = size * (num_groups or 1)
    top_groups = data.draw(st.integers(1, num_groups)) if num_groups else None
    top_k = data.draw(st.integers(1, size * (top_groups or 1)))
    row = data.draw(st.lists(st.sampled_from(LEVELS), min_size=num_experts, max_size=num_experts))
    experts = range(num_experts)
    if num_groups:
        members = [sorted(row[group * size : (group + 1) * size])[-2:] for group in range(num_groups)]
        sums = [sum(1 / (1 + math.exp(-value)) for value in best) for best in members]
        best = sorted(range(num_groups), key=lambda group: (-round(sums[group], 5), group))[:top_groups]
        experts = [expert for expert in experts if expert // size in best]
    chosen = sorted(experts, key=lambda expert: (-row[expert], expert))[:top_k]
    options = dict(scoring="sigmoid", num_groups=num_groups, top_groups=top_groups)
    for form in FORMS:
        require_form(form)
        assert moe_router(torch.tensor([row]).float(), top_k, form, **options)[1].tolist() == [chosen]


@pytest.mark.parametrize("case", [name for name in BENCH if name.endswith("-64")])
def test_hardly_any_row_is_left_out_of_the_comparison(case):
    """Rows in which fp32 cannot tell the order are not compared; that must be an exception."""
    arguments = SUBJECT.arguments(BENCH[case] | {"num_tokens": 2000})
    keys = ("logits", "top_k", "scoring", "bias", "num_groups", "top_groups")
    assert clear_rows(*(arguments[key] for key in keys)).float().mean() > 0.98


def test_baseline_agrees():
    for name in ("qwen3-64", "deepseek-v3-64", "deepseek-v4-64"):
        arguments = SUBJECT.arguments(BENCH[name] | {"dtype": "float32"}, seed=1)
        for columns in (first_columns, top_columns):
            for one, other in zip(eager(**arguments, columns=columns), moe_router(**arguments, form="cpu")):
                assert torch.allclose(one.double(), other.double(), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.ones(2, 3, 8)}, "must be \\[tokens, experts\\]"),
        ({"logits": torch.ones(2, 16)[:, ::2]}, "last dimension of logits is strided"),
        ({"logits": torch.ones(8, 2).T}, "last dimension of logits is strided"),
        ({"logits": torch.ones(2, 8).int()}, "floating point"),
        ({"logits": torch.ones(2, 5000)}, "at most 4096"),
        ({"scoring": "tanh"}, "scoring 'tanh'"),
        ({"bias": torch.ones(7)}, "bias must be \\[8\\]"),
        ({"bias": torch.ones(8).int()}, "bias must be"),
        ({"top_k": 0}, "top_k 0 must be 1 to 8"),
        ({"top_k": 9}, "top_k 9 must be 1 to 8"),
        ({"num_groups": 2}, "go together"),
        ({"num_groups": 3, "top_groups": 1}, "equal groups"),
        ({"num_groups": 8, "top_groups": 1}, "at least 2"),
        ({"num_groups": 2, "top_groups": 3}, "top_groups 3 must be 1 to 2"),
        ({"num_groups": 4, "top_groups": 1, "top_k": 3}, "top_k 3 must be 1 to 2"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    with pytest.raises(ValueError, match=message):
        moe_router(**({"logits": torch.ones(2, 8), "top_k": 2} | change))


def test_triton_form_refuses_other_dtypes():
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match=r"takes torch\.bfloat16.* logits"):
        moe_router(torch.ones(1, 4).double(), 2, "interpret")
    with pytest.raises(ValueError, match=r"takes torch\.bfloat16.* bias"):
        moe_router(torch.ones(1, 4), 2, "interpret", bias=torch.ones(4).double())
    with pytest.raises(ValueError, match="bias must be contiguous"):
        moe_router(torch.ones(1, 4), 2, "interpret", bias=torch.ones(8)[::2])
