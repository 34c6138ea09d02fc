from itertools import pairwise

import pytest
import torch
from kernel_checks import case_id, paged_cache, require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.decode_attention import decode_attention
from wholecurve.kernels.prefill_attention import plan_prefill_attention, prefill_attention, spec
from wholecurve.kernels.prefill_attention.reference import prefill_attention_reference
from wholecurve.kernels.prefill_attention.subject import SUBJECT

FORMS = ("reference", "cpu", "interpret")
FP8 = torch.float8_e4m3fn
INF = float("inf")
WITH_DESCRIPTORS = ('{"tma": has_tma(q.device)}', '{"tma": True}')  # a mutant that takes them on a CPU


class TestPrefillAttention(KernelSuite):
    kernel = "prefill_attention"
    dtypes = None
    mutants = {
        "top-left alignment": ("- new  # negative", "* 0  # negative"),
        "a query does not see itself": ("keys[None, :] <= row_positions", "keys[None, :] < row_positions"),
        "a query sees its successor": ("keys[None, :] <= row_positions", "keys[None, :] <= 1 + row_positions"),
        "window one key wider": ("> row_positions[:, None] - window", ">= row_positions[:, None] - window"),
        "no window": ("seen &= keys[None, :] > row_positions[:, None] - window", "pass"),
        "window of the first row for all": ("tl.maximum(last_position - window", "tl.maximum(first_position - window"),
        "diagonal starts a tile late": ("// BLOCK_N * BLOCK_N\n    begin", "// BLOCK_N * BLOCK_N + BLOCK_N\n    begin"),
        "diagonal unmasked": ("part != 1:", "part == 0:"),
        "masked with a finite number": ('tl.where(seen, scores, -float("inf"))', "tl.where(seen, scores, -1e4)"),
        "NaN where nothing is seen yet": ('tl.where(new_top == -float("inf"), 0.0, new_top)', "new_top"),
        "accumulator not rescaled": ("acc = acc * rescale[:, None]", "acc = acc"),
        "sum not rescaled": ("total = total * rescale +", "total = total +"),
        "reads before the window": ("(keys >= begin) & (keys < end)", "(keys < end)"),
        "programs past the end of a chunk": ("    if tile < 0:\n        return\n", ""),
        "reads past the context": ("load_rows(v_cache, v_rows, inside,", "load_rows(v_cache, v_rows, keys >= 0,"),
        "page offset dropped": ("token = (keys % BLOCK_SIZE)", "token = (keys % BLOCK_SIZE * 0)"),
        "wrong key-value head": ("token * v_stride_token + kv_head * v_stride_g", "token * v_stride_token"),
        "wrong query head": ("rows % GROUP\n    q_rows", "rows // GROUP % GROUP\n    q_rows"),
        "rows of the next sequence": ("row_inside = tokens < new", "row_inside = tokens < new + 1"),
        "32-bit pages": ("tl.cast(start // BLOCK_SIZE, tl.int64)).to(tl.int64)", "(start // BLOCK_SIZE)).to(tl.int32)"),
        "32-bit rows of the output": (
            "out_rows = (first_token + tokens).to(tl.int64)",
            "out_rows = first_token + tokens",
        ),
        "32-bit queries": ("q_rows = (first_token + tokens).to(tl.int64)", "q_rows = (first_token + tokens)"),
        "sink in base e": ("other=0.0).to(tl.float32) * LOG2_E", "other=0.0).to(tl.float32)"),
        "k_scale dropped": ("score_scale *= tl.load(k_scale + kv_head)", "score_scale *= 1.0"),
        "v_scale of another head": ("tl.load(v_scale + kv_head)", "tl.load(v_scale)"),
        "cap without its scale": ("tanh(scores * (score_scale / soft_cap))", "tanh(scores / soft_cap)"),
        "grid for one query head": ("if max_q is None else max_q) * group", "if max_q is None else max_q)"),
        "descriptors: place in the page dropped": [
            WITH_DESCRIPTORS,
            ("k = k_cache.load([page.to(tl.int32), start % BLOCK_SIZE,", "k = k_cache.load([page.to(tl.int32), 0,"),
        ],
        "descriptors: values of head 0": [
            WITH_DESCRIPTORS,
            ("kv_head.to(tl.int32), 0])\n                v =", "0, 0])\n                v ="),
        ],
        "descriptors: values past the context": [WITH_DESCRIPTORS, ("if TMA and part == 1", "if TMA")],
    }
    # small ones that together have every option, several sequences and rows that see nothing
    mutant_cases = [spec.TESTS[index] for index in (6, 10, 14, 11, 9, 2)]

    @pytest.mark.parametrize("dtype", ["float16", "float32"])
    @pytest.mark.parametrize("case", [case for case in spec.TESTS if "cache_dtype" not in case], ids=case_id)
    def test_agrees_in_other_dtypes(self, case, dtype, form):
        from wholecurve.profiling.checks import check_case

        if (form, dtype) == ("interpret", "float32") and self.subject.cost(case).flops > 5e6:
            pytest.skip("fp32 runs in small tiles, which are slow to interpret")
        finding = check_case(self.subject, case | {"dtype": dtype}, form)
        assert finding, finding


