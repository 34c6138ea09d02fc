"""The tensors of a step, number by number, as `models/batch.py` describes them."""

import torch
from toy_hybrid import FULL, STATE, history_of, toy_greedy, toy_prompt, window_of

from wholecurve.engine.batching import BatchBuilder, single_batch
from wholecurve.engine.cache import CacheManager, CacheSettings
from wholecurve.engine.scheduler import ScheduledStep
from wholecurve.engine.sequence import Sequence

SPECS = (FULL, window_of(5), STATE, history_of(3))


def running(manager, name, prompt, computed, sampled=(), drafts=(), pending=0):
    """A sequence in the midst of its text, with blocks for what it has computed and what comes next."""
    sequence = Sequence(name, prompt, toy_greedy(9))
    assert manager.admit(sequence, [])
    sequence.token_ids += sampled
    sequence.drafts = list(drafts)
    assert manager.allocate(sequence, computed)
    sequence.num_computed, sequence.num_pending = computed, pending
    assert manager.allocate(sequence, max(1, len(sequence.token_ids) + len(drafts) - computed))
    return sequence


def manager_of(specs=SPECS, **options):
    sizes = {"cache_tokens": 96, "block_sizes": 4, "max_sequences": 4, "max_drafts": 2, "max_batch_tokens": 64}
    return CacheManager(specs, CacheSettings(**{**sizes, **options}))


def build(manager, decodes, prefills):
    inputs = BatchBuilder(manager).build(ScheduledStep(decodes, prefills))
    batch, places, pending_rows, sampled_rows = inputs.to_device(torch.device("cpu"))
    tensors = [batch.token_ids, batch.positions, batch.logits_rows, batch.context_lens, batch.cu_q]
    tensors += [tensor for group in batch.groups for tensor in (group.block_table, group.slots)]
    assert all(tensor.dtype == torch.int64 for tensor in [*tensors, places, pending_rows, sampled_rows])
    return inputs, batch


