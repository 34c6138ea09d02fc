"""Cache and scheduler: nothing lost, nothing starved, nothing over budget, at any moment."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_engine import greedy, prompt_of, run_with_arrivals, tiny_model, tokens_alone

from wholecurve.engine import Engine
from wholecurve.engine.cache import BlockPool, allocate_cache
from wholecurve.engine.scheduler import Scheduler
from wholecurve.engine.sequence import Sequence
from wholecurve.errors import UserError


class NoModel:
    """Plays the model against a scheduler: each step computes what was asked and samples token 1."""

    def __init__(self, scheduler):
        self.scheduler, self.sequences = scheduler, {}

    def add(self, name, prompt_tokens, new_tokens):
        sequence = Sequence(name, [1] * prompt_tokens, greedy(new_tokens))
        self.scheduler.add(sequence)
        self.sequences[name] = sequence

    def step(self):
        """Run one step after checking it against the rules; returns it."""
        scheduler = self.scheduler
        step = scheduler.schedule()
        chunks = [(s, 1) for s in step.decodes] + step.prefills
        assert sum(count for _, count in chunks) <= scheduler.max_batch_tokens
        assert len(scheduler.running) <= scheduler.max_sequences
        assert len({id(s) for s, _ in chunks}) == len(chunks), "a sequence twice in one step"
        assert all(1 <= count <= s.num_uncomputed for s, count in chunks)
        assert all(s.num_uncomputed == 1 and s.is_decoding for s in step.decodes)
        decoding = [s for s in scheduler.running if s.is_decoding]
        assert step.decodes == decoding, "every running sequence that decodes gets its token in every step"
        for sequence, count in chunks:
            last = sequence.num_computed + count - 1
            assert last // scheduler.pool.block_size < len(sequence.blocks), "a token without a block"
            sequence.num_computed += count
        for sequence, _ in chunks:
            if sequence.num_computed == len(sequence.token_ids):
                sequence.append(1, ())
                if sequence.finish_reason:
                    scheduler.remove(self.sequences.pop(sequence.request_id))
        scheduler.check_integrity()
        return step


sizes = st.tuples(st.integers(1, 20), st.integers(1, 12))


@settings(max_examples=150, deadline=None)
@given(
    block_size=st.sampled_from([1, 2, 8, 16]),
    num_blocks=st.integers(1, 24),
    max_batch_tokens=st.integers(1, 30),
    max_sequences=st.integers(1, 6),
    actions=st.lists(
        st.one_of(sizes.map(lambda s: ("add", *s)), st.just(("step",)), st.integers(0, 50).map(lambda i: ("abort", i))),
        max_size=60,
    ),
)
def test_any_load_on_a_small_pool(block_size, num_blocks, max_batch_tokens, max_sequences, actions):
    """Adds, steps and aborts in any order keep every rule; at the end everything finishes and all blocks are free."""
    scheduler = Scheduler(BlockPool(num_blocks, block_size), max_batch_tokens, max_sequences)
    player, admitted, order = NoModel(scheduler), [], []
    for number, (action, *values) in enumerate([*actions, *[("step",)] * 2000]):
        if action == "add":
            fits = -(-sum(values) // block_size) <= num_blocks
            try:
                player.add(f"r{number}", *values)
                assert fits
                order.append(f"r{number}")
            except UserError as error:
                assert not fits and f"r{number}" in str(error) and "cache" in str(error)
        elif action == "abort" and player.sequences:
            name = list(player.sequences)[values[0] % len(player.sequences)]
            scheduler.remove(player.sequences.pop(name))
            scheduler.check_integrity()
        elif action == "step":
            step = player.step()
            assert step.is_empty == (not step.decodes and not step.prefills)
            if step.is_empty:
                assert not player.sequences, "there is work, and nothing is scheduled"
            admitted += [s.request_id for s, _ in step.prefills if s.request_id not in admitted]
        if number >= len(actions) and not player.sequences:
            break
    assert not player.sequences and not scheduler.running and not scheduler.waiting
    assert scheduler.pool.num_free == num_blocks
    assert admitted == [name for name in order if name in set(admitted)], "not first come, first served"


@settings(max_examples=30, deadline=None)
@given(
    num_blocks=st.integers(2, 10),
    options=st.fixed_dictionaries({"max_batch_tokens": st.integers(1, 20), "max_sequences": st.integers(1, 5)}),
    sizes=st.lists(sizes, min_size=1, max_size=8),
    aborts=st.dictionaries(st.integers(0, 30), st.integers(0, 7), max_size=5),
)
def test_aborts_at_any_moment_change_nothing_for_the_others(num_blocks, options, sizes, aborts):
    model = tiny_model()
    engine = Engine(model, cache_tokens=8 * num_blocks, block_size=8, check=True, **options)
    requests = {
        f"r{i}": (i, tuple(prompt_of(prompt, i)), greedy(new))
        for i, (prompt, new) in enumerate(sizes)
        if -(-(prompt + new) // 8) <= num_blocks
    }
    aborted = set()

    def abort(engine, step, _):
        name = f"r{aborts.get(step)}"
        if name in engine._requests:
            engine.abort(name)
            aborted.add(name)
            engine.scheduler.check_integrity()

    if requests:
        tokens, _ = run_with_arrivals(engine, requests, abort)
        for name, (_, prompt, params) in requests.items():
            expected = tokens_alone(model, prompt, params)
            assert tokens[name] == (expected[: len(tokens[name])] if name in aborted else expected)
    assert engine.pool.num_free == num_blocks


@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("new_tokens", [1, 2, 9])
def test_prompts_at_the_edge_of_a_block(block_size, offset, new_tokens):
    """In a cache of exactly the size that the request needs."""
    length = 16 + offset
    model, params = tiny_model(), greedy(new_tokens)
    prompt = prompt_of(length, 3)
    engine = Engine(model, cache_tokens=length + new_tokens, block_size=block_size, max_batch_tokens=5, check=True)
    assert engine.pool.num_blocks == -(-(length + new_tokens) // block_size)
    assert engine.generate([prompt], params)[0] == tokens_alone(model, tuple(prompt), params)
    assert engine.pool.num_free == engine.pool.num_blocks


def test_a_request_that_can_never_fit_is_refused_and_the_others_go_on():
    engine = Engine(tiny_model(), cache_tokens=32, block_size=8, check=True)

    def add_too_large(engine, step, _):
        with pytest.raises(
            UserError, match=r"request big: prompt 25 \+ max_new_tokens 8 .* need 5 cache blocks, .* has 4"
        ):
            engine.add("big", prompt_of(25, 1), greedy(8))

    requests = {"fits": (0, prompt_of(24, 0), greedy(8)), "later": (1, prompt_of(3, 2), greedy(2))}
    tokens, _ = run_with_arrivals(engine, requests, add_too_large)
    assert {name: len(sampled) for name, sampled in tokens.items()} == {"fits": 8, "later": 2}
    engine.add("big", prompt_of(2, 1), greedy(2))


def test_a_large_request_waits_for_room_and_nobody_overtakes_it():
    player = NoModel(Scheduler(BlockPool(4, 8), max_batch_tokens=100, max_sequences=10))
    player.add("first", 8, 8)
    player.step()
    player.add("large", 24, 8)
    player.add("small", 4, 4)
    while "first" in player.sequences:
        assert [s.request_id for s in player.scheduler.running] == ["first"]
        player.step()
    step = player.step()
    assert [s.request_id for s, _ in step.prefills] == ["large"]


def test_chunks_go_to_the_oldest_prompt_first_and_decodes_before_them():
    player = NoModel(Scheduler(BlockPool(40, 4), max_batch_tokens=10, max_sequences=3))
    for name, prompt in (("a", 4), ("b", 13), ("c", 5), ("d", 1)):
        player.add(name, prompt, 10)
    seen = []
    for _ in range(3):
        step = player.step()
        seen.append(([s.request_id for s in step.decodes], [(s.request_id, count) for s, count in step.prefills]))
    assert seen == [([], [("a", 4), ("b", 6)]), (["a"], [("b", 7), ("c", 2)]), (["a", "b"], [("c", 3)])]


def test_a_finished_sequence_makes_room_for_the_next():
    player = NoModel(Scheduler(BlockPool(8, 8), max_batch_tokens=16, max_sequences=1))
    player.add("a", 3, 2)
    player.add("b", 3, 2)
    steps = [player.step() for _ in range(4)]
    assert [[s.request_id for s, _ in step.prefills] for step in steps] == [["a"], [], ["b"], []]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_a_freed_block_holds_never_reaches_the_next_request(poison):
    """Every free block is poisoned between steps, so a read past the context or before a write shows."""
    model = tiny_model()
    engine = Engine(model, cache_tokens=96, block_size=8, max_batch_tokens=11, max_sequences=3, check=True)
    lengths = (1, 7, 8, 9, 25, 16, 31)
    requests = {f"r{i}": (3 * i, tuple(prompt_of(n, i)), greedy(5)) for i, n in enumerate(lengths)}

    def poison_free_blocks(engine, *_):
        free = torch.tensor(engine.pool._free, dtype=torch.int64)
        for tensor in engine.runner.cache.keys + engine.runner.cache.values:
            tensor[free] = poison

    poison_free_blocks(engine)
    tokens, _ = run_with_arrivals(engine, requests, poison_free_blocks)
    for name, (_, prompt, params) in requests.items():
        assert tokens[name] == tokens_alone(model, prompt, params), name


def test_blocks_are_handed_out_once_and_reused():
    pool = BlockPool(4, 8)
    first, second = pool.take(3), pool.take(1)
    assert sorted(first + second) == [0, 1, 2, 3] and pool.num_free == 0
    with pytest.raises(AssertionError, match="1 blocks asked of 0"):
        pool.take(1)
    pool.give_back(first)
    assert pool.take(3) == first
    assert [pool.blocks_for(tokens) for tokens in (0, 1, 8, 9, 16, 17)] == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    "owned",
    [[[0, 1]], [[0, 1, 2], [2]], [[0, 1, 2, 3]], [[0, 1, 9]], []],
    ids=["lost", "twice", "free", "alien", "none"],
)
def test_the_check_finds_blocks_that_are_lost_or_owned_twice(owned):
    pool = BlockPool(5, 8)
    assert pool.take(3) == [0, 1, 2]
    pool.check_integrity([[2], [0, 1]])
    with pytest.raises(AssertionError, match="blocks lost, doubled or unknown"):
        pool.check_integrity(owned)


def test_the_check_finds_a_sequence_in_a_state_that_cannot_be():
    engine = Engine(tiny_model(), cache_tokens=64, block_size=8)
    engine.add("a", prompt_of(9, 0), greedy(4))
    engine.step()
    (sequence,) = engine.scheduler.running
    engine.scheduler.check_integrity()
    for field, wrong in (("num_computed", 10), ("num_computed", -1), ("finish_reason", "stop")):
        right = getattr(sequence, field)
        setattr(sequence, field, wrong)
        with pytest.raises(AssertionError, match="a: "):
            engine.scheduler.check_integrity()
        setattr(sequence, field, right)
    engine.scheduler.waiting.append(sequence)
    with pytest.raises(AssertionError, match="a waiting sequence owns blocks"):
        engine.scheduler.check_integrity()


def test_the_cache_has_a_tensor_per_layer_that_nothing_else_shares():
    config = tiny_model().config
    cache = allocate_cache(config, 5, 8, torch.bfloat16, torch.device("cpu"))
    tensors = cache.keys + cache.values
    assert [tuple(t.shape) for t in tensors] == [(5, 8, 2, 8)] * 4 and tensors[0].dtype == torch.bfloat16
    assert len({t.data_ptr() for t in tensors}) == 4


@pytest.mark.parametrize(
    "option", [{"max_batch_tokens": 0}, {"max_sequences": 0}, {"block_size": 0}, {"cache_tokens": 0}], ids=str
)
def test_an_engine_without_room_is_refused(option):
    with pytest.raises(UserError, match="at least 1"):
        Engine(tiny_model(), **option)
