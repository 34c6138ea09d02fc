"""Blocks of one pool: references, the order of reuse, eviction, and the check that finds what is wrong."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wholecurve.engine.cache import BlockPool


def test_blocks_are_handed_out_once_and_reused():
    pool = BlockPool(4, 8)
    first, second = pool.take(3), pool.take(1)
    assert sorted(first + second) == [0, 1, 2, 3] and pool.num_free == 0 and pool.num_used == 4
    with pytest.raises(AssertionError, match="1 blocks asked of 0"):
        pool.take(1)
    pool.give_back(reversed(first))
    assert pool.take(3) == first
    assert [pool.blocks_for(tokens) for tokens in (0, 1, 8, 9, 16, 17)] == [0, 1, 1, 2, 2, 3]


def test_a_shared_block_is_free_when_the_last_one_gives_it_back():
    pool = BlockPool(2, 8)
    (block,) = pool.take(1)
    pool.share(block)
    pool.give_back([block])
    assert pool.num_used == 1
    pool.give_back([block])
    assert pool.num_used == 0
    with pytest.raises(AssertionError, match=f"block {block} given back, but nobody had it"):
        pool.give_back([block])


def test_what_was_given_back_first_is_evicted_first_and_only_when_no_block_is_free():
    evicted = []

    def evict(owner):
        evicted.append(owner)
        pool.unregister({"a": 0, "b": 1, "c": 2}[owner])

    pool = BlockPool(4, 8, evict)
    blocks = pool.take(3)
    for block, owner in zip(blocks, "abc"):
        pool.register(block, owner)
    pool.give_back([blocks[1], blocks[0], blocks[2]])
    assert (pool.num_free, pool.num_cached, pool.num_available) == (1, 3, 4)
    assert pool.take(1) == [3] and evicted == []
    pool.share(blocks[1])  # taken up again, so "a" is the oldest now
    pool.give_back([blocks[1]])
    assert pool.take(2) == [0, 2] and evicted == ["a", "c"]
    assert pool.is_cached(1) and not pool.is_cached(0)


def test_a_pool_without_anybody_to_ask_forgets_the_content_itself():
    pool = BlockPool(1, 8)
    (block,) = pool.take(1)
    pool.register(block, "content")
    pool.give_back([block])
    assert pool.num_cached == 1
    assert pool.take(1) == [block]
    pool.check_integrity([[block]], {})


@pytest.mark.parametrize(
    ("tables", "owners", "message"),
    [
        ([[0, 1]], {}, "references"),
        ([[0, 1, 2], [2]], {}, "references"),
        ([[0, 1, 2, 3]], {}, "references"),
        ([[0, 1, 9]], {}, "block 9 does not exist"),
        ([[0, 1, 1]], {}, "twice in one table"),
        ([], {}, "references"),
        ([[2], [0, 1]], {2: "content"}, "registered blocks differ"),
    ],
    ids=["lost", "twice", "free", "alien", "doubled", "none", "owner"],
)
def test_the_check_finds_what_does_not_agree(tables, owners, message):
    pool = BlockPool(5, 8)
    assert pool.take(3) == [0, 1, 2]
    pool.check_integrity([[2], [0, 1]], {})
    with pytest.raises(AssertionError, match=message):
        pool.check_integrity(tables, owners)


def test_the_check_finds_blocks_that_are_neither_free_nor_cached_nor_used():
    pool = BlockPool(5, 8)
    pool._free.remove(3)
    with pytest.raises(AssertionError, match="lost, doubled or unknown"):
        pool.check_integrity([], {})
    pool._free += [3, 3]
    with pytest.raises(AssertionError, match="lost, doubled or unknown"):
        pool.check_integrity([], {})


class PoolMachine(RuleBasedStateMachine):
    """Any order of take, share, register and give back, beside a plain account of who has what."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(6, 4, self.evict)
        self.tables, self.owners, self.cached = [], {}, []

    def evict(self, owner):
        assert owner == self.owners[self.cached[0]], "not the one that was given back longest ago"
        del self.owners[self.cached[0]]
        self.pool.unregister(self.cached.pop(0))

    @rule(count=st.integers(0, 6))
    def take(self, count):
        if count > self.pool.num_available:
            with pytest.raises(AssertionError):
                self.pool.take(count)
            return
        used = {block for table in self.tables for block in table}
        blocks = self.pool.take(count)
        assert not used & set(blocks) and len(set(blocks)) == count
        self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def give_back(self, data):
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.give_back(reversed(table))
        still = {block for other in self.tables for block in other}
        self.cached += [block for block in reversed(table) if block in self.owners and block not in still]

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data())
    def register(self, data):
        block = data.draw(st.sampled_from([block for table in self.tables for block in table]))
        if block in self.owners:
            with pytest.raises(AssertionError):
                self.pool.register(block, object())
            return
        self.owners[block] = object()
        self.pool.register(block, self.owners[block])

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), blocks=st.sets(st.integers(0, 5), max_size=4))
    def take_up(self, data, blocks):
        table = sorted(blocks & self.owners.keys())
        for block in table:
            self.pool.share(block)
            if block in self.cached:
                self.cached.remove(block)
        self.tables.append(table)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def forget(self, data):
        block = data.draw(st.sampled_from(sorted(self.owners)))
        self.pool.unregister(block)
        del self.owners[block]
        if block in self.cached:
            self.cached.remove(block)

    @invariant()
    def agrees(self):
        self.pool.check_integrity(self.tables, self.owners)
        used = {block for table in self.tables for block in table}
        assert (self.pool.num_used, self.pool.num_cached) == (len(used), len(self.cached))
        assert self.pool.num_free == 6 - len(used) - len(self.cached)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
