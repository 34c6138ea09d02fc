import itertools
import math

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from kernel_checks import DTYPES, case_id, require_form
from kernel_suite import HAS_TRITON, KernelSuite

from wholecurve.kernels.decode_attention import decode_attention, plan_decode_attention, spec
from wholecurve.kernels.decode_attention.cpu import key_range, padded_width
from wholecurve.kernels.decode_attention.reference import decode_attention_reference
from wholecurve.kernels.decode_attention.subject import SUBJECT, eager, library
from wholecurve.kernels.inputs import dtype_name
from wholecurve.profiling.checks import check_case

FORMS = ("reference", "cpu", "interpret")
FP8 = "float8_e4m3fn"


# small cases that between them use everything
MUTANT_CASES = (
    spec.case([20], 4, 2, 16, 16, scales="head", **spec.FP8),
    spec.case([17, 3], 4, 2, 80, 4, num_queries=2, window=9, has_sinks=True, return_lse=True),
    spec.case([270, 0, 2], 2, 1, 16, 8, num_queries=3, soft_cap=4.0, return_lse=True, v_head_dim=80),
    spec.case([262, 4], 2, 1, 16, 16, num_queries=8, window=4, has_sinks=True),
    spec.case([260, 9], 4, 2, 16, 16, has_sinks=True, scales="head", **spec.FP8),
    spec.case([4400], 1, 1, 16, 128),
)
MUTANTS = {
    "32-bit pages": ("other=0).to(tl.int64)\n", "other=0)\n"),
    "32-bit sequences": (
        "sequence, split = tl.program_id(2).to(tl.int64), tl.program_id(1)",
        "sequence, split = tl.program_id(2), tl.program_id(1)",
    ),
    "merging nothing with nothing": ('tl.where(top == -float("inf"), 0.0, top)', "top"),
    "a masked score is finite": ('tl.where(seen, scores, -float("inf"))', "tl.where(seen, scores, -1e30)"),
    "an empty sum divides": ("tl.where(total == 0, 1.0, total)", "total"),
    "a sink in every split": (
        "target, slots = partial_out, out_rows * num_splits + split",
        "target, slots = partial_out, out_rows * num_splits + split\n"
        "        if HAS_SINKS:\n"
        "            total += power_of_2(tl.load(sinks + heads, mask=row_inside, other=0.0) * LOG2_E, top)",
    ),
    "a sink in base e": ("tl.load(sinks + head).to(tl.float32) * LOG2_E", "tl.load(sinks + head).to(tl.float32)"),
    "window one short": ("> row_positions[:, None] - WINDOW", "> row_positions[:, None] - WINDOW + 1"),
    "window one long": ("> row_positions[:, None] - WINDOW", ">= row_positions[:, None] - WINDOW"),
    "window starts a key late": ("context - QUERIES - WINDOW + 1, 0", "context - QUERIES - WINDOW + 2, 0"),
    "a query does not see itself": ("<= row_positions[:, None]", "< row_positions[:, None]"),
    "a query sees the next": ("<= row_positions[:, None]", "<= row_positions[:, None] + 1"),
    "top-left causal": ("row_positions = context - QUERIES + query_tokens", "row_positions = query_tokens"),
    "the last page is full": ("inside = positions < end", "inside = positions < start + SPLIT"),
    "pages of one token": ("(positions % BLOCK_SIZE)", "(positions % 1)"),
    "a table for all sequences": ("sequence * table_stride + positions", "positions"),
    "a query for all sequences": ("q_rows = sequence * q_stride_b + ", "q_rows = "),
    "heads take turns with key-value heads": (
        "kv_head * GROUP + rows % GROUP",
        "rows % GROUP * (num_heads // GROUP) + kv_head",
    ),
    "the sum is not rescaled": ("total = total * rescale + tl.sum(weights", "total = total + tl.sum(weights"),
    "splits are not rescaled": ("power_of_2(tops, new_top)", "power_of_2(tops, tops)"),
    "the last split is lost": ("tl.cdiv(context - first, SPLIT)", "(context - first) // SPLIT"),
    "only the first splits are merged": ("splits = done + tl.arange", "splits = tl.arange"),
    "LSE in base 2": ("tl.log2(denominator)) * LN_2", "tl.log2(denominator))"),
    "no cap": ("cap_log2 * tanh(scores)", "cap_log2 * scores"),
    "the scale of V for K": ("tl.load(k_scale + kv_head)", "tl.load(v_scale + kv_head)"),
    "the scale of the first head": ("tl.load(v_scale + kv_head)", "tl.load(v_scale)"),
    "the scale of a query head": ("tl.load(v_scale + head // GROUP)", "tl.load(v_scale + head)"),
    "the rest of K is skipped": ("scores = tl.dot(query_rest, k, scores", "tl.dot(query_rest, k, scores"),
    "the rest of V is not rescaled": ("acc_rest * rescale[:, None]", "acc_rest"),
}


