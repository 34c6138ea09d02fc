"""Padded decode steps over static buffers: the same numbers as unpadded ones, and nothing else is touched."""

import pytest
import torch
from tiny_engine import greedy, prompt_of, run_with_arrivals, tiny_model

from wholecurve.engine import Engine, graphs
from wholecurve.engine.graphs import GraphedModel, StaticBatch, graph_sizes, padded_width
from wholecurve.engine.replay import EagerReplay, no_synchronisation
from wholecurve.engine.speculation import NgramProposer
from wholecurve.errors import UserError
from wholecurve.models.batch import ForwardBatch, GroupBatch, KVSpec

BLOCK = 4
CONTEXTS = (1, 5, 4, 17, 32, 3, 64, 9, 21)  # cached tokens before the step


def filled_caches(model, num_blocks=256, seed=0):
    """Caches full of numbers, so that a stray write anywhere shows."""
    caches = [spec.allocate(num_blocks, BLOCK, model.dtype, model.device) for spec in model.cache_specs]
    generator = torch.Generator().manual_seed(seed)
    for tensor in (*caches[0].keys, *caches[0].values):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return caches


def copied(caches):
    return [tensor.clone() for tensor in (*caches[0].keys, *caches[0].values)]


def restore(caches, tensors):
    for tensor, before in zip((*caches[0].keys, *caches[0].values), tensors, strict=True):
        tensor.copy_(before)


