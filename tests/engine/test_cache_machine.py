"""The cache manager under any order of events: what a sequence takes up is what its own tokens would have left there.

Every slot has a stamp: the text up to its token. Stamps are written where a step would write entries, and read where it
would read them.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from toy_hybrid import FULL, STATE, history_of, toy_greedy, window_of

from wholecurve.engine.cache import CacheManager, CacheSettings
from wholecurve.engine.cache.prefix import chained_hash
from wholecurve.engine.sequence import Sequence

FAMILIES = [(FULL,), (window_of(5),), (STATE,), (FULL, window_of(3), STATE), (window_of(9), FULL, history_of(2))]


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        specs=st.sampled_from(FAMILIES),
        sizes=st.sampled_from([(2, 2, 1), (4, 2, 1), (3, 2, 1)]),
        cache_tokens=st.integers(12, 40),
        bits=st.sampled_from([1, 8, 128]),
    )
    def start(self, specs, sizes, cache_tokens, bits):
        sizes = CacheSettings(
            cache_tokens=cache_tokens, block_sizes=sizes[: len(specs)], max_sequences=4, max_drafts=2, prefix_cache=True
        )
        mask = (1 << bits) - 1

        def short_hash(parent, content):
            return (int.from_bytes(chained_hash(parent, content), "little") & mask).to_bytes(16, "little")

        self.manager = CacheManager(specs, sizes, short_hash)
        self.running, self.stamps, self.number = [], {}, 0

    def do_copies(self):
        for group, source, target in self.manager.copies:
            self.stamps[group, target, 0] = self.stamps.get((group, source, 0))
        self.manager.copies.clear()

    def write(self, sequence, first, text):
        """Stamp what a step over text[first:] would write."""
        salt = sequence.cache_salt
        for group in self.manager.block_groups:
            size = group.pool.block_size
            for p in range(first, len(text)):
                self.stamps[group.index, sequence.blocks[group.index][p // size], p % size] = (salt, *text[: p + 1])

    def read(self, sequence):
        """Look at everything that the next token of a sequence would look at."""
        text, salt = sequence.token_ids[: sequence.num_computed], sequence.cache_salt
        for group in self.manager.block_groups:
            size = group.pool.block_size
            window = group.spec.window
            first = 0 if window is None else max(0, len(text) - window + 1)
            for p in range(first, len(text)):
                block = sequence.blocks[group.index][p // size]
                assert block >= 0 and self.stamps[group.index, block, p % size] == (salt, *text[: p + 1])
        for group in self.manager.state_groups:
            if text:
                assert self.stamps[group.index, sequence.blocks[group.index][0], 0] == (salt, *text)

    @precondition(lambda self: len(self.running) < 4)
    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        salt=st.sampled_from(["", "x"]),
        repeat=st.integers(1, 3),
    )
    def come(self, tokens, salt, repeat):
        tokens = (tokens[:7] * repeat)[:20] if repeat > 1 else tokens
        sequence = Sequence(f"r{self.number}", tokens, toy_greedy(4), cache_salt=salt)
        self.number += 1
        if self.manager.refusal(len(tokens)) or not self.manager.admit(sequence, self.running):
            assert sequence.row < 0 and not sequence.blocks
            return
        self.running.append(sequence)
        self.do_copies()
        assert sequence.num_computed < len(tokens)
        self.read(sequence)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), wanted=st.integers(1, 9), following=st.integers(0, 1))
    def go_on(self, data, wanted, following):
        sequence = data.draw(st.sampled_from(self.running))
        if sequence.num_computed == len(sequence.token_ids):
            sequence.token_ids.append(following)
        if sequence.num_computed >= sequence.next_boundary:
            self.manager.register(sequence)
        self.do_copies()
        wanted = min(wanted, len(sequence.token_ids) - sequence.num_computed)
        count = self.manager.allocatable(sequence, wanted)
        assert self.manager.allocate(sequence, wanted) == (count == wanted)
        if not count:
            return
        count = self.manager.cut(sequence, count)
        assert 1 <= count <= wanted and self.manager.allocate(sequence, count)
        self.read(sequence)
        first, sequence.num_computed = sequence.num_computed, sequence.num_computed + count
        text = sequence.token_ids[: sequence.num_computed]
        self.write(sequence, first, text)
        for group in self.manager.state_groups:
            self.stamps[group.index, sequence.blocks[group.index][0], 0] = (sequence.cache_salt, *text)

    @precondition(lambda self: any(s.num_computed == len(s.token_ids) for s in self.running))
    @rule(data=st.data(), drafts=st.lists(st.integers(0, 1), min_size=1, max_size=2), following=st.integers(0, 1))
    def verify_drafts(self, data, drafts, following):
        sequence = data.draw(st.sampled_from([s for s in self.running if s.num_computed == len(s.token_ids)]))
        accepted = data.draw(st.integers(0, len(drafts)))
        sequence.token_ids.append(following)
        if sequence.num_computed >= sequence.next_boundary:
            self.manager.register(sequence)
        self.do_copies()
        if not self.manager.allocate(sequence, 1 + len(drafts)):
            return
        self.read(sequence)
        first, text = sequence.num_computed, [*sequence.token_ids, *drafts]
        self.write(sequence, first, text)
        for group in self.manager.state_groups:
            for i in range(1 + len(drafts)):
                slot = sequence.blocks[group.index][i]
                self.stamps[group.index, slot, 0] = (sequence.cache_salt, *text[: first + 1 + i])
        sequence.num_computed += 1 + len(drafts)
        self.manager.rollback(sequence, len(drafts) - accepted, accepted)
        sequence.token_ids += drafts[:accepted]
        assert sequence.num_computed == len(sequence.token_ids)
        self.read(sequence)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leave(self, data):
        sequence = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.manager.free(sequence)
        self.do_copies()

    @rule()
    def forget(self):
        self.manager.forget_prefixes()
        assert not any(pool.num_cached for pool in self.manager.pools if pool)

    @invariant()
    def agrees(self):
        if hasattr(self, "manager"):
            self.manager.check_integrity(self.running)

    def teardown(self):
        if hasattr(self, "manager"):
            for sequence in self.running:
                self.manager.free(sequence)
            self.manager.check_integrity([])
            assert not any(pool.num_used for pool in self.manager.pools if pool)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