class TestDecodeAttention(KernelSuite):
    kernel = "decode_attention"
    mutants = MUTANTS
    mutant_cases = MUTANT_CASES


def dense(cache, table_row, context):
    """[context, G, D] in float64: what the pages of a sequence hold; any page for an entry before a window."""
    pages = table_row[: -(-context // cache.shape[1])].long().clamp(0, len(cache) - 1)
    return cache[pages].flatten(0, 1)[:context].double()


def row_by_hand(q, k, v, position, scale, window, soft_cap, sink):
    """(output [Dv], LSE) of one query head at a position in float64, key by key. q: [Dk], k, v: [context, Dk or Dv]."""
    first = 0 if window is None else max(0, position - window + 1)
    scores = [float(k[key] @ q) * scale for key in range(first, position + 1)]
    if soft_cap is not None:
        scores = [soft_cap * math.tanh(score / soft_cap) for score in scores]
    top = max([*scores, sink])
    if top == -math.inf:
        return torch.zeros(v.shape[1]).double(), -math.inf
    weights = torch.tensor([math.exp(score - top) for score in scores], dtype=torch.float64)
    total = float(weights.sum()) + math.exp(sink - top)
    return weights @ v[first : position + 1] / total, top + math.log(total)


def attention_by_hand(
    q, k_cache, v_cache, block_table, context_lens, scale, *, window, soft_cap, sinks, return_lse, k_scale, v_scale
):
    """([B, Q, H, Dv], [B, Q, H]) in float64, row by row, no code shared with the definition."""
    q = (q if q.dim() == 4 else q[:, None]).double()
    group = q.shape[2] // k_cache.shape[2]
    out, lse = torch.zeros(*q.shape[:3], v_cache.shape[3]).double(), torch.zeros(q.shape[:3]).double()
    for sequence, query, head in itertools.product(*map(range, q.shape[:3])):
        context, kv_head = int(context_lens[sequence]), head // group
        k, v = (
            dense(cache, block_table[sequence], context)[:, kv_head]
            * (1.0 if factor is None else float(factor[kv_head]) if isinstance(factor, torch.Tensor) else factor)
            for cache, factor in ((k_cache, k_scale), (v_cache, v_scale))
        )
        sink = -math.inf if sinks is None else float(sinks[head])
        position = context - q.shape[1] + query
        out[sequence, query, head], lse[sequence, query, head] = row_by_hand(
            q[sequence, query, head], k, v, position, scale, window, soft_cap, sink
        )
    return out, lse


@st.composite
def cases(draw):
    """Any small case: every option with every other."""
    num_kv_heads, group = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3, 7]))
    cache_dtype = draw(st.sampled_from([None, FP8]))
    return spec.case(
        draw(st.lists(st.integers(0, 70), max_size=3)),
        num_kv_heads * group,
        num_kv_heads,
        draw(st.integers(1, 40)),
        draw(st.sampled_from([1, 5, 16, 64])),
        num_queries=draw(st.sampled_from([None, 1, 2, 5])),
        v_head_dim=draw(st.sampled_from([16, 23, 40])),
        window=draw(st.none() | st.integers(1, 80)),
        soft_cap=draw(st.none() | st.floats(1.0, 50.0)),
        has_sinks=draw(st.booleans()),
        return_lse=draw(st.booleans()),
        cache_dtype=cache_dtype,
        scales=draw(st.sampled_from([None, "tensor", "head"])) if cache_dtype else None,
        dtype=draw(st.sampled_from(["bfloat16", "float16", "float32"])),
        index_dtype=draw(st.sampled_from(["int32", "int64"])),
    )


@hypothesis.given(case=cases(), seed=st.integers(0, 99))
@hypothesis.settings(max_examples=40)
def test_all_forms_agree_on_any_case(case, seed):
    for form in FORMS if HAS_TRITON else FORMS[:2]:
        finding = check_case(SUBJECT, case, form, seed=seed)
        assert finding, finding


@hypothesis.given(case=cases(), seed=st.integers(0, 99))
@hypothesis.settings(max_examples=25)
def test_the_definition_is_what_its_formula_says(case, seed):
    arguments = SUBJECT.arguments(case | {"return_lse": True}, seed=seed)
    caches = (arguments.pop("k_cache").double(), arguments.pop("v_cache").double())
    q, rest = arguments.pop("q").double(), [arguments.pop(name) for name in ("block_table", "context_lens", "scale")]
    out, lse = decode_attention_reference(q, *caches, *rest, **arguments)
    by_hand, lse_by_hand = attention_by_hand(q, *(cache.nan_to_num(7.0) for cache in caches), *rest, **arguments)
    assert torch.allclose(out, by_hand.view(out.shape), rtol=1e-9, atol=1e-12)
    assert torch.allclose(lse, lse_by_hand.view(lse.shape), rtol=1e-9, atol=1e-12)


