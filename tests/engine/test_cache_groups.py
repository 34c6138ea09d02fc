"""Cache groups one by one: what a window lets go, what a state is copied from, what is copied at all."""

import pytest
from toy_hybrid import FULL, STATE, ToyModel, ToySpec, toy_greedy, toy_prompt, window_of

from wholecurve.engine import Engine
from wholecurve.engine.cache import CacheManager, CacheSettings
from wholecurve.engine.sequence import Sequence


def manager_of(specs, **options):
    return CacheManager(specs, CacheSettings(**{"cache_tokens": 120, "block_sizes": 4, "max_sequences": 2, **options}))


def admitted(manager, prompt):
    sequence = Sequence("r", prompt, toy_greedy(1))
    assert manager.admit(sequence, [])
    return sequence


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 7, 8, 9, 16])
def test_a_window_lets_go_exactly_what_no_later_token_sees(window):
    manager = manager_of((window_of(window),))
    sequence = admitted(manager, toy_prompt(60, 1))
    for computed in range(1, 60):
        assert manager.allocate(sequence, 1)
        sequence.num_computed = computed
        manager.allocatable(sequence, 1)
        first_seen = max(0, computed - window + 1)
        held = sequence.blocks[0]
        assert [block < 0 for block in held] == [4 * (place + 1) <= first_seen for place in range(len(held))]
        manager.check_integrity([sequence])
        live = sum(block >= 0 for block in held)
        assert live <= manager.groups[0].least_blocks(computed)
    assert manager.pools[0].num_used == live


@pytest.mark.parametrize("window", range(1, 14))
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_the_least_blocks_of_a_window_are_what_its_worst_moment_needs(window, block_size):
    manager = manager_of((window_of(window),), block_sizes=block_size)
    worst = max(len({p // block_size for p in range(max(0, q - window + 1), q + 1)}) for q in range(60))
    assert manager.groups[0].least_blocks(60) == worst


def test_the_state_that_is_taken_up_stays_where_it_was():
    """With every slot in use or cached, the one that is to be copied is not among those that are taken."""
    manager = manager_of((STATE,), prefix_cache=True)
    prompts = [toy_prompt(5, seed) for seed in range(3)]
    for prompt in prompts:
        sequence = admitted(manager, prompt)
        sequence.num_computed = 4
        manager.free(sequence)
    admitted(manager, toy_prompt(3, 9))
    pool = manager.pools[0]
    assert (pool.num_free, pool.num_cached, pool.num_used) == (0, 3, 1)
    oldest, next_oldest, _ = manager.index.owners(0).values()
    (source,), (freed,) = oldest.contents[0], next_oldest.contents[0]
    sequence = admitted(manager, prompts[0])
    assert sequence.num_computed == 4 and oldest.contents[0] == (source,) and next_oldest.contents[0] is None
    assert manager.copies[-1] == (0, source, freed) and sequence.blocks[0] == [freed]


class CountedSpec(ToySpec):
    copies: list = []  # noqa: RUF012

    def copy_block(self, cache, source, target):
        self.copies.append((source, target))
        super().copy_block(cache, source, target)


def test_a_state_that_is_cached_already_is_not_copied_again(monkeypatch):
    monkeypatch.setattr(CountedSpec, "copies", [])
    engine = Engine(
        ToyModel((FULL, CountedSpec("state"))), cache_tokens=64, block_size=4, prefix_cache=True, check=True
    )
    monkeypatch.setattr(engine.cache, "_longest", lambda *_: 0)  # nothing is taken up, so all is computed again
    for _ in range(3):
        engine.generate([toy_prompt(10, 1)], toy_greedy(2))
    assert len(CountedSpec.copies) == 1