def decode_batch(sequences, queries=1, shift=0, seed=0):
    """A batch of `sequences` decodes with `queries` tokens each over their own blocks."""
    generator = torch.Generator().manual_seed(100 * sequences + 10 * queries + seed)
    contexts = [CONTEXTS[(s + shift) % len(CONTEXTS)] for s in range(sequences)]
    ends = [context + queries for context in contexts]
    width = max(-(-end // BLOCK) for end in ends)
    table, slots, positions, first = [], [], [], 0
    for context, end in zip(contexts, ends, strict=True):
        used = -(-end // BLOCK)
        blocks = list(range(first, first + used))
        first += used
        table.append(blocks + [-1] * (width - used))
        places = range(context, end)
        positions += places
        slots += [blocks[place // BLOCK] * BLOCK + place % BLOCK for place in places]
    tokens = sequences * queries
    return ForwardBatch(
        token_ids=torch.randint(0, 61, (tokens,), generator=generator),
        positions=torch.tensor(positions),
        logits_rows=torch.arange(tokens),
        cu_q=torch.arange(sequences + 1) * queries,
        context_lens=torch.tensor(ends),
        groups=[GroupBatch(torch.tensor(table), torch.tensor(slots))],
        num_decodes=sequences,
        decode_queries=queries,
        max_q=queries,
    )


def with_chunk(batch):
    """The same sequences, the last of them as a chunk."""
    batch.num_decodes -= 1
    return batch


@pytest.mark.bit_exact
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("queries", [1, 3])
def test_every_number_of_sequences_gives_the_unpadded_logits_and_cache(dtype, queries):
    model = tiny_model(dtype)
    graphed = GraphedModel(model, max_sequences=9)
    caches = filled_caches(model)
    start = copied(caches)
    for sequences in (9, 1, 2, 3, 4, 8, 5, 7, 6, 9, 2, 1):
        batch, plain = (decode_batch(sequences, queries, seed=sequences) for _ in range(2))
        restore(caches, start)
        expected = model(plain, caches)
        after = copied(caches)
        restore(caches, start)
        logits = graphed(batch, caches)
        assert torch.equal(logits, expected)
        assert torch.equal(batch.argmax, expected.argmax(-1)) and plain.argmax is None
        assert all(map(torch.equal, copied(caches), after))
        assert not all(map(torch.equal, after, start))
    assert graphed.num_replayed == 12 and {key[0] for key in graphed.steps} == {1, 2, 4, 8, 16}


def test_padded_logits_are_those_of_the_model_on_any_processor():
    model, graphed = tiny_model(), GraphedModel(tiny_model(), max_sequences=9)
    caches = filled_caches(model)
    for sequences in (3, 5, 9):
        batch, plain = (decode_batch(sequences, 2, seed=sequences) for _ in range(2))
        torch.testing.assert_close(graphed(batch, caches), model(plain, caches))


def test_padding_touches_no_slot_of_a_former_batch():
    """Nine sequences, then one: the other eight keep their tokens whatever the padded rows compute."""
    model, graphed = tiny_model(), GraphedModel(tiny_model(), max_sequences=16)
    graphed.sizes = [16]
    caches = filled_caches(model)
    before = copied(caches)
    graphed(decode_batch(9), caches)
    restore(caches, before)  # else the same tokens would be stored once more unseen
    one = decode_batch(1, shift=3, seed=5)
    graphed(one, caches)
    slot = one.groups[0].slots.item()
    for tensor, old in zip(copied(caches), before, strict=True):
        changed = (tensor != old).flatten(0, 1).flatten(1).any(1).nonzero().flatten().tolist()
        assert changed == [slot]


def test_buffers_and_outputs_stay_where_they_are():
    model, graphed = tiny_model(), GraphedModel(tiny_model(), max_sequences=8)
    caches = filled_caches(model)
    first = graphed(decode_batch(8), caches)
    (step,) = graphed.steps.values()
    places = [tensor.data_ptr() for tensor in step.static.tensors]
    kept = first.clone()
    for sequences in (5, 8, 7):
        logits = graphed(decode_batch(sequences, shift=1, seed=sequences), caches)
        assert logits.data_ptr() == first.data_ptr()
    assert [tensor.data_ptr() for tensor in step.static.tensors] == places
    assert len(graphed.steps) == 1 and not torch.equal(first, kept)


def test_rows_of_logits_can_be_fewer_than_tokens():
    model, graphed = tiny_model(), GraphedModel(tiny_model(), max_sequences=4)
    caches = filled_caches(model)
    batch, plain = decode_batch(3, 2), decode_batch(3, 2)
    batch.logits_rows = plain.logits_rows = torch.tensor([1, 3, 5])
    expected = model(plain, caches)
    torch.testing.assert_close(graphed(batch, caches), expected)
    assert torch.equal(batch.argmax, expected.argmax(-1)) and batch.argmax.shape == (3,)


def test_a_wider_table_than_the_buffers_has_a_graph_of_its_own(monkeypatch):
    monkeypatch.setattr(graphs, "SMALLEST_WIDTH", 8)
    model, graphed = tiny_model(), GraphedModel(tiny_model(), max_sequences=8)
    caches = filled_caches(model)
    for shift in (0, 2, 0):
        batch, plain = decode_batch(6, shift=shift), decode_batch(6, shift=shift)
        torch.testing.assert_close(graphed(batch, caches), model(plain, caches))
    short = decode_batch(2)
    assert short.groups[0].block_table.shape[1] < 8
    graphed(short, caches)
    assert sorted(key[2] for key in graphed.steps) == [(8,), (16,), (32,)]


def test_chunks_and_large_batches_run_in_the_model():
    model, graphed = tiny_model(), GraphedModel(tiny_model(), max_sequences=4)
    caches = filled_caches(model)
    for batch in (with_chunk(decode_batch(3)), decode_batch(9)):
        assert not graphed.holds(batch)
        graphed(batch, caches)
        assert batch.argmax is None
    assert not graphed.steps and graphed.num_replayed == 0
    assert GraphedModel(model, max_sequences=5).holds(decode_batch(8))  # as 5 is padded to 8


def test_it_has_the_face_of_its_model_and_keeps_to_one_set_of_caches():
    model, graphed = tiny_model(), GraphedModel(tiny_model())
    assert graphed.config is model.config and graphed.cache_specs == model.cache_specs
    assert graphed.dtype == model.dtype and graphed.device == model.device
    graphed(decode_batch(2), filled_caches(model))
    with pytest.raises(ValueError, match="caches of the first call"):
        graphed(decode_batch(2), filled_caches(model))


@pytest.mark.parametrize("overlap", [False, True], ids=["step by step", "overlapping"])
@pytest.mark.parametrize("speculation", [None, 3], ids=["no drafts", "drafts"])
def test_an_engine_gives_the_same_tokens_with_graphs(overlap, speculation):
    """Requests that come and go change the number of sequences from step to step, up and down."""
    lengths = (3, 30, 12, 8, 17, 21, 5)
    requests = {f"r{i}": (3 * i, prompt_of(n, i) * 2, greedy(6 + 2 * i)) for i, n in enumerate(lengths)}
    requests["sampled"] = (4, prompt_of(9, 50), greedy(12, temperature=1.0, seed=5))

    def run(model):
        proposer = NgramProposer(speculation, min_match=1) if speculation else None
        options = dict(cache_tokens=640, block_size=8, max_batch_tokens=40, max_sequences=5, check=True)
        return run_with_arrivals(Engine(model, overlap=overlap, speculation=proposer, **options), requests)

    graphed = GraphedModel(tiny_model(), max_sequences=5, debug=True)
    assert run(graphed) == run(tiny_model())
    assert graphed.num_replayed > 5 and len(graphed.steps) > 1


def test_sizes_and_widths():
    assert graph_sizes(1) == [1] and graph_sizes(3) == [1, 2, 4] and graph_sizes(5) == [1, 2, 4, 8]
    assert graph_sizes(24) == [1, 2, 4, 8, 16, 24] and graph_sizes(25)[-1] == 32
    with pytest.raises(UserError, match="max_sequences is 0"):
        graph_sizes(0)
    paged = KVSpec(1, 1, 8)
    assert [padded_width(paged, width) for width in (1, 64, 65, 1000)] == [64, 64, 128, 1024]


def test_a_new_static_batch_is_all_padding():
    static = StaticBatch(4, 2, (3,), torch.device("cpu"))
    assert static.groups[0].slots.tolist() == [-1] * 8 and static.context_lens.tolist() == [0] * 4
    assert static.cu_q.tolist() == [0, 2, 4, 6, 8]


def test_an_eager_replay_runs_the_work_each_time_into_the_same_outputs():
    counter = torch.zeros(1)

    def work():
        counter.add_(1)
        return (counter * 10,)

    replay = EagerReplay(work)
    assert replay.outputs[0].item() == 10
    first = replay.replay()[0]
    assert first.item() == 20 and replay.replay()[0] is first and first.item() == 30


def test_forbidding_synchronisation_does_nothing_on_a_cpu():
    with no_synchronisation(torch.device("cpu")):
        assert torch.ones(1).item() == 1