def keys_of_one_head(keys, values, num_queries=None, dtype=torch.float32):
    """Arguments for a query of ones over keys and values given as lists of numbers, two channels, pages of 2."""
    context, pages = len(keys), -(-len(keys) // 2)
    k_cache, v_cache = torch.full((pages, 2, 1, 2), torch.nan), torch.full((pages, 2, 1, 2), torch.nan)
    k_cache.view(-1, 2)[:context] = torch.tensor(keys)[:, None] * torch.tensor([1.0, 0.0])
    v_cache.view(-1, 2)[:context] = torch.tensor(values)[:, None]
    q = torch.ones(1, 1, 2) if num_queries is None else torch.ones(1, num_queries, 1, 2)
    table = torch.arange(pages)[None]
    return q.to(dtype), k_cache.to(dtype), v_cache.to(dtype), table, torch.tensor([context]), 1.0


@pytest.mark.parametrize("form", FORMS)
class TestKnownValues:
    @pytest.fixture(autouse=True)
    def form_exists(self, form):
        require_form(form)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_one_token_is_its_value_exactly(self, form, dtype):
        case = spec.case([1, 1], 6, 2, 64, 16, dtype=dtype_name(dtype), return_lse=True)
        arguments = SUBJECT.arguments(case)
        out, lse = decode_attention(**arguments, form=form)
        assert torch.equal(out, decode_attention(**arguments | {"return_lse": False}, form=form))
        for sequence in range(2):
            k, v = (
                dense(arguments[cache], arguments["block_table"][sequence], 1)[0].repeat_interleave(3, dim=0)
                for cache in ("k_cache", "v_cache")
            )
            assert torch.equal(out[sequence].double(), v)
            products = (arguments["q"][sequence].double() * k).sum(dim=1) * arguments["scale"]
            assert torch.allclose(lse[sequence].double(), products, rtol=1e-5, atol=1e-5)

    def test_no_token_gives_zeros_and_the_sink(self, form):
        arguments = SUBJECT.arguments(spec.case([0, 3, 0], 4, 2, 16, 4, return_lse=True))
        out, lse = decode_attention(**arguments, form=form)
        assert (out[[0, 2]] == 0).all() and (lse[[0, 2]] == -torch.inf).all() and lse[1].isfinite().all()
        sinks = torch.tensor([0.5, -1.0, -torch.inf, 40.0])
        out, lse = decode_attention(**arguments | {"sinks": sinks}, form=form)
        assert (out[0] == 0).all() and torch.allclose(lse[0], sinks)

    def test_a_sink_takes_its_share(self, form):
        arguments = keys_of_one_head([0.0, 0.0], [2.0, 4.0])
        for sink, mean in ((0.0, 2.0), (-math.inf, 3.0), (50.0, 0.0), (None, 3.0)):
            sinks = None if sink is None else torch.tensor([sink])
            out, lse = decode_attention(*arguments, form=form, sinks=sinks, return_lse=True)
            assert out.flatten().tolist() == pytest.approx([mean, mean], abs=1e-6)
            count = 2 + (0 if sink is None else math.exp(sink))
            assert float(lse) == pytest.approx(math.log(count), rel=1e-6)

    def test_sinks_may_have_a_narrow_dtype(self, form):
        sinks = torch.tensor([0.0], dtype=torch.bfloat16)
        out = decode_attention(*keys_of_one_head([0.0, 0.0], [2.0, 4.0]), form=form, sinks=sinks)
        assert out.flatten().tolist() == pytest.approx([2.0, 2.0])

    @pytest.mark.parametrize(
        ("window", "mean"), [(1, 32.0), (2, 24.0), (4, 15.0), (6, 10.5), (7, 10.5), (None, 10.5), (10**9, 10.5)]
    )
    def test_window_at_position_5(self, form, window, mean):
        """The transformers meaning: a window of 4 at position 5 sees keys 2 to 5."""
        arguments = keys_of_one_head([0.0] * 6, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
        out = decode_attention(*arguments, form=form, window=window)
        assert out.flatten().tolist() == pytest.approx([mean, mean], rel=1e-6)

    def test_queries_are_the_last_positions(self, form):
        """Prefix 3, 2 query tokens: the first sees 4 keys, the second 5; with a window of 2 each sees 2."""
        arguments = keys_of_one_head([0.0] * 5, [1.0, 2.0, 3.0, 4.0, 15.0], num_queries=2)
        assert decode_attention(*arguments, form=form)[0, :, 0, 0].tolist() == pytest.approx([2.5, 5.0])
        assert decode_attention(*arguments, form=form, window=2)[0, :, 0, 0].tolist() == pytest.approx([3.5, 9.5])

    def test_more_queries_than_tokens(self, form):
        arguments = keys_of_one_head([0.0] * 2, [1.0, 3.0], num_queries=4)
        out, lse = decode_attention(*arguments, form=form, return_lse=True)
        assert out[0, :, 0, 0].tolist() == [0.0, 0.0, 1.0, 2.0]
        assert lse[0, :, 0].tolist() == pytest.approx([-math.inf, -math.inf, 0.0, math.log(2)])

    def test_soft_cap(self, form):
        """Scores 0 and 30 capped at 2: 0 and almost 2."""
        out, lse = decode_attention(
            *keys_of_one_head([0.0, 30.0], [0.0, 1.0]), form=form, soft_cap=2.0, return_lse=True
        )
        odds = math.exp(2 * math.tanh(15))
        assert out.flatten().tolist() == pytest.approx([odds / (1 + odds)] * 2, rel=1e-6)
        assert float(lse) == pytest.approx(math.log(1 + odds), rel=1e-6)

    @pytest.mark.parametrize("soft_cap", [1e-2, 1.0, 50.0, 1e4])
    def test_small_and_large_scores_keep_their_precision_under_a_cap(self, form, soft_cap):
        """The logarithm of a single key is its capped score."""
        for score in (1e-6, 1e-3, 0.2, 3.0, 12.5, 200.0):
            for sign in (1, -1):
                _, lse = decode_attention(
                    *keys_of_one_head([sign * score], [1.0]), form=form, soft_cap=soft_cap, return_lse=True
                )
                assert float(lse) == pytest.approx(sign * soft_cap * math.tanh(score / soft_cap), rel=1e-6)

    def test_heads_of_a_group_read_their_key_value_head(self, form):
        for num_heads, num_kv_heads in ((8, 1), (7, 1), (14, 2), (6, 3), (4, 4)):
            cache = torch.arange(float(num_kv_heads))[:, None].expand(1, 8, -1, 16).contiguous()
            table, lens = torch.zeros(2, 1, dtype=torch.int32), torch.tensor([8, 3])
            arguments = (torch.randn(2, num_heads, 16), cache, cache, table, lens, 1.0)
            group = num_heads // num_kv_heads
            wanted = torch.arange(num_heads)[:, None].expand(2, -1, 16) // group
            assert torch.allclose(decode_attention(*arguments, form=form), wanted.float())

    def test_scales_of_an_fp8_cache(self, form):
        """k_scale = 0 makes the scores equal, v_scale multiplies the mean; per head or for all."""
        q, k_cache, v_cache, *rest = keys_of_one_head([1.0, 300.0], [2.0, 4.0])
        caches = [cache.to(torch.float8_e4m3fn) for cache in (k_cache, v_cache)]
        for k_scale, v_scale in ((0.0, 0.5), (torch.zeros(1), torch.tensor([0.5]))):
            out = decode_attention(q, *caches, *rest, form=form, k_scale=k_scale, v_scale=v_scale)
            assert out.flatten().tolist() == pytest.approx([1.5, 1.5])
        assert decode_attention(q, *caches, *rest, form=form).flatten().tolist() == pytest.approx([4.0, 4.0])

    def test_poison_in_keys_or_values_alone_is_not_seen(self, form):
        case = spec.case([5, 40, 0], 3, 1, 64, 16, dtype="float32")
        for poison, name in itertools.product((torch.nan, torch.inf, -torch.inf, 3e38), ("k_cache", "v_cache")):
            arguments = SUBJECT.arguments(case)
            expected = decode_attention_reference(**{**arguments})
            unused = arguments[name].isnan()
            for cache in ("k_cache", "v_cache"):
                arguments[cache].nan_to_num_(0.0)
            arguments[name][unused] = poison
            assert torch.allclose(decode_attention(**arguments, form=form), expected, atol=1e-6)

    def test_shared_pages(self, form):
        """Two sequences that share a prefix read the same pages."""
        arguments = SUBJECT.arguments(spec.case([40], 4, 2, 64, 16, dtype="float32"))
        alone = decode_attention(**arguments | {"context_lens": torch.tensor([20])}, form="reference")
        twice = {name: arguments[name].expand(2, *arguments[name].shape[1:]) for name in ("q", "block_table")}
        both = decode_attention(**arguments | twice | {"context_lens": torch.tensor([40, 20])}, form=form)
        assert torch.allclose(both[0], decode_attention(**arguments, form="reference")[0], atol=1e-6)
        assert torch.allclose(both[1], alone[0], atol=1e-6)

    def test_pages_before_a_window_are_gone(self, form):
        """An engine frees them: whatever their entries and slots hold is not read."""
        arguments = SUBJECT.arguments(spec.case([100, 7], 4, 2, 16, 4, num_queries=3, window=10))
        assert (arguments["block_table"][0, :22] < 0).any()
        assert decode_attention(**arguments, form=form).isfinite().all()

    def test_a_nan_token_stays_in_its_sequence(self, form):
        arguments = SUBJECT.arguments(spec.case([40, 17, 33], 4, 2, 16, 16))
        arguments["k_cache"][arguments["block_table"][1, 0].long(), 3] = torch.nan
        out = decode_attention(**arguments, form=form)
        assert out[1].isnan().all() and out[[0, 2]].isfinite().all()

    def test_no_sequences_and_no_query_tokens(self, form):
        arguments = SUBJECT.arguments(spec.case([], 4, 2, 16, 16, num_queries=3, return_lse=True, v_head_dim=8))
        out, lse = decode_attention(**arguments, form=form)
        assert out.shape == (0, 3, 4, 8) and lse.shape == (0, 3, 4)
        arguments = SUBJECT.arguments(spec.case([9], 4, 2, 16, 16))
        none = arguments | {"q": arguments["q"][:, None][:, :0]}
        assert decode_attention(**none, form=form).shape == (1, 0, 4, 16)

    def test_outputs_are_contiguous(self, form):
        for contexts, heads, options in (([5, 9], 2, {}), ([5, 9], 8, {"num_queries": 2}), ([70, 9], 6, {"window": 8})):
            for extra in ({}, {"return_lse": True}):
                case = spec.case(contexts, heads, 2, 16, 16, **options, **extra)
                outputs = SUBJECT.run(SUBJECT.arguments(case), form)
                assert all(output.is_contiguous() for output in outputs)

    def test_a_short_and_a_very_long_context(self, form):
        context = 5000 if form == "interpret" else 100_000
        finding = check_case(SUBJECT, spec.case([1, context], 1, 1, 16, 64, dtype="float32"), form)
        assert finding, finding


BATCHES = [
    spec.case([1, 17, 100, 300, 0, 209, 520], 9, 3, 64, 16),  # 209 to 300 next to 520: fp32 shows it there first
    spec.case([300, 224, 520, 129], 2, 2, 80, 16, num_queries=2),
    spec.case([300, 224, 520, 129], 8, 2, 128, 16, window=70),
    spec.case([300, 224, 520, 129], 7, 1, 64, 16, return_lse=True, has_sinks=True),
    spec.case([300, 0, 224, 520], 3, 1, 40, 16, soft_cap=20.0, v_head_dim=24, window=100, num_queries=3),
]


@pytest.mark.bit_exact
@pytest.mark.parametrize(("form", "dtype"), [*(("cpu", dtype) for dtype in DTYPES), ("interpret", torch.bfloat16)])
@pytest.mark.parametrize("case", BATCHES, ids=case_id)
def test_bits_do_not_depend_on_the_batch(form, dtype, case):
    require_form(form)
    arguments = SUBJECT.arguments(case | {"dtype": dtype_name(dtype)})
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # with one thread even a form that does depend on the batch can look right
    try:
        together = SUBJECT.run(arguments, form)
        last = len(case["contexts"]) - 1
        for rows in ([1], [last, 0]) if form == "interpret" else ([0], [1], [last], [2, 1, 0], [last, 0, 1]):
            picked = {name: arguments[name][rows] for name in ("q", "block_table", "context_lens")}
            for output, whole in zip(SUBJECT.run(arguments | picked, form), together, strict=True):
                assert torch.equal(output, whole[rows]), rows
    finally:
        torch.set_num_threads(threads)


def test_bits_do_not_depend_on_the_width_of_the_table():
    """A narrow table has one split and no merge."""
    pytest.importorskip("triton")
    case = spec.case([250, 256, 0, 3], 4, 2, 32, 16, return_lse=True, has_sinks=True, num_queries=2)
    arguments = SUBJECT.arguments(case)
    wider = torch.cat([arguments["block_table"], torch.full((4, 40), -1, dtype=torch.int32)], dim=1)
    outputs = SUBJECT.run(arguments, "interpret")
    for narrow, wide in zip(outputs, SUBJECT.run(arguments | {"block_table": wider}, "interpret"), strict=True):
        assert torch.equal(narrow, wide)


@pytest.mark.bit_exact
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"window": 70}, {"window": 3}, {"has_sinks": True, "return_lse": True, "window": 64}], ids=str
)
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (4, 4), (7, 1), (16, 2)])
def test_verifying_gives_the_bits_of_decoding(dtype, options, heads, kv_heads):
    """Greedy speculation must not change a token: the cpu form computes each query token as if it were the only one."""
    contexts, num_queries = [3, 66, 97, 130, 194, 390], 5
    case = spec.case(contexts, heads, kv_heads, 64, 16, num_queries=num_queries, **options)
    arguments = SUBJECT.arguments(case | {"dtype": dtype_name(dtype)})
    together = SUBJECT.run(arguments, "cpu")
    for query in range(num_queries):
        lens = (arguments["context_lens"] - (num_queries - 1 - query)).clamp(min=0)
        one = arguments | {"q": arguments["q"][:, query], "context_lens": lens}
        for output, whole in zip(SUBJECT.run(one, "cpu"), together, strict=True):
            assert torch.equal(output, whole[:, query]), query