def by_hand(q, k_cache, v_cache, block_table, context_lens, cu_q, scale, *, window, soft_cap, sinks, **options):
    """(out, LSE) in float64, row by row; shares no code with the forms."""
    out, lse = torch.zeros(*q.shape[:2], v_cache.shape[3]).double(), torch.zeros(q.shape[:2]).double()
    group, size = q.shape[1] // k_cache.shape[2], k_cache.shape[1]
    factors = [
        1.0 if options[name] is None else torch.as_tensor(options[name]).double().view(-1, 1)
        for name in ("k_scale", "v_scale")
    ]
    for sequence, (start, end) in enumerate(pairwise(cu_q.tolist())):
        for row in range(start, end):
            position = int(context_lens[sequence]) - end + row
            keys = range(max(0, position - (window or position + 1) + 1), position + 1)
            slots = [(int(block_table[sequence, key // size]), key % size) for key in keys]
            k, v = (
                torch.stack([cache[slot].double() * factor for slot in slots]).repeat_interleave(group, 1)
                if slots
                else torch.zeros(0, q.shape[1], cache.shape[3]).double()
                for cache, factor in zip((k_cache, v_cache), factors)
            )  # [keys, H, D]
            scores = torch.einsum("hd,shd->sh", q[row].double(), k) * scale
            scores = scores if soft_cap is None else soft_cap * torch.tanh(scores / soft_cap)
            weights = torch.exp(scores)
            total = weights.sum(0) + (0 if sinks is None else sinks.double().exp())
            out[row] = torch.einsum("sh,shd->hd", weights, v) / total.where(total > 0, 1)[:, None]
            lse[row] = total.log()
    return out, lse


@pytest.mark.parametrize("case", spec.TESTS, ids=case_id)
def test_the_definition_by_hand(case):
    arguments = SUBJECT.arguments(case)
    wanted = by_hand(**arguments)
    lists = {name: arguments[name].tolist() for name in ("context_lens", "cu_q")}
    del arguments["max_q"]
    found = prefill_attention_reference(**(arguments | lists | {"q": arguments["q"].double(), "return_lse": True}))
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def tiny(q, k, v, block_size=8, **options):
    """Output of new tokens q [new, H, D] over keys [context, G, D] in consecutive pages; returns (out, LSE)."""
    pages = -(-len(k) // block_size)
    caches = []
    for stored in (k, v):
        cache = torch.full((pages * block_size, *stored.shape[1:]), torch.nan)
        cache[: len(stored)] = stored
        caches.append(cache.view(pages, block_size, *stored.shape[1:]))
    table = torch.arange(pages)[None]
    options = {"scale": 1.0, "return_lse": True} | options
    return prefill_attention(q, *caches, table, [len(k)], [0, len(q)], **options)


def equal_keys(values, new=1, heads=1, **options):
    """Attention over keys that all have score 0 and these values."""
    k = torch.zeros(len(values), 1, 64)
    v = torch.tensor(values, dtype=torch.float32)[:, None, None].expand(-1, 1, 64)
    out, lse = tiny(torch.ones(new, heads, 64), k, v, **options)
    return out[..., 0], lse


@pytest.mark.parametrize("form", FORMS)
class TestKnownValues:
    @pytest.fixture(autouse=True)
    def needs(self, form):
        require_form(form)

    def test_bottom_right_alignment(self, form):
        """Prefix 3, two new tokens: the first sees 4 keys, the second 5."""
        out, lse = equal_keys([1, 2, 3, 4, 15], new=2, form=form)
        assert out[:, 0].tolist() == pytest.approx([10 / 4, 25 / 5])
        assert lse[:, 0].exp().tolist() == pytest.approx([4, 5])

    def test_one_key_gives_its_value_and_its_score(self, form):
        q, k, v = torch.randn(3, 1, 1, 64).unbind()
        out, lse = tiny(q, k, v, scale=0.3, form=form)
        assert torch.equal(out, v)
        assert float(lse) == pytest.approx(float(0.3 * (q * k).sum()), abs=1e-5)

    def test_more_new_tokens_than_context(self, form):
        for sinks, nothing in ((None, -INF), (torch.tensor([0.5, -INF]), [0.5, -INF])):
            k = torch.zeros(2, 1, 64)
            out, lse = tiny(torch.ones(4, 2, 64), k, k + 3, sinks=sinks, form=form)
            assert (out[:2] == 0).all() and (out[2:, 1] == 3).all()
            assert torch.equal(lse[:2], torch.tensor(nothing).expand(2, 2))
            assert lse[2:, 1].exp().tolist() == pytest.approx([1, 2])

    def test_no_context_at_all(self, form):
        empty = torch.zeros(1, 8, 1, 64)
        arguments = (torch.ones(3, 1, 64), empty, empty, torch.zeros(1, 1, dtype=torch.int32), [0], [0, 3], 1.0)
        out, lse = prefill_attention(*arguments, return_lse=True, form=form)
        assert (out == 0).all() and (lse == -INF).all()

    def test_window_counts_the_query_itself(self, form):
        """At position 5 a window of 4 sees keys 2 to 5, the meaning of transformers."""
        values = [1.0, 2, 4, 8, 16, 32]
        assert float(equal_keys(values, window=4, form=form)[0]) == pytest.approx((4 + 8 + 16 + 32) / 4)
        assert float(equal_keys(values, window=1, form=form)[0]) == 32
        for window in (6, 7, 1000):
            assert float(equal_keys(values, window=window, form=form)[0]) == pytest.approx(63 / 6)

    def test_sink_joins_the_denominator_once(self, form):
        for sink, wanted in ((0.0, 2.0), (-INF, 3.0), (50.0, 0.0)):
            out, lse = equal_keys([2.0, 4.0], sinks=torch.tensor([sink]), form=form)
            assert float(out) == pytest.approx(wanted, abs=1e-6)
            assert float(lse) == pytest.approx(float(torch.tensor([0.0, 0.0, sink]).logsumexp(0)))
        # over several tiles of keys too
        assert float(equal_keys([2.0] * 199, sinks=torch.zeros(1), form=form)[0]) == pytest.approx(2 * 199 / 200)

    def test_soft_cap_bounds_the_scores(self, form):
        q, k = torch.full((1, 1, 64), 2.0), torch.tensor([[[1.0]], [[-1.0]]]).expand(2, 1, 64)
        v = torch.tensor([[[1.0]], [[0.0]]]).expand(2, 1, 64).contiguous()
        out, lse = tiny(q, k.contiguous(), v, scale=0.02, soft_cap=1.5, form=form)
        score = 1.5 * torch.tanh(torch.tensor(64 * 2 * 0.02 / 1.5))
        assert float(out[0, 0, 0]) == pytest.approx(float(torch.sigmoid(2 * score)), rel=1e-6)
        assert float(lse) == pytest.approx(float(torch.stack([score, -score]).logsumexp(0)), rel=1e-6)

    def test_query_heads_read_their_key_value_head(self, form):
        k = torch.zeros(5, 2, 64)
        v = torch.tensor([10.0, 20.0])[None, :, None].expand(5, 2, 64).contiguous()
        out, _ = tiny(torch.ones(3, 14, 64), k, v, form=form)
        assert torch.allclose(out[..., 0], torch.tensor([10.0] * 7 + [20.0] * 7).expand(3, 14))

    @pytest.mark.parametrize("per_head", [False, True])
    def test_fp8_scales(self, form, per_head):
        """k_scale and v_scale differ, and 0 is a scale: its keys are equal, its values 0."""
        torch.manual_seed(0)
        q, k, v = torch.randn(6, 4, 64), torch.randn(70, 2, 64), torch.randn(70, 2, 64)
        k8, v8 = (stored.to(FP8) for stored in (k, v))
        for k_scale, v_scale in (([0.25, 3.0], [2.0, 0.5]), ([0.0, 0.0], [1.0, 0.0])):
            if not per_head:
                k_scale, v_scale = k_scale[:1] * 2, v_scale[:1] * 2
            wide = [stored.float() * torch.tensor(scale)[:, None] for stored, scale in ((k8, k_scale), (v8, v_scale))]
            wanted, wanted_lse = tiny(q.bfloat16().float(), *wide, scale=0.1, form="reference")
            scales = [torch.tensor(scale) if per_head else scale[0] for scale in (k_scale, v_scale)]
            caches = [torch.cat([stored, stored[:2]]).view(9, 8, 2, 64) for stored in (k8, v8)]
            arguments = (q.bfloat16(), *caches, torch.arange(9)[None], [70], [0, 6], 0.1)
            out, lse = prefill_attention(*arguments, k_scale=scales[0], v_scale=scales[1], return_lse=True, form=form)
            assert torch.allclose(out.float(), wanted, atol=float(wanted.abs().max()) / 128)
            assert torch.allclose(lse, wanted_lse, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("first", "window"), [(1, None), (15, None), (16, None), (17, None), (33, None), (1, 5), (16, 5), (31, 5)]
)
def test_two_chunks_are_one(form, first, window):
    require_form(form)
    total = 34
    k_cache, v_cache, block_table, _, _, _ = paged_cache([total], 16, 2, 64, torch.float32)
    q = torch.randn(total, 6, 64)
    arguments = (k_cache, v_cache, block_table)
    whole = prefill_attention(q, *arguments, [total], [0, total], 0.125, form=form, window=window)
    parts = [
        prefill_attention(q[:first], *arguments, [first], [0, first], 0.125, form=form, window=window),
        prefill_attention(q[first:], *arguments, [total], [0, total - first], 0.125, form=form, window=window),
    ]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-6)


DECODE_OPTIONS = [
    {},
    {"window": 70},
    {"window": 9, "has_sinks": True, "return_lse": True},
    {"v_head_dim": 80, "soft_cap": 2.0, "return_lse": True},
    {"cache_dtype": "float8_e4m3fn", "scales": "head"},
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", DECODE_OPTIONS, ids=case_id)
def test_one_new_token_is_decode(form, options):
    arguments = SUBJECT.arguments(spec.case([(1, 1), (1, 16), (1, 133)], 4, 2, 64, 16, **options))
    require_form(form)
    prefill = SUBJECT.run(arguments, form)
    del arguments["cu_q"], arguments["max_q"]
    decode = SUBJECT.outputs(decode_attention(**arguments, form=form), {})
    for one, other in zip(prefill, decode, strict=True):
        assert torch.allclose(one.float(), other.float(), atol=0.02 if one.dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_shared_pages(form):
    """Two sequences that share a prefix read the same pages."""
    require_form(form)
    k_cache, v_cache, block_table, _, _, _ = paged_cache([40], 16, 2, 64, torch.float32)
    q = torch.randn(7, 4, 64)
    table = block_table.expand(2, -1).contiguous()
    both = prefill_attention(q, k_cache, v_cache, table, [40, 20], [0, 3, 7], 0.125, form=form)
    for rows, context in ((slice(0, 3), 40), (slice(3, 7), 20)):
        alone = prefill_attention_reference(q[rows], k_cache, v_cache, block_table, [context], [0, len(q[rows])], 0.125)
        assert torch.allclose(both[rows], alone, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("poison", [float("nan"), INF, 1e30])
def test_poison_in_unused_places_never_reaches_the_output(form, poison):
    require_form(form)
    k_cache, v_cache, block_table, _, _, _ = paged_cache([5, 40, 0], 16, 1, 64, torch.float32)
    q = torch.randn(9, 3, 64)
    arguments = (block_table, [5, 40, 0], [0, 2, 8, 9], 0.125)
    wanted = prefill_attention_reference(q, k_cache, v_cache, *arguments)
    for poisoned in range(2):
        caches = [k_cache.nan_to_num(0.0), v_cache.nan_to_num(0.0)]
        caches[poisoned][k_cache.isnan()] = poison
        assert torch.allclose(prefill_attention(q, *caches, *arguments, form=form), wanted, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("page", [-1, 1000])
def test_a_used_entry_outside_the_cache_is_an_error(form, page):
    require_form(form)
    k_cache, v_cache, block_table, _, _, _ = paged_cache([40], 16, 1, 64, torch.float32)
    block_table[0, 1] = page
    with pytest.raises(IndexError):
        prefill_attention(torch.ones(2, 1, 64), k_cache, v_cache, block_table, [40], [0, 2], 1.0, form=form)
    # wholly before the window, or past the context, it is never looked at
    prefill_attention(torch.ones(2, 1, 64), k_cache, v_cache, block_table, [40], [0, 2], 1.0, form=form, window=7)
    prefill_attention(torch.ones(2, 1, 64), k_cache, v_cache, block_table, [16], [0, 2], 1.0, form=form)


def test_lengths_and_offsets_may_be_lists_or_tensors():
    k_cache, v_cache, block_table, context_lens, _, _ = paged_cache([40, 7], 16, 2, 64, torch.float32)
    q = torch.randn(5, 4, 64)
    for form in FORMS:
        require_form(form)
        lists = prefill_attention(q, k_cache, v_cache, block_table, [40, 7], [0, 2, 5], 0.1, form=form)
        for index in (torch.int32, torch.int64):
            numbers = context_lens.to(index), torch.tensor([0, 2, 5], dtype=index)
            assert torch.equal(prefill_attention(q, k_cache, v_cache, block_table, *numbers, 0.1, form=form), lists)


def test_a_plan_is_shared_between_layers():
    k_cache, v_cache, block_table, _, _, _ = paged_cache([40, 0, 200], 16, 2, 64, torch.float32)
    lengths = ([40, 0, 200], [0, 8, 8, 78])
    for window in (None, 30):
        plan = plan_prefill_attention(block_table, *lengths, 16, window=window)
        for _ in range(2):
            arguments = (torch.randn(78, 4, 64), k_cache, v_cache, block_table, *lengths, 0.125)
            planned = prefill_attention(*arguments, plan=plan, window=window)
            assert torch.equal(planned, prefill_attention(*arguments, window=window))
    assert plan_prefill_attention(block_table, *lengths, 16, form="reference") is None
    with pytest.raises(ValueError, match="the plan is for window 30, not for None"):
        prefill_attention(*arguments, plan=plan)


REFUSALS = [
    ({"q": torch.ones(5, 64)}, "must be \\[tokens"),
    ({"q": torch.ones(5, 3, 64)}, "3 query heads are no multiple of 2"),
    ({"q": torch.ones(5, 4, 64).half()}, "q is torch.float16"),
    ({"q": torch.ones(5, 4, 32)}, "do not fit q"),
    ({"v_cache": torch.ones(4, 16, 1, 64)}, "do not fit q"),
    ({"v_cache": torch.ones(4, 16, 2, 64).to(FP8)}, "caches are torch.float32 and torch.float8"),
    ({"block_table": torch.zeros(2, 2)}, "block_table must be int32 or int64, it is torch.float32"),
    ({"block_table": torch.zeros(3, 2, dtype=torch.int32)}, "for 2 contexts and a block_table \\(3, 2\\)"),
    ({"cu_q": torch.tensor([0.0, 2, 5])}, "cu_q must be int32 or int64"),
    ({"context_lens": torch.tensor([2, 3], dtype=torch.int16)}, "context_lens must be int32 or int64"),
    ({"cu_q": [0, 5]}, "cu_q has 2 entries"),
    ({"cu_q": [0, 2, 4]}, "rise from 0 to 5"),
    ({"cu_q": [0, 6, 5]}, "rise from 0 to 5"),
    ({"cu_q": [1, 2, 5]}, "rise from 0 to 5"),
    ({"context_lens": [2, 33]}, "33 tokens but a block_table for 32"),
    ({"context_lens": [2, -1]}, "a context of -1 tokens"),
    ({"max_q": 2}, "3 new tokens but max_q is 2"),
    ({"max_q": -1}, "max_q must not be negative"),
    ({"scale": 0.0}, "scale must be positive"),
    ({"window": 0}, "window must be at least 1"),
    ({"soft_cap": 0.0}, "soft_cap must be positive"),
    ({"sinks": torch.ones(2)}, "sinks must be \\[4\\] floats"),
    ({"sinks": torch.ones(4, dtype=torch.int32)}, "sinks must be \\[4\\] floats"),
    ({"k_scale": 1.0}, "k_scale is for fp8 caches, not torch.float32"),
    ({"form": "cuda"}, "does not exist"),
]


def small_arguments(**changes):
    arguments = {
        "q": torch.ones(5, 4, 64),
        "k_cache": torch.ones(4, 16, 2, 64),
        "v_cache": torch.ones(4, 16, 2, 64),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "context_lens": [2, 3],
        "cu_q": [0, 2, 5],
        "scale": 1.0,
    }
    return arguments | changes


@pytest.mark.parametrize(("change", "message"), REFUSALS)
def test_refuses_what_it_cannot_do(change, message):
    with pytest.raises(ValueError, match=message):
        prefill_attention(**small_arguments(**change))


def test_refuses_scales_out_of_contract():
    caches = {name: torch.ones(4, 16, 2, 64).to(FP8) for name in ("k_cache", "v_cache")}
    arguments = small_arguments(q=torch.ones(5, 4, 64).bfloat16(), **caches)
    with pytest.raises(ValueError, match=r"k_scale must be a float or \[2\] torch\.float32, it is \(4,\)"):
        prefill_attention(**arguments, k_scale=torch.ones(4))
    with pytest.raises(ValueError, match=r"v_scale must not be negative, it is -1\.0"):
        prefill_attention(**arguments, v_scale=-1.0)
    assert (prefill_attention(**arguments, k_scale=1.0, v_scale=torch.full((2,), 3.0)) == 3).all()


TRITON_REFUSALS = [
    ({name: small_arguments()[name].double() for name in ("q", "k_cache", "v_cache")}, r"takes torch\.bfloat16"),
    ({"q": torch.ones(5, 4, 128)[:, :, ::2]}, "last dimension of q is strided"),
    ({"v_cache": torch.ones(4, 16, 64, 2).transpose(2, 3)}, "last dimension of v_cache is strided"),
    ({"q": torch.ones(5, 4, 600), "k_cache": torch.ones(4, 16, 2, 600)}, "heads up to 512, not 600"),
    ({"sinks": torch.ones(8)[::2]}, "sinks must be contiguous"),
]


@pytest.mark.parametrize(("change", "message"), TRITON_REFUSALS)
def test_triton_form_refuses_what_it_cannot_read(change, message):
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match=message):
        prefill_attention(**small_arguments(**change), form="interpret")


@pytest.mark.parametrize("case", spec.TESTS, ids=case_id)
@pytest.mark.parametrize("baseline", ["eager", "library"])
def test_baselines_compute_the_same(case, baseline):
    arguments = SUBJECT.arguments(case)
    try:
        found = SUBJECT.outputs(SUBJECT.baselines[baseline](**arguments), arguments)
    except ValueError:
        assert baseline == "library" and (case.keys() & {"soft_cap", "has_sinks", "return_lse", "scales"})
        return
    for one, other in zip(found, SUBJECT.run(arguments, "reference"), strict=True):
        assert one.dtype == other.dtype
        assert torch.allclose(one.float(), other.float(), atol=0.03, rtol=0.02)
