import pytest
import torch
from kernel_checks import DTYPES, Guarded, case_id, paged_cache

from wholecurve.kernels.decode_attention import decode_attention
from wholecurve.kernels.prefill_attention import prefill_attention
from wholecurve.kernels.prefill_attention.spec import TESTS
from wholecurve.profiling.gate import agreement

FORMS = ("reference", "cpu")


def offsets(chunks):
    """Start of every sequence's new tokens, and their total."""
    return [sum(new for new, _ in chunks[:count]) for count in range(len(chunks) + 1)]


def causal_by_hand(q, k, v, scale):
    """Float64, row by row; q: [new, H, D], k and v: [context, G, D]. A row that sees no key is zero."""
    new, heads, _ = q.shape
    group, prefix = heads // k.shape[1], k.shape[0] - new
    out = torch.zeros(new, heads, v.shape[2]).double()
    for row in range(new):
        seen = prefix + row + 1
        for head in range(heads if seen > 0 else 0):
            scores = (k[:seen, head // group].double() @ q[row, head].double()) * scale
            weights = torch.exp(scores - scores.max())
            out[row, head] = weights @ v[:seen, head // group].double() / weights.sum()
    return out


@pytest.mark.parametrize("case", TESTS, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_agrees_with_float64(case, dtype, form):
    chunks, contexts = case["chunks"], [context for _, context in case["chunks"]]
    k_cache, v_cache, block_table, context_lens, keys, values = paged_cache(
        contexts, case["block_size"], case["num_kv_heads"], case["head_dim"], dtype
    )
    cu_q = offsets(chunks)
    torch.manual_seed(2)
    guarded = Guarded()
    q = guarded(torch.randn(cu_q[-1], case["num_heads"], case["head_dim"]).to(dtype), row_gap=16)
    k_cache, v_cache, block_table = (guarded(tensor) for tensor in (k_cache, v_cache, block_table))
    out = prefill_attention(q, k_cache, v_cache, block_table, context_lens, cu_q, 0.11, form=form)
    guarded.check()
    assert out.dtype == dtype and out.shape == q.shape
    for sequence in range(len(chunks)):
        rows = slice(cu_q[sequence], cu_q[sequence + 1])
        expected = causal_by_hand(q[rows], keys[sequence], values[sequence], 0.11)
        largest = values[sequence].double().abs().max() if len(values[sequence]) else 1.0
        result = agreement(out[rows], expected, ulps=8 if dtype == torch.float32 else 1, scale=largest)
        assert result, result


@pytest.mark.parametrize("form", FORMS)
def test_bottom_right_alignment(form):
    """Prefix 3, two new tokens: the first sees 4 keys, the second 5. Equal keys give the mean value."""
    k_cache, v_cache = torch.zeros(1, 8, 1, 64), torch.zeros(1, 8, 1, 64)
    v_cache[0, :5, 0, 0] = torch.tensor([1.0, 2, 3, 4, 15])
    out = prefill_attention(torch.ones(2, 1, 64), k_cache, v_cache, torch.tensor([[0]]), [5], [0, 2], 1.0, form=form)
    assert out[:, 0, 0].tolist() == pytest.approx([10 / 4, 25 / 5])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", range(1, 40, 6))
def test_two_chunks_are_one(form, first):
    total = 37
    k_cache, v_cache, block_table, _, _, _ = paged_cache([total], 16, 2, 64, torch.float32)
    q = torch.randn(total, 6, 64)
    arguments = (k_cache, v_cache, block_table)
    whole = prefill_attention(q, *arguments, [total], [0, total], 0.125, form=form)
    parts = [
        prefill_attention(q[:first], *arguments, [first], [0, first], 0.125, form=form),
        prefill_attention(q[first:], *arguments, [total], [0, total - first], 0.125, form=form),
    ]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_one_new_token_is_decode(form):
    contexts = [1, 16, 33]
    k_cache, v_cache, block_table, context_lens, _, _ = paged_cache(contexts, 16, 2, 64, torch.float32)
    q = torch.randn(3, 4, 64)
    prefill = prefill_attention(
        q, k_cache, v_cache, block_table, context_lens, torch.tensor([0, 1, 2, 3]), 0.125, form=form
    )
    decode = decode_attention(q, k_cache, v_cache, block_table, context_lens, 0.125, form=form)
    assert torch.allclose(prefill, decode, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.ones(5, 64)}, "must be \\[tokens"),
        ({"q": torch.ones(5, 3, 64)}, "3 query heads are no multiple of 2"),
        ({"q": torch.ones(5, 4, 64).half()}, "q is torch.float16"),
        ({"q": torch.ones(5, 4, 32)}, "do not fit q"),
        ({"cu_q": [0, 5]}, "cu_q has 2 entries"),
        ({"cu_q": [0, 2, 4]}, "rise from 0 to 5"),
        ({"cu_q": [0, 6, 5]}, "rise from 0 to 5"),
        ({"cu_q": [1, 2, 5]}, "rise from 0 to 5"),
        ({"context_lens": [2, 33]}, "33 tokens but a block_table for 32"),
        ({"form": "triton"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    arguments = {
        "q": torch.ones(5, 4, 64),
        "k_cache": torch.ones(4, 16, 2, 64),
        "v_cache": torch.ones(4, 16, 2, 64),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "context_lens": [2, 3],
        "cu_q": [0, 2, 5],
        "scale": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        prefill_attention(**(arguments | change))