def test_a_plan_is_shared_between_layers():
    arguments = SUBJECT.arguments(spec.case([40, 0, 200], 4, 2, 64, 16, dtype="float32"))
    table, lens = arguments["block_table"], arguments["context_lens"]
    plan = plan_decode_attention(table, lens, 16)
    for _ in range(2):
        layer = arguments | {"q": torch.randn(3, 4, 64)}
        assert torch.equal(decode_attention(**layer, plan=plan), decode_attention(**layer))
    assert plan_decode_attention(table, lens, 16, form="reference") is None
    with pytest.raises(ValueError, match="200 tokens but a block_table for 16"):
        plan_decode_attention(table[:, :1], lens, 16)
    with pytest.raises(ValueError, match="plan is for 1 query tokens and window None, not 1 and 7"):
        decode_attention(**arguments | {"window": 7}, plan=plan)
    with pytest.raises(ValueError, match="not 2 and None"):
        decode_attention(**arguments | {"q": torch.randn(3, 2, 4, 64)}, plan=plan)


def test_padded_widths():
    """Never below the context, at most half above it from 64 on, and a multiple of 32."""
    for context in range(1, 3000):
        width = padded_width(context)
        assert width >= context and width % 32 == 0
        assert width == 64 or width <= 1.5 * context
    widths = [padded_width(n) for n in (1, 64, 65, 96, 97, 128, 129, 192, 193)]
    assert widths == [64, 64, 96, 96, 128, 128, 192, 192, 256]