def test_decode_rows_then_chunks():
    manager = manager_of()
    a = running(manager, "a", toy_prompt(7, 1), 8, sampled=[3, 4])
    b = running(manager, "b", toy_prompt(5, 2), 5, sampled=[6])
    c = running(manager, "c", toy_prompt(12, 3), 3)
    inputs, batch = build(manager, [(a, 1), (b, 1)], [(c, 6)])
    assert batch.token_ids.tolist() == [4, 6, *c.prompt_ids[3:9]]
    assert batch.positions.tolist() == [8, 5, 3, 4, 5, 6, 7, 8]
    assert (batch.num_decodes, batch.decode_queries, batch.max_q) == (2, 1, 6)
    assert batch.cu_q.tolist() == [0, 1, 2, 8] and batch.context_lens.tolist() == [9, 6, 9]
    assert batch.logits_rows.tolist() == [0, 1], "the chunk does not reach the end of its prompt"
    assert inputs.sampled == [(a, 0), (b, 0)]
    full = batch.groups[0]
    assert full.block_table.tolist() == [a.blocks[0], [*b.blocks[0], -1], c.blocks[0][:3]]
    expected = [s.blocks[0][p // 4] * 4 + p % 4 for s, p in [(a, 8), (b, 5), *((c, p) for p in range(3, 9))]]
    assert full.slots.tolist() == expected
    states = batch.groups[2]
    assert states.block_table.tolist() == [s.blocks[2] for s in (a, b, c)] and states.block_table.shape == (3, 3)
    assert states.slots.tolist() == [a.blocks[2][0], b.blocks[2][0], *[-1] * 5, c.blocks[2][0]]
    history = batch.groups[3]
    assert history.block_table.tolist() == [a.token_ids[5:8], b.token_ids[2:5], c.token_ids[:3]]
    assert history.slots.shape == (0,)


def test_a_chunk_that_reaches_the_end_of_its_text_gives_a_token():
    manager = manager_of()
    c = running(manager, "c", toy_prompt(12, 3), 0)
    inputs, batch = build(manager, [], [(c, 12)])
    assert batch.logits_rows.tolist() == [11] and inputs.sampled == [(c, 0)]
    assert batch.groups[3].block_table.tolist() == [[-1, -1, -1]]
    assert (batch.num_decodes, batch.decode_queries) == (0, 1)


def test_what_a_window_gave_back_is_minus_one():
    manager = manager_of()
    a = running(manager, "a", toy_prompt(15, 1), 14)
    b = running(manager, "b", toy_prompt(3, 1), 3, sampled=[2])
    manager.allocatable(a, 1)
    assert a.blocks[1][:2] == [-1, -1] and min(a.blocks[1][2:]) >= 0
    _, batch = build(manager, [(b, 1)], [(a, 1)])
    assert batch.groups[1].block_table.tolist() == [[*b.blocks[1], -1, -1, -1], a.blocks[1]]
    assert min(batch.groups[0].block_table[1].tolist()) >= 0


def test_equal_drafts_decode_together_and_other_numbers_come_after_them():
    manager = manager_of()
    a = running(manager, "a", toy_prompt(7, 1), 7, sampled=[3], drafts=[1, 2])
    b = running(manager, "b", toy_prompt(5, 2), 5, sampled=[6])
    c = running(manager, "c", toy_prompt(6, 3), 6, sampled=[7], drafts=[8, 9])
    d = running(manager, "d", toy_prompt(4, 4), 0)
    inputs, batch = build(manager, [(a, 3), (b, 1), (c, 3)], [(d, 2)])
    assert (batch.num_decodes, batch.decode_queries, batch.max_q) == (2, 3, 3)
    assert batch.token_ids.tolist() == [3, 1, 2, 7, 8, 9, 6, *d.prompt_ids[:2]]
    assert batch.positions.tolist() == [7, 8, 9, 6, 7, 8, 5, 0, 1]
    assert batch.cu_q.tolist() == [0, 3, 6, 7, 9] and batch.context_lens.tolist() == [10, 9, 6, 2]
    assert batch.logits_rows.tolist() == [0, 1, 2, 3, 4, 5, 6], "every draft is verified"
    assert inputs.sampled == [(a, 2), (c, 2), (b, 0)]
    assert batch.groups[2].slots.tolist() == [*a.blocks[2], *c.blocks[2], b.blocks[2][0], -1, d.blocks[2][0]]


def test_the_number_of_drafts_that_most_have_is_that_of_the_decode_rows():
    manager = manager_of()
    a = running(manager, "a", toy_prompt(7, 1), 7, sampled=[3], drafts=[1, 2])
    b, c = (running(manager, name, toy_prompt(5, 2), 5, sampled=[6]) for name in "bc")
    inputs, batch = build(manager, [(a, 3), (b, 1), (c, 1)], [])
    assert (batch.num_decodes, batch.decode_queries) == (2, 1)
    assert inputs.sampled == [(b, 0), (c, 0), (a, 2)] and batch.cu_q.tolist() == [0, 1, 2, 5]


def test_tokens_that_only_the_device_knows_have_a_place():
    manager = manager_of()
    a = running(manager, "a", toy_prompt(7, 1), 7, pending=1)
    b = running(manager, "b", toy_prompt(5, 2), 5, sampled=[6])
    d = running(manager, "d", toy_prompt(4, 4), 0)
    inputs = BatchBuilder(manager).build(ScheduledStep([(b, 1), (a, 1)], [(d, 4)]))
    batch, places, pending_rows, sampled_rows = inputs.to_device(torch.device("cpu"))
    assert batch.token_ids.tolist() == [6, 0, *d.prompt_ids]
    assert places.tolist() == [1] and pending_rows.tolist() == [a.row]
    assert sampled_rows.tolist() == [b.row, a.row, d.row] and batch.logits_rows.tolist() == [0, 1, 5]


def test_what_was_built_does_not_change_with_the_tables():
    """A step in flight reads its inputs while the next one is scheduled."""
    manager = manager_of()
    a = running(manager, "a", toy_prompt(7, 1), 7, sampled=[3])
    manager.copies.append((2, 5, 6))
    inputs, _ = build(manager, [(a, 1)], [])
    assert inputs.copies == [(2, 5, 6)] and manager.copies == [], "what is copied once is not copied again"
    before = [array.copy() for array in inputs.arrays]
    manager.allocate(a, 30)
    manager.free(a)
    running(manager, "b", toy_prompt(9, 1), 5)
    assert all((one == other).all() for one, other in zip(before, inputs.arrays, strict=True))


def test_one_sequence_alone():
    batch = single_batch([5, 6, 7], 6, [[3, 1, 2], [0, 4]], [4, 8], torch.device("cpu"), [0, 2])
    assert batch.positions.tolist() == [6, 7, 8] and batch.context_lens.tolist() == [9]
    assert batch.groups[0].block_table.tolist() == [[3, 1, 2]] and batch.groups[0].slots.tolist() == [6, 7, 8]
    assert batch.groups[1].block_table.tolist() == [[0, 4]] and batch.groups[1].slots.tolist() == [6, 7, 32]
    assert batch.logits_rows.tolist() == [0, 2] and (batch.num_decodes, batch.max_q) == (0, 3)
    assert single_batch([5], 6, [[3, 1]], [4], torch.device("cpu")).num_decodes == 1
    assert single_batch([5], 0, [[3, 1]], [4], torch.device("cpu")).num_decodes == 0
