import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import require_form
from kernel_suite import KernelSuite, case_id

from wholecurve.kernels.indexer_scores import indexer_scores
from wholecurve.kernels.indexer_scores.spec import TESTS, tail, toy
from wholecurve.kernels.indexer_scores.subject import SUBJECT
from wholecurve.kernels.mla_decode import mla_decode
from wholecurve.kernels.top_k import top_k
from wholecurve.profiling.checks import check_case

FORMS = ("reference", "interpret")
INF = torch.inf
every_form = pytest.mark.parametrize("form", FORMS)


class TestIndexerScores(KernelSuite):
    kernel = "indexer_scores"
    mutant_cases = (
        toy(tail(0, 20, 5) + tail(1, 4, 4), head_dim=24),
        toy([(0, 3), (0, 4), (1, 0), (1, 531)], compress=4),
        toy([(0, 40), (1, 140)], fp8="both", head_dim=32),
        toy([(1, 129)], max_context=300),
    )
    mutants = {
        "32-bit rows": ("row, start = tl.program_id(0).to(tl.int64), tl", "row, start = tl.program_id(0), tl"),
        "32-bit pages": (
            "pages = tl.load(block_table + entries, mask=seen, other=0).to(tl.int64)",
            "pages = tl.load(block_table + entries, mask=seen, other=0)",
        ),
        "no ReLU": ("tl.where(products < 0, 0.0, products)", "products"),
        "absolute value": ("tl.where(products < 0, 0.0, products)", "tl.abs(products)"),
        "no weights": (" * weight[None, :]", ""),
        "no scale of the queries": ("weight *= tl.load(q_scale", "_ = tl.load(q_scale"),
        "no scale of the keys": ("scores *= tl.load(k_scale", "_ = tl.load(k_scale"),
        "0 instead of −inf": ('scores = tl.where(seen, scores, -float("inf"))', "scores = tl.where(seen, scores, 0.0)"),
        "unfinished pools": (
            "tl.load(lengths + row).to(tl.int32) // COMPRESS",
            "(tl.load(lengths + row).to(tl.int32) + COMPRESS - 1) // COMPRESS",
        ),
        "own token hidden": ("seen = positions < visible", "seen = positions < visible - 1"),
        "one token more": ("seen = positions < visible", "seen = positions <= visible"),
        "sequence of the first row": ("tl.load(sequences + row)", "tl.load(sequences)"),
        "hidden block unwritten": ("range(hidden, stop, BLOCK_KEYS)", "range(hidden + BLOCK_KEYS, stop, BLOCK_KEYS)"),
        "heads of the padding": ("heads < NUM_HEADS, dims", "heads < BLOCK_HEADS, dims"),
        "channels of the padding": ("dims < HEAD_DIM", "dims < BLOCK_DIM"),
    }


