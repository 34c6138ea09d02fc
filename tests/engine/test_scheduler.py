"""Cache and scheduler: nothing lost, nothing starved, nothing over budget, at any moment."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_engine import greedy, is_idle, prompt_of, run_with_arrivals, tiny_model, tokens_alone

from wholecurve.engine import Engine
from wholecurve.engine.cache import CacheManager, CacheSettings
from wholecurve.engine.scheduler import AGEING_STEPS, Scheduler
from wholecurve.engine.sequence import Sequence
from wholecurve.errors import UserError
from wholecurve.models.batch import KVSpec


def scheduler_of(num_blocks, block_size, max_batch_tokens, max_sequences, **options):
    """A scheduler over one group of full attention."""
    sizes = {"max_sequences": max_sequences, "max_batch_tokens": max_batch_tokens, **options}
    settings = CacheSettings(cache_tokens=num_blocks * block_size, block_sizes=block_size, **sizes)
    return Scheduler(CacheManager([KVSpec(1, 1, 2)], settings), max_batch_tokens, max_sequences)


class NoModel:
    """Plays the model against a scheduler: each step computes what was asked and samples token 1."""

    def __init__(self, scheduler):
        self.scheduler, self.sequences = scheduler, {}
        (self.pool,) = scheduler.cache.pools

    def add(self, name, prompt_tokens, new_tokens, priority=0):
        sequence = Sequence(name, [1] * prompt_tokens, greedy(new_tokens), priority)
        self.scheduler.add(sequence)
        self.sequences[name] = sequence

    def step(self):
        """Run one step after checking it against the rules; returns it."""
        scheduler, before = self.scheduler, set(self.scheduler.running)
        step = scheduler.schedule()
        assert not step.preempted or before >= set(scheduler.running), "let in while another had to make room"
        chunks = step.decodes + step.prefills
        assert sum(count for _, count in chunks) <= scheduler.max_batch_tokens
        assert len({id(s) for s, _ in chunks}) == len(chunks), "a sequence twice in one step"
        assert all(1 <= count <= s.num_uncomputed for s, count in chunks)
        assert all(s.is_decoding and count == 1 for s, count in step.decodes)
        decoding = [s for s in scheduler.running if s.is_decoding]
        assert [s for s, _ in step.decodes] == decoding, "every running sequence that decodes gets its token"
        for sequence, count in chunks:
            last = sequence.num_computed + count - 1
            assert last // self.pool.block_size < len(sequence.blocks[0]), "a token without a block"
        sampled = [(s, 0) for s, count in chunks if count == s.num_uncomputed]
        scheduler.advance(step, sampled)
        for sequence, _ in sampled:
            sequence.num_pending -= 1
            sequence.append(1)
            if sequence.finish_reason:
                scheduler.remove(self.sequences.pop(sequence.request_id))
        scheduler.check_integrity()
        return step

    def run(self, most=5000):
        """Step until nothing is left; names in order of their end."""
        ends = []
        for _ in range(most):
            before = list(self.sequences)
            self.step()
            ends += [name for name in before if name not in self.sequences]
            if not self.sequences:
                return ends
        raise AssertionError("it never ends")


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
    scheduler = scheduler_of(num_blocks, block_size, max_batch_tokens, max_sequences)
    player, admitted, order = NoModel(scheduler), [], []
    for number, (action, *values) in enumerate([*actions, *[("step",)] * 2000]):
        if action == "add":
            fits = -(-(sum(values) - 1) // block_size) <= num_blocks  # the last token is never stored
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
            had_work = bool(player.sequences)
            step = player.step()
            assert step.is_empty != had_work, "there is work, and nothing is scheduled"
            admitted += [s.request_id for s, _ in step.prefills if s.request_id not in admitted]
        if number >= len(actions) and not player.sequences:
            break
    assert not player.sequences and not scheduler.running and not scheduler.waiting
    assert player.pool.num_free == num_blocks
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
        if -(-(prompt + new - 1) // 8) <= num_blocks
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
    assert is_idle(engine) and engine.stats().blocks_total == num_blocks


@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("new_tokens", [1, 2, 9])
def test_prompts_at_the_edge_of_a_block(block_size, offset, new_tokens):
    """In a cache of exactly the size that the request needs."""
    length = 16 + offset
    model, params = tiny_model(), greedy(new_tokens)
    prompt = prompt_of(length, 3)
    stored = length + new_tokens - 1
    engine = Engine(model, cache_tokens=stored, block_size=block_size, max_batch_tokens=5, check=True)
    assert engine.stats().blocks_total == -(-stored // block_size)
    assert engine.generate([prompt], params)[0] == tokens_alone(model, tuple(prompt), params)
    assert is_idle(engine)


def test_a_request_that_can_never_fit_is_refused_and_the_others_go_on():
    engine = Engine(tiny_model(), cache_tokens=32, block_size=8, check=True)

    def add_too_large(engine, step, _):
        with pytest.raises(
            UserError, match=r"request big: prompt 25 \+ max_new_tokens 9 .* need 5 cache blocks of 8 .* has 4"
        ):
            engine.add("big", prompt_of(25, 1), greedy(9))

    requests = {"fits": (0, prompt_of(24, 0), greedy(8)), "later": (1, prompt_of(3, 2), greedy(2))}
    tokens, _ = run_with_arrivals(engine, requests, add_too_large)
    assert {name: len(sampled) for name, sampled in tokens.items()} == {"fits": 8, "later": 2}
    engine.add("big", prompt_of(2, 1), greedy(2))


def test_a_large_request_waits_for_room_and_nobody_overtakes_it():
    player = NoModel(scheduler_of(4, 8, max_batch_tokens=100, max_sequences=10))
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
    player = NoModel(scheduler_of(40, 4, max_batch_tokens=10, max_sequences=3))
    for name, prompt in (("a", 4), ("b", 13), ("c", 5), ("d", 1)):
        player.add(name, prompt, 10)
    seen = []
    for _ in range(3):
        step = player.step()
        seen.append(([s.request_id for s, _ in step.decodes], [(s.request_id, count) for s, count in step.prefills]))
    assert seen == [([], [("a", 4), ("b", 6)]), (["a"], [("b", 7), ("c", 2)]), (["a", "b"], [("c", 3)])]


def test_a_finished_sequence_makes_room_for_the_next():
    player = NoModel(scheduler_of(8, 8, max_batch_tokens=16, max_sequences=1))
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
        free = torch.tensor(engine.cache.pools[0]._free, dtype=torch.int64)
        for tensor in engine.runner.caches[0].keys + engine.runner.caches[0].values:
            tensor[free] = poison

    poison_free_blocks(engine)
    tokens, _ = run_with_arrivals(engine, requests, poison_free_blocks)
    for name, (_, prompt, params) in requests.items():
        assert tokens[name] == tokens_alone(model, prompt, params), name


def test_the_check_finds_a_sequence_in_a_state_that_cannot_be():
    engine = Engine(tiny_model(), cache_tokens=64, block_size=8)
    engine.add("a", prompt_of(9, 0), greedy(4))
    engine.step()
    (sequence,) = engine.scheduler.running
    engine.scheduler.check_integrity()
    for field, wrong in (("num_computed", 10), ("num_computed", -1), ("finish_reason", "stop"), ("capacity", 0)):
        right = getattr(sequence, field)
        setattr(sequence, field, wrong)
        with pytest.raises(AssertionError, match=r"a: |wrong capacity"):
            engine.scheduler.check_integrity()
        setattr(sequence, field, right)
    engine.scheduler.waiting.append(sequence)
    with pytest.raises(AssertionError, match="a: waits, yet owns blocks"):
        engine.scheduler.check_integrity()


def test_the_cache_has_a_tensor_per_layer_that_nothing_else_shares():
    (spec,) = tiny_model().cache_specs
    cache = spec.allocate(5, 8, torch.bfloat16, torch.device("cpu"))
    assert spec.kind == "full" and spec.entry_bytes(torch.bfloat16) * 5 * 8 == sum(
        t.nbytes for t in cache.keys + cache.values
    )
    tensors = cache.keys + cache.values
    assert [tuple(t.shape) for t in tensors] == [(5, 8, 2, 8)] * 4 and tensors[0].dtype == torch.bfloat16
    assert len({t.data_ptr() for t in tensors}) == 4


@pytest.mark.parametrize(
    "option", [{"max_batch_tokens": 0}, {"max_sequences": 0}, {"block_size": 0}, {"cache_tokens": 0}], ids=str
)
def test_an_engine_without_room_is_refused(option):
    with pytest.raises(UserError, match="at least 1"):
        Engine(tiny_model(), **option)


def test_a_lower_priority_number_goes_first_and_equal_ones_in_order_of_arrival():
    player = NoModel(scheduler_of(8, 8, max_batch_tokens=16, max_sequences=1))
    player.add("running", 3, 2)
    player.step()
    for name, priority in (("late", 2), ("a", 0), ("b", 0), ("urgent", -1), ("c", 0)):
        player.add(name, 3, 2, priority)
    assert player.run() == ["running", "urgent", "a", "b", "c", "late"]


def test_the_victim_is_the_lowest_priority_then_the_youngest():
    """Three prompts of one block that all grow to three, in a cache of five."""
    player = NoModel(scheduler_of(5, 4, max_batch_tokens=100, max_sequences=3))
    for name, priority in (("old", 1), ("middle", 0), ("young", 0)):
        player.add(name, 4, 9, priority)
    victims = []
    while player.sequences:
        victims += [s.request_id for s in player.step().preempted]
    # "old" came first, but with a lower priority; between equals the younger one gives way
    assert victims[:2] == ["old", "young"] and "middle" not in victims


@pytest.mark.parametrize("late_by", [0, 5])
def test_a_request_that_waits_long_enough_is_the_first(late_by):
    """One seat, and an urgent request always there to take it: the other gets it after AGEING_STEPS steps."""
    player = NoModel(scheduler_of(8, 8, max_batch_tokens=16, max_sequences=1))
    for number in range(late_by):
        player.add(f"early {number}", 3, 1)
        player.step()
    start = player.scheduler.num_steps
    player.add("patient", 3, 1, priority=1)
    for number in range(3 * AGEING_STEPS):
        player.add(f"urgent {number}", 3, 1, priority=0)
        player.step()
        if "patient" not in player.sequences:
            break
    # the one that came with it is as patient; from then on nobody who comes is before it
    assert AGEING_STEPS <= player.scheduler.num_steps - start <= AGEING_STEPS + 2


def test_a_preempted_sequence_keeps_its_place_and_its_tokens():
    player = NoModel(scheduler_of(6, 4, max_batch_tokens=100, max_sequences=3))
    for name in ("a", "b", "c"):
        player.add(name, 4, 12)
    sequences = dict(player.sequences)
    while not player.scheduler.num_preemptions:
        player.step()
    (victim,) = player.scheduler.waiting
    assert victim is sequences["c"] and victim.num_computed == 0 and victim.num_sampled > 0
    sampled = victim.num_sampled
    player.add("later", 4, 2)
    assert [s.request_id for s in player.scheduler.waiting] == ["c", "later"]
    player.run()
    assert victim.num_sampled == 12 > sampled and victim.num_preemptions >= 1


def test_every_sequence_of_a_load_that_never_ends_gets_its_turn():
    """Twice as much work as the cache holds, for ever: how long a request takes stays bounded."""
    player = NoModel(scheduler_of(12, 4, max_batch_tokens=16, max_sequences=6))
    born, longest = {}, 0
    for number in range(1500):
        if len(player.sequences) < 8:
            name = f"r{number}"
            player.add(name, 1 + number % 13, 1 + number % 7, priority=number % 3)
            born[name] = number
        player.step()
        born = {name: start for name, start in born.items() if name in player.sequences}
        longest = max([longest, *(number - start for start in born.values())])
    assert longest <= 3 * AGEING_STEPS


def test_drafts_leave_every_other_sequence_its_token():
    player = NoModel(scheduler_of(40, 4, max_batch_tokens=7, max_sequences=3, max_drafts=3))
    for name in ("a", "b", "c"):
        player.add(name, 1, 9)
    player.step()
    for sequence in player.scheduler.running:
        sequence.drafts = [1, 1, 1]
    step = player.scheduler.schedule()
    assert [(s.request_id, count) for s, count in step.decodes] == [("a", 4), ("b", 2), ("c", 1)]
    assert [s.drafts for s, _ in step.decodes] == [[1, 1, 1], [1], []]


def test_drafts_take_the_blocks_that_are_there_and_preempt_nobody():
    player = NoModel(scheduler_of(3, 4, max_batch_tokens=40, max_sequences=2, max_drafts=6))
    player.add("a", 4, 8)
    player.add("b", 3, 4)
    player.step()
    a, b = player.scheduler.running
    a.drafts, b.drafts = [1] * 6, [1] * 3
    step = player.scheduler.schedule()
    # the third block is for "a", whose first block is full; "b" has room for one token
    assert [(s.request_id, count) for s, count in step.decodes] == [("a", 4), ("b", 1)] and not step.preempted


def test_where_prompts_hold_all_blocks_the_first_in_rank_goes_on():
    """It does not come to this by itself: room is kept for what running prompts still need."""
    player = NoModel(scheduler_of(8, 4, max_batch_tokens=16, max_sequences=2))
    player.add("a", 12, 2)
    player.add("b", 10, 2)
    player.step()
    a, b = player.scheduler.running
    cache = player.scheduler.cache
    cache.rollback(a, 8, 0)
    assert (a.num_computed, b.num_computed) == (4, 4)
    assert cache.allocate(b, 24) and not player.pool.num_available
    step = player.scheduler.schedule()
    assert step.preempted == [b] and step.prefills == [(a, 1)]


def test_a_chunk_is_as_long_as_there_are_blocks_and_the_first_in_rank_always_goes_on():
    player = NoModel(scheduler_of(6, 4, max_batch_tokens=64, max_sequences=4))
    player.add("a", 8, 9)
    player.add("b", 4, 9)
    player.step()
    player.add("c", 20, 2)
    assert player.run()[-1] == "c"