def test_key_ranges():
    """They hold every key of the window and no more than 63 before it; without a window they start at 0."""
    assert [key_range(position) for position in (0, 63, 64, 200)] == [(0, 64), (0, 64), (0, 96), (0, 256)]
    for position, window in itertools.product(range(0, 500, 7), (1, 5, 64, 100, 1000)):
        start, width = key_range(position, window)
        first = max(0, position - window + 1)
        assert start % 64 == 0 and first - 64 < start <= first and start + width > position


@pytest.mark.parametrize("split", [64, 128, 512])
@pytest.mark.parametrize(
    "options", [{}, {"num_queries": 3, "window": 150, "has_sinks": True, "return_lse": True}], ids=str
)
def test_number_of_splits_does_not_matter(split, options):
    """Splits past the context, a last split with one token, more splits than pages, and one split for all."""
    pytest.importorskip("triton")
    case = spec.case([129, 64, 0, 1, 300], 2, 1, 64, 128, dtype="float32", **options)
    finding = check_case(SUBJECT, case, "interpret", config={"split": split})
    assert finding, finding


def test_one_split_takes_one_launch():
    pytest.importorskip("triton")
    for case, names in (
        (spec.case([256], 2, 1, 64, 16), ["attend_split_kernel"]),
        (spec.case([257], 2, 1, 64, 16), ["attend_split_kernel", "merge_splits_kernel"]),
        (spec.case([9000], 2, 1, 64, 16, window=256), ["attend_split_kernel"]),
        (spec.case([9000], 2, 1, 64, 16, window=256, num_queries=2), ["attend_split_kernel", "merge_splits_kernel"]),
    ):
        launches, _ = SUBJECT.launches(SUBJECT.arguments(case, "meta"))
        assert [launch.name for launch in launches] == names