def one_sequence(keys, q, weights, lengths, **options):
    """Arguments for rows of one sequence whose keys [S, D] fill pages of 2 in order."""
    keys, q = torch.tensor(keys), torch.tensor(q)
    pages = -(-len(keys) // 2)
    cache = torch.full((pages * 2, keys.shape[1]), torch.nan)
    cache[: len(keys)] = keys
    return {
        "q": q,
        "weights": torch.tensor(weights),
        "k_cache": cache.view(pages, 2, -1),
        "block_table": torch.arange(pages, dtype=torch.int32)[None],
        "sequences": torch.zeros(len(q), dtype=torch.int32),
        "lengths": torch.tensor(lengths, dtype=torch.int32),
    } | options


@every_form
def test_by_hand(form):
    """Two heads, two channels: each head's product is cut at 0 before its weight, which may be negative."""
    require_form(form)
    keys = [[1.0, 0.0], [0.0, 1.0], [-1.0, 2.0]]
    q, weights = [[[1.0, 2.0], [3.0, -1.0]]], [[0.5, -1.0]]
    # products: head 0: 1, 2, 3; head 1: 3, −1, −5
    out = indexer_scores(**one_sequence(keys, q, weights, [3]), form=form)
    assert out.dtype == torch.float32 and out.tolist() == [[0.5 - 3.0, 1.0, 1.5, -INF]]
    out = indexer_scores(**one_sequence(keys, q, weights, [2]), max_context=3, form=form)
    assert out.tolist() == [[-2.5, 1.0, -INF]]
    scaled = one_sequence(keys, q, weights, [3], max_context=3)
    scaled |= {"q_scale": torch.tensor([[2.0, 3.0]]), "k_scale": torch.tensor([[1.0, 10.0], [0.0, torch.nan]])}
    assert indexer_scores(**scaled, form=form).tolist() == [[1.0 - 9.0, 20.0, 0.0]]


@every_form
def test_scores_that_tie_at_zero(form):
    """Keys that no head likes score exactly 0, whatever they are: top-k has to break these ties by itself."""
    require_form(form)
    torch.manual_seed(0)
    keys = -torch.rand(40, 4)
    keys[7] = 1.0
    given = one_sequence(keys.tolist(), torch.rand(1, 2, 4).tolist(), [[0.3, 0.7]], [40])
    scores = indexer_scores(**given, form=form)
    assert (scores[0] == 0).sum() == 39
    assert top_k(scores, 3, form=form).tolist() == [[0, 1, 7]]


@every_form
@pytest.mark.parametrize("compress", [1, 2, 4, 128])
def test_pooled_keys_are_visible_once_complete(form, compress):
    """Key w is visible to the token at position t iff w < floor((t + 1) / compress)."""
    require_form(form)
    lengths = [0, 1, 2, 3, 4, 5, 7, 8, 127, 128, 255, 256]
    keys = torch.ones(256 // compress, 1)
    given = one_sequence(keys.tolist(), [[[1.0]]] * len(lengths), [[1.0]] * len(lengths), lengths, compress=compress)
    seen = indexer_scores(**given, form=form) > -INF
    for row, length in enumerate(lengths):
        position = length - 1
        assert seen[row].tolist() == [w < (position + 1) // compress for w in range(seen.shape[1])]


@every_form
def test_nan_is_seen_where_it_belongs(form):
    """In a visible key or in a query it reaches the scores, behind ReLU too; after the context it does not."""
    require_form(form)
    keys = [[1.0], [torch.nan], [1.0], [1.0]]
    given = one_sequence(keys, [[[1.0]], [[-1.0]], [[torch.nan]]], [[1.0]] * 3, [4, 4, 1])
    out = indexer_scores(**given, form=form)
    assert out.isnan().tolist() == [
        [False, True, False, False],
        [False, True, False, False],
        [True, False, False, False],
    ]
    assert out[2, 1:].tolist() == [-INF] * 3
    given["lengths"][:2] = 1
    assert not indexer_scores(**given, form=form)[:2].isnan().any()


@every_form
def test_fp8_keys_and_queries(form):
    """Scales of powers of two are exact: the same scores as with dequantised inputs."""
    require_form(form)
    case = toy([(0, 40), (1, 140), (1, 9)], fp8="both", dtype="float32")
    given = SUBJECT.arguments(case)
    given["q_scale"], given["k_scale"] = (2.0 ** given[name].log2().round() for name in ("q_scale", "k_scale"))
    given["k_scale"] = given["k_scale"].nan_to_num(1.0)
    plain = given | {
        "q": given["q"].float() * given["q_scale"][:, :, None],
        "k_cache": given["k_cache"].float() * given["k_scale"][..., None],
        "q_scale": None,
        "k_scale": None,
    }
    assert torch.allclose(indexer_scores(**given, form=form), indexer_scores(**plain, form=form), atol=1e-5)


@pytest.mark.bit_exact
@every_form
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_bits_of_a_row_do_not_depend_on_the_others(form, dtype):
    """Nor on the width of the output: a prompt in chunks and a token by itself select the same tokens."""
    require_form(form)
    given = SUBJECT.arguments(toy([(0, 300), (1, 17), (2, 0), (1, 129), (0, 299)], max_context=400, dtype=dtype))
    together = indexer_scores(**given, form=form)
    for rows in ([0], [3], [4, 1], [2, 0, 3]):
        some = given | {name: given[name][rows] for name in ("q", "weights", "sequences", "lengths")}
        some["max_context"] = int(some["lengths"].max()) + 3
        assert torch.equal(indexer_scores(**some, form=form), together[rows, : some["max_context"]]), rows


@every_form
def test_strided_rows_gaps_and_wide_indexes(form):
    require_form(form)
    given = SUBJECT.arguments(toy([(0, 40), (1, 14)], dtype="float32"))
    expected = indexer_scores(**given, form=form)
    for name in ("q", "k_cache"):
        wide = torch.full((*given[name].shape[:2], 40), torch.nan)
        wide[..., :16] = given[name]
        given[name] = wide[..., :16]
    given["weights"] = torch.cat([given["weights"], torch.full((2, 5), torch.nan)], dim=1)[:, :3]
    given |= {name: given[name].long() for name in ("block_table", "sequences", "lengths")}
    assert torch.equal(indexer_scores(**given, form=form), expected)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_every_tile_agrees(data):
    pytest.importorskip("triton")
    rows = st.tuples(st.integers(0, 2), st.integers(0, 90))
    case = toy(
        data.draw(st.lists(rows, min_size=1, max_size=3)),
        num_heads=data.draw(st.sampled_from([1, 5, 17])),
        head_dim=data.draw(st.sampled_from([8, 16, 40])),
        block_size=data.draw(st.sampled_from([1, 7, 64])),
        compress=data.draw(st.sampled_from([1, 2, 3])),
        max_context=data.draw(st.sampled_from([None, 91, 200])),
    )
    config = {"block_keys": data.draw(st.sampled_from([16, 32])), "span": data.draw(st.sampled_from([32, 64]))}
    finding = check_case(SUBJECT, case, "interpret", config=config)
    assert finding, (finding, config)


@every_form
def test_sparse_attention_from_end_to_end(form):
    """Index, select and attend: all of a short context, and of a longer one the tokens with the best scores."""
    require_form(form)
    torch.manual_seed(0)
    index = SUBJECT.arguments(toy([(0, 12), (1, 70)], dtype="float32"))
    selected = top_k(indexer_scores(**index, form=form), 16, form=form)
    assert selected[0].tolist() == [*range(12), -1, -1, -1, -1]
    latents = torch.randn(*index["k_cache"].shape[:2], 24)
    q, pages = torch.randn(2, 4, 24), index["block_table"]
    attention = dict(value_dim=16, form=form)
    given = (q, latents, pages, index["lengths"], 0.2)
    out = mla_decode(*given, indices=selected, **attention)
    assert torch.allclose(out[0], mla_decode(*given, **attention)[0], atol=1e-6)
    tokens = selected[1].long()
    chosen = latents[pages[1, tokens // 8].long(), tokens % 8]
    by_hand = (q[1] @ chosen.T * 0.2).softmax(dim=-1) @ chosen[:, :16]
    assert torch.allclose(out[1], by_hand, atol=1e-5)


@pytest.mark.parametrize("case", TESTS, ids=case_id)
def test_baseline_agrees(case):
    finding = check_case(SUBJECT, case | {"dtype": "float32"}, "eager", variant=SUBJECT.baselines["eager"])
    assert finding, finding


def test_cost_by_hand():
    """Two tokens of one sequence see 2 and 3 keys of 4 channels with 3 heads."""
    cost = SUBJECT.cost(toy([(0, 2), (0, 3)], head_dim=4, max_context=5))
    queries = 2 * 3 * (4 * 2 + 4)
    assert cost.flops == 5 * 3 * (2 * 4 + 2) and cost.store_bytes == 2 * 5 * 4
    assert cost.bytes_min == 3 * 4 * 2 + 4 + queries + 2 * 8 + 2 * 5 * 4
    assert cost.load_bytes == 5 * (4 * 2 + 4) + queries + 2 * (4 + 4)
    assert cost.flops_issued == 2 * 2 * 128 * 16 * 16 and cost.unit == "bfloat16"
    assert SUBJECT.cost(toy([(0, 2)], fp8="both")).unit == "float8"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": torch.zeros(1, 4)}, ValueError, "q must be"),
        ({"q": torch.zeros(1, 2, 3)}, ValueError, "k_cache must be"),
        ({"q": torch.zeros(1, 2, 2).half()}, ValueError, "k_cache is torch.float32, it must be torch.float16"),
        ({"weights": torch.zeros(1, 3)}, ValueError, r"weights must be \[1, 2\]"),
        ({"weights": torch.zeros(1, 2).half()}, ValueError, "weights must be .* torch.float16"),
        ({"sequences": torch.zeros(2).int()}, ValueError, "sequences must be"),
        ({"lengths": torch.zeros(2).int()}, ValueError, "lengths must be"),
        ({"block_table": torch.zeros(4).int()}, ValueError, "block_table must be"),
        ({"max_context": 5}, ValueError, "max_context is 5, a row of block_table names 4"),
        ({"max_context": 2}, ValueError, "a row sees 3 positions, max_context is 2"),
        ({"lengths": torch.tensor([5])}, ValueError, "a row sees 5 positions"),
        ({"compress": 0}, ValueError, "compress must be"),
        ({"k_scale": torch.ones(2)}, ValueError, "k_scale must be"),
        ({"q_scale": torch.ones(1, 2).half()}, ValueError, "q_scale must be"),
        ({"sequences": torch.tensor([1])}, IndexError, "outside block_table"),
        ({"sequences": torch.tensor([-1])}, IndexError, "outside block_table"),
        ({"block_table": torch.tensor([[0, 2]])}, IndexError, "names page 2, there are 2"),
        ({"block_table": torch.tensor([[-1, 1]])}, IndexError, "names page -1"),
        ({"form": "cpu"}, ValueError, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, error, message):
    given = one_sequence([[1.0, 0.0]] * 3, [[[1.0, 2.0], [3.0, -1.0]]], [[0.5, -1.0]], [3]) | change
    with pytest.raises(error, match=message):
        indexer_scores(**given)


def test_triton_form_refuses_strided_vectors():
    pytest.importorskip("triton")
    given = SUBJECT.arguments(toy([(0, 4)]))
    with pytest.raises(ValueError, match="last dimension of q is strided"):
        indexer_scores(**given | {"q": torch.zeros(1, 3, 32).bfloat16()[..., ::2]}, form="interpret")
    with pytest.raises(ValueError, match="the Triton form takes"):
        doubles = {"q": given["q"].double(), "k_cache": given["k_cache"].double()}
        indexer_scores(**given | doubles, form="interpret")
