import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import require_form
from kernel_suite import HAS_TRITON, KernelSuite

from wholecurve.kernels.engram_hash import engram_hash, tables
from wholecurve.kernels.engram_hash.spec import BENCH, cost
from wholecurve.kernels.engram_hash.subject import SUBJECT, eager

FORMS = ("reference", "cpu", "interpret")
MULTIPLIERS, PAD = [3, 5, 7], 2


class TestEngramHash(KernelSuite):
    kernel = "engram_hash"
    dtypes = None
    mutants = {
        "the neighbour's tokens": ("is_new = inside & (places >= back)", "is_new = inside & (tokens >= back)"),
        "history from its start": (" + (MAX_NGRAM - 1 - back) + places", " + places"),
        "history of another sequence": ("slots = sequences * (MAX_NGRAM - 1)", "slots = 0 * (MAX_NGRAM - 1)"),
        "history without what stops": ("seen = seen & (ids >= 0)\n", "seen = seen & is_known\n"),
        "barrier stops one token": ("seen = seen & (ids >= 0)\n", "seen = inside & (ids >= 0)\n"),
        "barrier does not see its past": ("if HAS_BARRIER and back > 0:", "if HAS_BARRIER:"),
        "pad is compressed too": (
            "mix ^= tl.where(seen, ids, pad_id) * tl.load(multipliers + back)",
            "mix ^= tl.where(seen, ids, 0) * tl.load(multipliers + back)",
        ),
        "sum for XOR": ("mix ^= ", "mix += "),
        "negative rows": ("tl.where(remainders < 0, remainders + divisors, remainders)", "remainders"),
        "32-bit products": (
            "tl.where(seen, ids, pad_id) * tl.load(multipliers + back)",
            "(tl.where(seen, ids, pad_id) * tl.load(multipliers + back)).to(tl.int32)",
        ),
        "multipliers backwards": ("tl.load(multipliers + back)", "tl.load(multipliers + (MAX_NGRAM - 1 - back))"),
        "offsets of the first heads": ("tl.load(offsets + columns", "tl.load(offsets + heads"),
        "first 128 sequences": ("range(0, num_sequences, BLOCK_SEQUENCES)", "range(0, 1, BLOCK_SEQUENCES)"),
        "empty sequences own tokens": ("ends[None, :] <= tokens[:, None]", "ends[None, :] < tokens[:, None]"),
        "32-bit tokens": ("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    }


def hashed(ids, lengths=None, *, max_ngram=3, primes=(11, 13), offsets=None, form="reference", **rest):
    """Rows of these ids with the small numbers of the known example."""
    bounds = [0, *itertools.accumulate([len(ids)] if lengths is None else lengths)]
    offsets = [0] * len(primes) if offsets is None else offsets
    constants = ((MULTIPLIERS * 2)[:max_ngram], primes, offsets)
    tensors = [torch.tensor(numbers, dtype=torch.int64) for numbers in (ids, bounds, *constants)]
    return engram_hash(*tensors, PAD, form=form, **rest).tolist()


def by_hand(ids, multipliers, primes, offsets, pad_id, past=(), compressed=None, barrier_id=None):
    """Rows of one sequence by Python's own numbers, token by token."""
    carried = len(multipliers) - 1
    told = [-1] * (carried - len(past)) + [*past, *ids]
    rows = []
    for end in range(carried, len(told)):
        mix, stopped, mixes = 0, False, []
        for back in range(carried + 1):
            token = told[end - back]
            stopped = stopped or token < 0 or (back > 0 and token == barrier_id)
            small = pad_id if stopped else token if compressed is None else compressed[token]
            product = small * multipliers[back] % 2**64
            mix ^= product
            mixes.append(mix - 2**64 if mix >= 2**63 else mix)
        heads = len(primes) // carried
        rows.append([mixes[1 + head // heads] % primes[head] + offsets[head] for head in range(len(primes))])
    return rows


@pytest.mark.parametrize("form", FORMS)
def test_known_values(form):
    """2-grams mix to [6, 20, 12, 24], 3-grams to [8, 26, 16, 24]."""
    require_form(form)
    assert hashed([4, 0, 4, 4], form=form) == [[6, 8], [9, 0], [1, 3], [2, 11]]
    moved = hashed([4, 0, 4, 4], form=form, offsets=[100, 2000])
    assert moved == [[106, 2008], [109, 2000], [101, 2003], [102, 2011]]
    wide = hashed([4, 0, 4, 4], form=form, primes=[11, 1009, 13, 1009])
    assert [row[1::2] for row in wide] == [[6, 8], [20, 26], [12, 16], [24, 24]]


@pytest.mark.parametrize("form", FORMS)
def test_start_of_a_sequence_sees_pads(form):
    require_form(form)
    padded = hashed([PAD, PAD, 4, 0, 4, 4], form=form)[2:]
    assert hashed([4, 0, 4, 4], form=form) == padded
    for past in ([[-1, -1]], [[7, -1]]):  # nothing is seen behind what is not there
        assert hashed([4, 0, 4, 4], form=form, history=torch.tensor(past)) == padded
    assert hashed([4, 0], form=form, history=torch.tensor([[-1, 9]])) == hashed([9, 4, 0], form=form)[1:]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("max_ngram", [2, 3, 4])
def test_chunks_with_carried_history_are_the_whole(form, max_ngram):
    """At every boundary, 1, 2 and 3 among them, and token by token."""
    require_form(form)
    ids, primes = [4, 0, 4, 4, 9, 1, 0], [11, 13, 17][: max_ngram - 1]
    whole = hashed(ids, max_ngram=max_ngram, primes=primes, form=form)

    def continued(start, end):
        past = ([-1] * (max_ngram - 1) + ids[:start])[-(max_ngram - 1) :]
        history = torch.tensor([past])
        return hashed(ids[start:end], max_ngram=max_ngram, primes=primes, history=history, form=form)

    for boundary in range(len(ids) + 1):
        assert continued(0, boundary) + continued(boundary, len(ids)) == whole
    assert [row for step in range(len(ids)) for row in continued(step, step + 1)] == whole


@pytest.mark.parametrize("form", FORMS)
def test_sequences_do_not_see_each_other(form):
    require_form(form)
    parts = [[4, 0, 4, 4], [], [7], [1, 2], [], [9, 9, 9, 9, 9, 3]]
    joined = list(itertools.chain(*parts))
    together = hashed(joined, [len(part) for part in parts], form=form)
    assert together == [row for part in parts for row in hashed(part, form=form)]
    history = torch.tensor([[part + 1, 2 * part] for part in range(len(parts))])
    together = hashed(joined, [len(part) for part in parts], history=history, form=form)
    alone = [hashed(part, history=history[place : place + 1], form=form) for place, part in enumerate(parts)]
    assert together == list(itertools.chain(*alone))


@pytest.mark.parametrize("form", FORMS)
def test_negative_id_is_a_barrier(form):
    """Neither it nor anything before it is seen, and its own row is that of pads alone."""
    require_form(form)
    rows = hashed([4, 0, -1, 4, 4], form=form)
    assert rows[:2] == hashed([4, 0], form=form) and rows[3:] == hashed([4, 4], form=form)
    assert rows[2] == hashed([PAD], form=form)[0]


@pytest.mark.parametrize("form", FORMS)
def test_barrier_id_sees_its_own_past(form):
    require_form(form)
    rows = hashed([4, 0, 6, 4, 4], barrier_id=6, form=form)
    assert rows[:3] == hashed([4, 0, 6], form=form) and rows[3:] == hashed([4, 4], form=form)
    # a barrier in the history works as well
    assert hashed([4, 4], barrier_id=6, history=torch.tensor([[0, 6]]), form=form) == rows[3:]


@pytest.mark.parametrize("form", FORMS)
def test_compressed_ids(form):
    """The identity changes nothing, many ids with one text have one row, and pad_id is not looked up."""
    require_form(form)
    ids = [4, 0, 4, 4, 9]
    assert hashed(ids, compressed_ids=torch.arange(10), form=form) == hashed(ids, form=form)
    small = torch.tensor([0, 1, 5, 3, 0, 0, 0, 0, 0, 1])
    assert hashed(ids, compressed_ids=small, form=form) == hashed([0, 0, 0, 0, 1], form=form)
    past = torch.tensor([[9, 4]])
    carried = hashed(ids, compressed_ids=small, history=past, form=form)
    assert carried == hashed([0, 0, 0, 0, 1], history=small[past], form=form)


@pytest.mark.parametrize("form", FORMS)
def test_id_beyond_the_vocabulary_is_an_error(form):
    require_form(form)
    small = torch.arange(10)
    hashed([9], compressed_ids=small, form=form)
    with pytest.raises(IndexError, match="token_ids hold 10 but compressed_ids have 10 entries"):
        hashed([4, 10], compressed_ids=small, form=form)
    with pytest.raises(IndexError, match="history hold 99"):
        hashed([4], compressed_ids=small, history=torch.tensor([[1, 99]]), form=form)


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_kernel_reads_no_entry_beyond_the_vocabulary():
    """What a GPU does where a CPU raises: the id counts as pad, and padding tokens behind the batch stay in bounds."""
    from wholecurve.profiling.sanitizer import sanitize

    numbers = {"multipliers": MULTIPLIERS, "primes": [11, 13], "offsets": [0, 0], "cu_seqlens": [0, 3]}
    arguments = {name: torch.tensor(values) for name, values in numbers.items()}
    arguments |= {"token_ids": torch.tensor([4, 10, 2**40, 1, 1]), "pad_id": PAD, "compressed_ids": torch.arange(10)}
    (launch,), rows = SUBJECT.launches(arguments | {"history": torch.tensor([[1, 1]])})
    with sanitize(*launch.tensors):
        launch.run(interpreted=True)
    assert rows[:3].tolist() == hashed([4, PAD, PAD], history=torch.tensor([[1, 1]]))


@settings(max_examples=60)
@given(data=st.data())
def test_batches_by_hand(data):
    """Products that wrap, barriers, history and compression at once, against Python's own numbers."""
    draw = data.draw
    max_ngram, heads = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    token = st.integers(-1, 9)
    ids = draw(st.lists(token, min_size=sum(lengths), max_size=sum(lengths)))
    past = draw(st.lists(st.lists(token, min_size=max_ngram - 1, max_size=max_ngram - 1), min_size=4, max_size=4))
    odd = draw(st.lists(st.integers(0, 2**62 - 1), min_size=max_ngram, max_size=max_ngram))
    multipliers = [2 * number + 1 for number in odd]
    primes = draw(st.lists(st.integers(1, 2**40), min_size=heads * (max_ngram - 1), max_size=heads * (max_ngram - 1)))
    offsets = list(range(len(primes)))
    compressed = draw(st.none() | st.lists(st.integers(0, 2**17), min_size=10, max_size=10))
    barrier_id, has_history = draw(st.none() | st.integers(0, 9)), draw(st.booleans())
    bounds = [0, *itertools.accumulate(lengths)]
    wanted = []
    for sequence, (start, end) in enumerate(itertools.pairwise(bounds)):
        before = past[sequence] if has_history else ()
        wanted += by_hand(ids[start:end], multipliers, primes, offsets, PAD, before, compressed, barrier_id)
    arguments = {
        **{"token_ids": torch.tensor(ids, dtype=torch.int64), "cu_seqlens": torch.tensor(bounds), "pad_id": PAD},
        **{"multipliers": torch.tensor(multipliers), "primes": torch.tensor(primes), "offsets": torch.tensor(offsets)},
        **{"history": torch.tensor(past[: len(lengths)]) if has_history else None, "barrier_id": barrier_id},
        "compressed_ids": None if compressed is None else torch.tensor(compressed),
    }
    for form in FORMS if HAS_TRITON else ("reference",):
        assert engram_hash(**arguments, form=form).tolist() == wanted
    if ids:
        assert eager(**arguments).tolist() == wanted


def test_numbers_of_deepseek_v41():
    """As its public ports state them: layers 1 and 14, 99,092 compressed ids, 8 heads of 2-, 3- and 4-grams."""
    assert tables.multipliers(1, 4, 99092).tolist() == [76632096046245, 4839876093313, 35959672319349, 73987337458391]
    assert tables.multipliers(14, 4, 99092).tolist() == [67716810739261, 51510806800915, 30921347202721, 82619226485591]
    primes = tables.head_primes(2, 4, 8, 16_000_000)
    assert primes[0, :3].tolist() == [16000057, 16000079, 16000081]
    assert primes[1, -3:].tolist() == [16000877, 16000879, 16000889]
    assert primes.sum(axis=1).tolist() == [384_006_168, 384_016_682]
    offsets = tables.head_offsets(primes[1])
    assert offsets[0] == 0 and offsets[-1] + primes[1, -1] == 384_016_682


def test_table_sizes_of_their_own_for_each_ngram():
    """The paper's demo searches from each n-gram's own size and skips what is taken."""
    primes = tables.head_primes(2, 3, 2, (10, 12))
    assert primes.tolist() == [[11, 13, 17, 19], [23, 29, 31, 37]]
    assert tables.head_primes(1, 3, 2, (100, 10)).tolist() == [[101, 103, 11, 13]]


@given(st.integers(0, 60), st.integers(1, 8), st.integers(1, 2**40))
def test_multipliers_are_odd_and_their_products_fit(layer, max_ngram, vocab_size):
    for numbers in (
        tables.multipliers(layer, max_ngram, vocab_size),
        tables.splitmix_multipliers(layer, max_ngram, vocab_size),
    ):
        assert numbers.dtype == np.int64 and numbers.shape == (max_ngram,) and (numbers % 2 == 1).all()
        assert max(int(number) for number in numbers) * (vocab_size - 1) < 2**63
    assert tables.multipliers(2, 3, 1000, seed=10007).tolist() == tables.multipliers(3, 3, 1000).tolist()


def test_ids_of_equal_texts_are_one():
    tokenizers = pytest.importorskip("tokenizers")
    words = ["Cat", "cat", " CAT ", "Café", "cafe", "ﬁne", "fine", " ", "\n\t", "", "a \n b", "a b", "A", "\u0301"]
    model = tokenizers.models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="")
    ids = tables.compressed_ids(tokenizers.Tokenizer(model))
    assert ids.dtype == np.int64
    # the lone accent would vanish, so it stays as it is, and so does nothing
    assert ids.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7]


def test_partial_characters_are_told_apart_by_name():
    tokenizers = pytest.importorskip("tokenizers")
    names = ["â", "Ĥ", "a", "A"]  # of the bytes E2, 82, 61 and 41
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({name: place for place, name in enumerate(names)}, []))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    assert tables.compressed_ids(tokenizer).tolist() == [0, 1, 2, 2]


def test_agrees_with_the_embedding_of_qwen4_exp():
    """transformers' module, its table filled with row numbers; end-of-text tokens are its barriers and its pads."""
    modeling = pytest.importorskip("transformers.models.qwen4_exp.modeling_qwen4_exp")
    config = modeling.Qwen4ExpTextConfig(
        **{"vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 4, "eos_token_id": 2, "seed": 1234},
        **{"ple_layer_ids": [2], "ngram_size": 3, "heads_per_ngram": 4, "ple_embed_dim": 32},
        **{"ngram_vocab_size_base": 101, "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 1},
    )
    position = 1
    module = modeling.Qwen4ExpTextNGramEmbedding(config, 8, 1, position)
    numbers = torch.arange(len(module.ngram_embedding.weight)).float()
    module.ngram_embedding.weight.data.copy_(numbers[:, None])
    ids = torch.randint(0, 6, (2, 40), generator=torch.Generator().manual_seed(0))
    primes = tables.head_primes(2, 3, 4, 101)[position]
    rows = engram_hash(
        *(
            ids.flatten(),
            torch.tensor([0, 40, 80]),
            torch.from_numpy(tables.splitmix_multipliers(position, 3, 50, 1234)),
        ),
        *(torch.from_numpy(primes), torch.from_numpy(tables.head_offsets(primes)), 2),
        barrier_id=2,
    )
    assert torch.equal(rows.view(2, 40, 8), module(ids, None).long())


def test_bench_cases_have_the_rows_of_deepseek_v41():
    for case in BENCH.values():
        assert cost(**case).store_bytes == sum(case["lengths"]) * 24 * 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": torch.ones(2, 2, dtype=torch.int64)}, "token_ids must be \\[tokens\\]"),
        ({"token_ids": torch.ones(3)}, "token_ids must be torch.int32 or torch.int64"),
        ({"cu_seqlens": torch.tensor([0, 2])}, "rise from 0 to 3, they are \\[0, 2\\]"),
        ({"cu_seqlens": torch.tensor([0, 2, 1, 3])}, "must rise"),
        ({"cu_seqlens": torch.tensor([1, 3])}, "must rise"),
        ({"cu_seqlens": torch.tensor([0])}, "3 tokens belong to no sequence"),
        ({"multipliers": torch.tensor([3])}, "multipliers must be 2 or more"),
        ({"multipliers": torch.tensor([3, 5, 7], dtype=torch.int32)}, "multipliers must be torch.int64"),
        ({"primes": torch.tensor([11, 13, 17])}, "as many heads for each of 2 n-gram sizes"),
        ({"offsets": torch.tensor([0, 0, 0, 0])}, "as many heads"),
        ({"history": torch.ones(1, 3, dtype=torch.int64)}, "history must be \\[1, 2\\], it is \\(1, 3\\)"),
        ({"history": torch.ones(1, 2)}, "history must be torch.int32 or torch.int64"),
        ({"compressed_ids": torch.arange(10).int()}, "compressed_ids must be torch.int64"),
        ({"form": "gpu"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    arguments = {
        **{"token_ids": torch.tensor([4, 0, 4]), "cu_seqlens": torch.tensor([0, 3]), "pad_id": PAD},
        **{"multipliers": torch.tensor(MULTIPLIERS), "primes": torch.tensor([11, 13]), "offsets": torch.tensor([0, 0])},
    }
    engram_hash(**arguments)
    with pytest.raises(ValueError, match=message):
        engram_hash(**arguments | change)


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_triton_form_refuses_strided_numbers():
    with pytest.raises(ValueError, match="history must be contiguous"):
        hashed([4, 0], history=torch.ones(1, 4, dtype=torch.int64)[:, ::2], form="interpret")