@pytest.mark.parametrize("form", ["reference", "interpret"])
def test_pages_beyond_2_31_elements(form):
    """Page 1 starts 2³¹ + 64 elements after page 0, in memory that is reserved and hardly touched."""
    require_form(form)
    stride = 2**31 + 64
    try:
        k_cache, v_cache = (
            torch.empty(stride + 64, dtype=torch.bfloat16).as_strided((2, 2, 1, 16), (stride, 16, 16, 1)) for _ in "kv"
        )
    except RuntimeError as error:
        pytest.skip(f"this machine does not reserve 8 GiB: {error}")
    for cache in (k_cache, v_cache):
        cache.copy_(torch.randn(2, 2, 1, 16))
    q, rest = torch.randn(1, 1, 16).bfloat16(), (torch.tensor([[1, 0]]), torch.tensor([4]), 0.25)
    out = decode_attention(q, k_cache, v_cache, *rest, form=form)
    assert torch.equal(out, decode_attention(q, k_cache.contiguous(), v_cache.contiguous(), *rest, form=form))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("entry", "page"), [(1, 5), (0, -1), (2, 2**31 - 1)])
def test_a_used_entry_outside_the_cache_is_an_error(form, entry, page):
    require_form(form)
    arguments = SUBJECT.arguments(spec.case([40], 1, 1, 64, 16))
    assert len(arguments["k_cache"]) == 5
    arguments["block_table"][0, entry] = page
    with pytest.raises(IndexError):
        decode_attention(**arguments, form=form)
    window = 40 - 16 * (entry + 1)  # too short to reach that page
    if window > 0:
        assert decode_attention(**arguments | {"window": window}, form=form).isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.ones(2, 64)}, r"must be \[sequences"),
        ({"q": torch.ones(2, 3, 64)}, "3 query heads are no multiple of 2"),
        ({"k_cache": torch.ones(4, 16, 0, 64), "v_cache": torch.ones(4, 16, 0, 64)}, "no multiple of 0"),
        ({"q": torch.ones(2, 4, 32)}, "do not fit q"),
        ({"q": torch.ones(2, 4, 64).half()}, r"q is torch\.float16"),
        ({"q": torch.ones(2, 4, 64).int()}, r"q is torch\.int32"),
        ({"v_cache": torch.ones(4, 16, 1, 64)}, "do not fit q"),
        ({"v_cache": torch.ones(4, 16, 2, 64).to(torch.float8_e4m3fn)}, r"and torch\.float8_e4m3fn"),
        ({"block_table": torch.zeros(1, 2, dtype=torch.int32)}, "do not fit 2 sequences"),
        ({"block_table": torch.zeros(2, 2)}, r"block_table must be int32 or int64, it is torch\.float32"),
        ({"context_lens": torch.tensor([1])}, "do not fit 2 sequences"),
        ({"context_lens": torch.tensor([1.0, 2.0])}, "context_lens must be int32 or int64"),
        ({"context_lens": torch.tensor([1, 33])}, "33 tokens but a block_table for 32"),
        ({"context_lens": torch.tensor([1, 33]), "form": "reference"}, "33 tokens but a block_table for 32"),
        ({"context_lens": torch.tensor([1, -1])}, "context of -1 tokens"),
        ({"context_lens": torch.tensor([1, -1]), "form": "reference"}, "context of -1 tokens"),
        ({"k_cache": torch.ones(16, 4, 2, 64).transpose(0, 1)}, "contiguous k_cache"),
        ({"k_cache": torch.ones(4, 2, 16, 64).transpose(1, 2)}, "contiguous k_cache"),
        ({"window": 0}, "window must be at least 1, it is 0"),
        ({"soft_cap": 0.0}, r"soft_cap must be positive, it is 0\.0"),
        ({"sinks": torch.ones(2)}, r"sinks must be \[4\] floats"),
        ({"sinks": torch.ones(4, dtype=torch.int64)}, r"sinks must be \[4\] floats"),
        ({"k_scale": 2.0}, r"k_scale is for fp8 caches, not torch\.float32"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    arguments = {
        "q": torch.ones(2, 4, 64),
        "k_cache": torch.ones(4, 16, 2, 64),
        "v_cache": torch.ones(4, 16, 2, 64),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "context_lens": torch.tensor([1, 2]),
        "scale": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        decode_attention(**(arguments | change))


@pytest.mark.parametrize("factor", [torch.ones(3), torch.ones(2).half(), torch.ones(2, 1)])
def test_refuses_scales_that_do_not_fit(factor):
    arguments = SUBJECT.arguments(spec.case([3], 4, 2, 16, 16, cache_dtype=FP8))
    for name in ("k_scale", "v_scale"):
        with pytest.raises(ValueError, match=rf"{name} must be a float or \[2\] torch.float32"):
            decode_attention(**arguments | {name: factor})


def test_triton_form_refuses_what_it_cannot_read():
    pytest.importorskip("triton")
    arguments = SUBJECT.arguments(spec.case([3, 5], 4, 2, 16, 16, dtype="float32", has_sinks=True))
    strided = torch.stack([arguments["q"]] * 2, dim=-1)[..., 0]
    for change, message in (
        ({name: arguments[name].double() for name in ("q", "k_cache", "v_cache")}, "not torch.float64"),
        ({"q": strided}, "last dimension of q is strided"),
        ({"sinks": torch.ones(8)[::2]}, "sinks must be contiguous"),
        ({"context_lens": torch.tensor([3, 0, 5])[::2]}, "context_lens must be contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            decode_attention(**arguments | change, form="interpret")


def test_interpreted_form_takes_strided_tensors():
    """Queries cut out of a product, and caches out of one tensor that keeps keys and values side by side."""
    pytest.importorskip("triton")
    arguments = SUBJECT.arguments(spec.case([33, 16], 4, 2, 64, 16, dtype="float32", num_queries=3))
    side_by_side = torch.stack([arguments["k_cache"], arguments["v_cache"]], dim=1)
    views = {"k_cache": side_by_side[:, 0], "v_cache": side_by_side[:, 1]}
    views["q"] = torch.cat([arguments["q"].transpose(1, 2)] * 2, dim=-1)[..., :64].transpose(1, 2)
    views["block_table"] = torch.cat([arguments["block_table"]] * 2, dim=1)[:, : arguments["block_table"].shape[1]]
    assert not views["q"].is_contiguous() and not views["block_table"].is_contiguous()
    out = decode_attention(**arguments | views, form="interpret")
    assert torch.equal(out, decode_attention(**arguments, form="interpret"))


@pytest.mark.parametrize("case", [case for case in spec.TESTS if 0 not in case["contexts"]], ids=case_id)
def test_baselines_agree(case):
    """In float32, so that the rounding of scores, which they have, does not hide another formula."""
    for baseline in (eager, library):
        plain = not (case.keys() & {"soft_cap", "has_sinks", "return_lse", "cache_dtype"})
        if case["contexts"] and (baseline is eager or plain):
            outputs = SUBJECT.outputs(baseline(**SUBJECT.arguments(case | {"dtype": "float32"})), {})
            expected = SUBJECT.expected(**SUBJECT.arguments(case | {"dtype": "float32"}))
            for output, wanted in zip(outputs, expected, strict=True):
                assert torch.allclose(output.double(), wanted.value, rtol=1e-4, atol=1e-4)


class TestCost:
    def test_by_hand(self):
        """One sequence of 3 tokens, 4 query heads on 2 key-value heads of 64 in bf16, pages of 2."""
        cost = spec.cost([3], 4, 2, 64, 2)
        kv, rows = 3 * 2 * 64 * 2 * 2, 2 * 4 * 64 * 2
        assert cost.bytes_min == kv + rows + 4 * (2 + 1)
        assert cost.flops == 2 * 3 * 4 * 64 * 2
        assert cost.flops / kv == 2  # 2 query heads share a key-value head, 2 bytes an element
        assert cost.unit == "bfloat16" and spec.cost([3], 4, 2, 64, 2, dtype="float32").unit == "vector"
        # one split: 2 programs each read the length, 3 entries, 2 query heads, and 3 keys and values of their head
        assert cost.load_bytes == 2 * (4 + 3 * 4 + 2 * 64 * 2) + kv
        assert cost.store_bytes == 4 * 64 * 2
        assert cost.flops_issued == 2 * 2 * (2 * 16 * 64 * 64)  # two products of 16 rows by 64 tokens per program

    def test_options_by_hand(self):
        """Window 4, 2 query tokens of a context of 10 in an fp8 cache: they see keys 5 to 8 and 6 to 9, of 3 pages."""
        cost = spec.cost(
            [10], 2, 1, 64, 2, num_queries=2, window=4, cache_dtype=FP8, scales="head", v_head_dim=32,
            has_sinks=True, return_lse=True,
        )  # fmt: skip
        q, out, lse = 2 * 2 * 64 * 2, 2 * 2 * 32 * 2, 2 * 2 * 4
        assert cost.bytes_min == 5 * (64 + 32) + q + out + lse + 4 * (3 + 1) + 2 * 4 + 2 * 4
        assert cost.flops == 2 * 8 * 2 * (64 + 32)

    @pytest.mark.parametrize(("num_queries", "window"), [*itertools.product([1, 3, 9], [0, 1, 4, 9])])
    @pytest.mark.parametrize("context", [0, 1, 5, 9])
    def test_pairs_are_those_of_the_mask(self, context, num_queries, window):
        mask = torch.ones(num_queries, context).tril(context - num_queries)
        if window:
            mask = mask.triu(context - num_queries - window + 1)
        assert spec.seen_pairs(context, num_queries, window) == int(mask.sum())
        seen = mask.any(dim=0).nonzero()
        assert not len(seen) or spec.first_key(context, num_queries, window) == int(seen[0])

    @pytest.mark.parametrize(
        ("size", "parts"),
        [
            *((1, (16, 0)), (16, (16, 0)), (24, (32, 0)), (64, (64, 0)), (80, (64, 16)), (96, (64, 32))),
            *((120, (128, 0)), (128, (128, 0)), (192, (128, 64)), (512, (512, 0)), (576, (512, 64))),
        ],
    )
    def test_parts_of_a_head(self, size, parts):
        main, rest = spec.parts(size, 16)
        assert (main, rest if main < size else 0) == parts
        assert spec.covered(size, 16) == sum(parts) >= size
