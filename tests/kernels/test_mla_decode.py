import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import DTYPES, require_form
from kernel_suite import KernelSuite, case_id

from wholecurve.kernels.mla_decode import mla_decode
from wholecurve.kernels.mla_decode.spec import DEEPSEEK, TESTS, toy
from wholecurve.kernels.mla_decode.subject import SUBJECT
from wholecurve.profiling.checks import check_case

FORMS = ("reference", "interpret")
every_form = pytest.mark.parametrize("form", FORMS)


def arguments(contexts, num_heads=2, seed=0, **options):
    return SUBJECT.arguments({"dtype": "float32"} | toy(contexts, num_heads, **options), seed=seed)


def plain_cache(latents, scale=1.0, num_heads=1, **options):
    """Arguments for one sequence whose latents [S, width] fill pages of 4 in order; queries of zeros."""
    context, width = latents.shape
    pages = -(-context // 4)
    cache = torch.full((pages * 4, width), torch.nan, dtype=latents.dtype)
    cache[:context] = latents
    return {
        "q": torch.zeros(1, num_heads, width, dtype=latents.dtype),
        "latent_cache": cache.view(pages, 4, width),
        "block_table": torch.arange(pages, dtype=torch.int32)[None],
        "context_lens": torch.tensor([context], dtype=torch.int32),
        "scale": scale,
        "value_dim": width,
    } | options


class TestMlaDecode(KernelSuite):
    kernel = "mla_decode"
    mutant_cases = (
        toy([5, 2, 0, 70], 6, num_queries=4, sinks=True, return_lse=True),
        toy([90, 2], 18, num_listed=33, num_queries=3, fp8=True, return_lse=True),
        toy([160, 30], 2, window=140, num_queries=2),
        toy([9], 2, window=3),
        toy([3, 150], 2, num_listed=140, return_lse=True),
        toy([3], 65),
    )
    mutants = {
        "32-bit pages": (
            "pages = tl.load(block_table + entries, mask=inside, other=0).to(tl.int64)",
            "pages = tl.load(block_table + entries, mask=inside, other=0)",
        ),
        "32-bit sequences": (
            "(group // (NUM_QUERIES // SHARED)).to(tl.int64), group",
            "(group // (NUM_QUERIES // SHARED)), group",
        ),
        "rope part among the values": ("values < VALUE_DIM, ropes", "values < VALUE_DIM + ROPE_DIM, ropes"),
        "rope part not scored": (
            "scores = tl.dot(q_rope, tl.trans(rope.to(q_rope.dtype)), scores, input",
            "tl.dot(q_rope, tl.trans(rope.to(q_rope.dtype)), scores, input",
        ),
        "every query sees all": ("limits = first_limit + rows // NUM_HEADS", "limits = first_limit + NUM_QUERIES - 1"),
        "window one too long": ("limits[:, None] - WINDOW)", "limits[:, None] - WINDOW - 1)"),
        "window starts a token late": ("// NUM_HEADS - WINDOW, 0)", "// NUM_HEADS - WINDOW + 1, 0)"),
        "merge starts late": ("limit - WINDOW, 0) // SPLIT", "limit - WINDOW, 0) // SPLIT + 1"),
        "last split dropped": ("last = tl.cdiv(limit, SPLIT)", "last = limit // SPLIT"),
        "−inf minus −inf in a split": ("tl.exp2(scores - shift[:, None])", "tl.exp2(scores - new_max[:, None])"),
        "−inf minus −inf in the merge": ("tl.exp2(split_max - shift)", "tl.exp2(split_max - new_max)"),
        "finite sentinel": ('tl.full([BLOCK_ROWS], -float("inf")', "tl.full([BLOCK_ROWS], -1e30"),
        "0/0": ("total = tl.where(running_sum > 0, running_sum, 1.0)", "total = running_sum"),
        "sink not in base 2": (" * 1.4426950408889634", ""),
        "LSE in base 2": (" * 0.6931471805599453", ""),
        "scale on the scores alone": ("weights *= token_scale[None, :]", "pass"),
        "scale on the values alone": ("scores *= token_scale[None, :]", "pass"),
        "list of the first query": ("+ first_query.to(tl.int64) * indices_stride_q", ""),
        "end of the list": (
            "stop = split * SPLIT, tl.minimum(split * SPLIT + SPLIT, num_listed)",
            "stop = split * SPLIT, tl.minimum(split * SPLIT + SPLIT, num_listed - 1)",
        ),
        "padding dereferenced": ("(positions >= low) & ", ""),
        "rows of one tile": ("rows = row_tile * BLOCK_ROWS + tl.arange", "rows = tl.arange"),
    }


@every_form
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_token_is_its_values_exactly(form, dtype):
    require_form(form)
    given = arguments([1, 1], 3, value_dim=4, rope_dim=2, dtype=str(dtype).removeprefix("torch."), return_lse=True)
    out, lse = mla_decode(**given, form=form)
    for sequence in range(2):
        latent = given["latent_cache"][given["block_table"][sequence, 0], 0]
        assert torch.equal(out[sequence], latent[:4].expand(3, -1))
        logits = given["q"][sequence].double() @ latent.double() * given["scale"]
        assert torch.allclose(lse[sequence].double(), logits, atol=1e-6)


@every_form
def test_without_context(form):
    require_form(form)
    given = arguments([0, 3], return_lse=True)
    out, lse = mla_decode(**given, form=form)
    assert (out[0] == 0).all() and (lse[0] == -torch.inf).all() and lse[1].isfinite().all()
    sinks = torch.tensor([1.5, -torch.inf])
    out, lse = mla_decode(**given | {"sinks": sinks}, form=form)
    assert (out[0] == 0).all() and lse[0].tolist() == pytest.approx([1.5, -torch.inf])


@every_form
def test_absorbed_is_unabsorbed(form):
    """Two heads of 3 + 2 with values of 5 out of latents of 4: up-projected keys and values, or absorbed."""
    require_form(form)
    torch.manual_seed(0)
    up_key, up_value = torch.randn(2, 3, 4).double(), torch.randn(2, 5, 4).double()
    latent, rope = torch.randn(7, 4).double(), torch.randn(7, 2).double()
    q_nope, q_rope = torch.randn(2, 3).double(), torch.randn(2, 2).double()
    scale = (3 + 2) ** -0.5  # of the heads, not of the latent
    keys = torch.cat([torch.einsum("hnc,sc->hsn", up_key, latent), rope.expand(2, -1, -1)], dim=2)
    weights = (torch.cat([q_nope, q_rope], dim=1)[:, None] @ keys.mT * scale).softmax(dim=-1)
    unabsorbed = (weights @ torch.einsum("hvc,sc->hsv", up_value, latent))[:, 0]

    given = plain_cache(torch.cat([latent, rope], dim=1).float(), scale, value_dim=4)
    absorbed_q = torch.cat([torch.einsum("hn,hnc->hc", q_nope, up_key), q_rope], dim=1)
    attended = mla_decode(**given | {"q": absorbed_q[None].float()}, form=form)[0]
    assert attended.shape == (2, 4)
    assert torch.allclose(torch.einsum("hc,hvc->hv", attended.double(), up_value), unabsorbed, atol=1e-5)


@every_form
def test_rope_part_never_reaches_the_values(form):
    require_form(form)
    given = arguments([40], value_dim=4, rope_dim=3)
    given["q"][..., 4:] = 0
    before = mla_decode(**given, form=form)
    given["latent_cache"][..., 4:] = 1e30
    assert torch.equal(mla_decode(**given, form=form), before)


@every_form
def test_sinks(form):
    require_form(form)
    given = plain_cache(torch.tensor([[2.0], [4.0]]))

    def with_sink(sink):
        return float(mla_decode(**given, sinks=torch.tensor([sink]), form=form))

    assert with_sink(0.0) == pytest.approx(2.0) and with_sink(-torch.inf) == pytest.approx(3.0)
    assert float(mla_decode(**given, form=form)) == pytest.approx(3.0)
    assert 0 < with_sink(50.0) < 1e-20
    many = plain_cache(torch.ones(300, 1), return_lse=True, sinks=torch.zeros(1))
    out, lse = mla_decode(**many, form=form)  # three splits, one sink
    # far closer than a second sink would be
    assert float(out) == pytest.approx(300 / 301, rel=1e-5) and float(lse.exp()) == pytest.approx(301, rel=1e-5)


@every_form
def test_window(form):
    """The query at position 5 sees positions 2 to 5 with a window of 4."""
    require_form(form)
    given = plain_cache(torch.tensor([[1.0], [2.0], [4.0], [8.0], [16.0], [32.0]]))
    means = [float(mla_decode(**given, window=window, form=form)) for window in (1, 4, 5, 6, 7)]
    assert means == pytest.approx([32.0, 15.0, 62 / 5, 63 / 6, 63 / 6])
    given["block_table"][0, 0] = -1  # positions 0 to 3, not seen any more
    assert float(mla_decode(**given, window=2, form=form)) == pytest.approx(24.0)
    both = given | {"q": torch.zeros(1, 2, 1, 1), "window": 1}
    assert mla_decode(**both, form=form).flatten().tolist() == pytest.approx([16.0, 32.0])


@every_form
@pytest.mark.parametrize("num_heads", [2, 20])
def test_query_tokens_are_causal(form, num_heads):
    """The last three tokens at once are the three one after another."""
    require_form(form)
    given = arguments([2, 40, 131], num_heads, num_queries=3, return_lse=True)
    out, lse = mla_decode(**given, form=form)
    for query in range(3):
        alone = given | {"q": given["q"][:, query], "context_lens": (given["context_lens"] - 2 + query).clamp(min=0)}
        expected, expected_lse = mla_decode(**alone, form=form)
        assert torch.allclose(out[:, query], expected, atol=1e-6)
        assert torch.allclose(lse[:, query], expected_lse, atol=1e-6)
    assert (out[0, 0] == 0).all() and (lse[0, 0] == -torch.inf).all()  # two tokens: the first query is before them


@every_form
def test_lists(form):
    """Padding anywhere, a position listed twice counts twice, nothing listed gives zeros."""
    require_form(form)
    given = plain_cache(torch.tensor([[1.0], [2.0], [4.0], [8.0], [16.0]]), return_lse=True)

    def attend(*positions, **options):
        out, lse = mla_decode(**given, indices=torch.tensor([positions]), form=form, **options)
        return float(out), float(lse)

    log2, log3 = torch.tensor([2.0, 3.0]).log().tolist()
    assert attend(3) == pytest.approx((8.0, 0.0), abs=1e-6)
    assert attend(-1, 4, -1, 0) == pytest.approx((8.5, log2), abs=1e-6)
    assert attend(1, 1, 2, -1) == pytest.approx((8 / 3, log3), abs=1e-6)
    assert attend(-1, -1) == (0.0, -torch.inf)
    assert attend(0, 1, 3, 4, window=2) == pytest.approx((12.0, log2), abs=1e-6)
    assert attend(-1, sinks=torch.zeros(1)) == pytest.approx((0.0, 0.0), abs=1e-6)
    with pytest.raises(IndexError, match="position at or past the context"):
        attend(5)


@every_form
def test_a_listed_position_after_the_query_is_skipped(form):
    require_form(form)
    given = plain_cache(torch.tensor([[1.0], [2.0], [4.0]]), q=torch.zeros(1, 2, 1, 1))
    out = mla_decode(**given, indices=torch.tensor([[[0, 2], [0, 2]]]), form=form)
    assert out.flatten().tolist() == pytest.approx([1.0, 2.5])


@every_form
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_list_of_everything_is_everything(form, index_dtype):
    require_form(form)
    given = arguments([5, 150], 3, sinks=True, return_lse=True)
    indices = torch.arange(160, dtype=index_dtype).repeat(2, 1)
    indices[indices >= given["context_lens"][:, None]] = -1
    given["block_table"], given["context_lens"] = (
        given[name].to(index_dtype) for name in ("block_table", "context_lens")
    )
    for listed, whole in zip(mla_decode(**given | {"indices": indices}, form=form), mla_decode(**given, form=form)):
        assert torch.allclose(listed, whole, atol=1e-6)


@every_form
def test_two_parts_merge_by_their_logarithms(form):
    """A window and a list of the rest, as sparse layers with a window attend, are the whole."""
    require_form(form)
    given = arguments([150], 2, return_lse=True)
    whole, whole_lse = mla_decode(**given, form=form)
    parts = [{"window": 30}, {"indices": torch.arange(120)[None]}]
    outs, lses = zip(*(mla_decode(**given | part, form=form) for part in parts))
    lse = torch.logaddexp(*lses)
    merged = sum(out * (part - lse).exp()[..., None] for out, part in zip(outs, lses))
    assert torch.allclose(lse, whole_lse, atol=1e-6) and torch.allclose(merged, whole, atol=1e-6)


@every_form
def test_fp8_latents(form):
    """Scales of powers of two change nothing but the exponent: the dequantised cache gives the same."""
    require_form(form)
    given = arguments([40, 3], 3, fp8=True, dtype="bfloat16")
    scale = 2.0 ** torch.randint(-3, 3, given["latent_scale"].shape)
    scale[given["block_table"][0, 0], 2] = 0.0  # a latent of zeros, still a token
    dequantised = (given["latent_cache"].float() * scale[..., None]).bfloat16()
    expected = mla_decode(**given | {"latent_cache": dequantised, "latent_scale": None}, form=form)
    out = mla_decode(**given | {"latent_scale": scale}, form=form)
    assert torch.allclose(out.float(), expected.float(), atol=2**-7)


@every_form
def test_shared_pages_and_gaps_between_rows(form):
    require_form(form)
    given = arguments([40], 4)
    cache = torch.full((*given["latent_cache"].shape[:2], 40), torch.nan)
    cache[..., :32] = given["latent_cache"]
    both = given | {
        "q": given["q"].expand(2, -1, -1),
        "latent_cache": cache[..., :32],
        "block_table": given["block_table"].expand(2, -1),
        "context_lens": torch.tensor([40, 20], dtype=torch.int32),
    }
    out = mla_decode(**both, form=form)
    for row in range(2):
        alone = given | {"context_lens": both["context_lens"][row : row + 1]}
        assert torch.equal(out[row], mla_decode(**alone, form=form)[0])


@pytest.mark.bit_exact
@every_form
@pytest.mark.parametrize("options", [{}, {"num_queries": 2}, {"num_listed": 40, "sinks": True}], ids=case_id)
def test_bits_do_not_depend_on_the_batch(form, options):
    require_form(form)
    given = arguments([1, 17, 0, 300, 129], 5, max_context=400, dtype="bfloat16", **options)
    together = mla_decode(**given, form=form)
    batched = [name for name in ("q", "block_table", "context_lens", "indices") if given[name] is not None]
    for rows in ([1], [3], [4, 2], [0, 3, 1]):
        some = given | {name: given[name][rows] for name in batched}
        assert torch.equal(mla_decode(**some, form=form), together[rows]), rows


@every_form
def test_nan_stays_in_its_sequence(form):
    require_form(form)
    given = arguments([20, 20, 20])
    given["latent_cache"][given["block_table"][1, 0], 3, 0] = torch.nan
    assert mla_decode(**given, form=form).isnan().flatten(1).any(dim=1).tolist() == [False, True, False]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_every_split_agrees(data):
    """However few tokens a split has: more splits than tokens, empty ones, a window that starts inside one."""
    pytest.importorskip("triton")
    num_queries = data.draw(st.integers(1, 3))
    case = toy(
        data.draw(st.lists(st.integers(0, 70), min_size=1, max_size=3)),
        data.draw(st.sampled_from([1, 3, 17])),
        block_size=data.draw(st.sampled_from([1, 7, 16])),
        num_queries=num_queries,
        window=data.draw(st.sampled_from([None, 1, 20])),
        num_listed=data.draw(st.sampled_from([None, 1, 40])),
        sinks=data.draw(st.booleans()),
        return_lse=True,
    )
    split = data.draw(st.sampled_from([16, 32, 64]))
    finding = check_case(SUBJECT, case, "interpret", config={"split": split, "block_tokens": 16})
    assert finding, (finding, split)


@pytest.mark.parametrize("case", TESTS, ids=case_id)
@pytest.mark.parametrize("name", ["eager", "library"])
def test_baselines_agree(case, name):
    if name == "library" and (case.get("sinks") or case.get("return_lse")):
        with pytest.raises(ValueError, match="fused attention has no"):
            SUBJECT.baselines[name](**SUBJECT.arguments(case))
        return
    finding = check_case(SUBJECT, case | {"dtype": "float32"}, name, variant=SUBJECT.baselines[name])
    assert finding, finding


def test_cost_by_hand():
    """Two heads, one token, DeepSeek's latent: 576 + 512 products per head, the latent, its page and its length."""
    cost = SUBJECT.cost({"contexts": [1], "num_heads": 2} | DEEPSEEK)
    assert cost.flops == 2 * 2 * (576 + 512)
    assert cost.bytes_min == 576 * 2 + 2 * (576 + 512) * 2 + 4 + 4
    assert cost.load_bytes == 576 * 2 + 4 + 2 * 576 * 2 + 4 + 2 * (514 * 4 + 4)
    assert cost.store_bytes == 2 * 514 * 4 + 2 * 512 * 2
    assert cost.flops_issued == 2 * 16 * 32 * (512 + 64 + 512) and cost.unit == "bfloat16"
    long = SUBJECT.cost({"contexts": [8192] * 64, "num_heads": 128} | DEEPSEEK)
    assert long.intensity == pytest.approx(242, rel=0.1)  # 2 · 128 · (2 · 512 + 64) / (576 · 2), less q and out


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": torch.zeros(1, 8)}, ValueError, "q must be"),
        ({"q": torch.zeros(1, 0, 8)}, ValueError, "q must be"),
        ({"q": torch.zeros(1, 2, 9)}, ValueError, "latent_cache must be"),
        ({"value_dim": 9}, ValueError, "value_dim must be 1 to 8"),
        ({"value_dim": 0}, ValueError, "value_dim must be 1 to 8"),
        ({"q": torch.zeros(2, 2, 8)}, ValueError, "do not fit 2 sequences"),
        ({"window": 0}, ValueError, "window must be"),
        ({"q": torch.zeros(1, 2, 8).half()}, ValueError, "latent_cache is torch.float32, it must be torch.float16"),
        ({"latent_scale": torch.ones(2, 4)}, ValueError, "latent_scale goes with"),
        ({"latent_cache": torch.zeros(2, 4, 8).to(torch.float8_e4m3fn)}, ValueError, "latent_scale goes with"),
        ({"sinks": torch.zeros(3)}, ValueError, r"sinks must be \[2\], it is \[3\]"),
        ({"indices": torch.zeros(1, 2, 3).int()}, ValueError, "indices must be .1, 'positions'."),
        ({"indices": torch.zeros(1, 3)}, ValueError, "indices must be torch.int32"),
        ({"context_lens": torch.tensor([9])}, ValueError, "9 tokens but a row of block_table names 8"),
        ({"block_table": torch.tensor([[0, 2]])}, IndexError, "names page 2, there are 2"),
        ({"block_table": torch.tensor([[-1, 1]])}, IndexError, "names page -1"),
        ({"form": "cpu"}, ValueError, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, error, message):
    given = plain_cache(torch.ones(5, 8), num_heads=2) | change
    with pytest.raises(error, match=message):
        mla_decode(**given)


def test_triton_form_refuses_strided_vectors():
    pytest.importorskip("triton")
    given = plain_cache(torch.ones(5, 8))
    with pytest.raises(ValueError, match="last dimension of q is strided"):
        mla_decode(**given | {"q": torch.zeros(1, 1, 16)[..., ::2]}, form="interpret")
    with pytest.raises(ValueError, match="the Triton form takes"):
        doubles = {"q": given["q"].double(), "latent_cache": given["latent_cache"].double()}
        mla_decode(**given | doubles, form="interpret")
