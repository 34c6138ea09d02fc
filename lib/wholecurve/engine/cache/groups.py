"""The cache groups of a model: how many blocks a sequence needs of each, and which of them others can take up.

A group keeps, per running sequence, the list of its blocks in order of position (`sequence.blocks[index]`) and the same
as a row of `table`, a numpy array that a step's batch is cut from.
"""

import numpy as np

from wholecurve.engine.cache.pool import BlockPool
from wholecurve.engine.cache.prefix import PrefixNode
from wholecurve.engine.sequence import Sequence
from wholecurve.models.batch import CacheSpec

GIVEN_BACK = -1  # stands in a list of blocks where a window has moved on
_FIRST_WIDTH = 16  # columns of a new table


class BlockGroup:
    """Entries of all tokens (kinds full and latent), in blocks of `pool.block_size` tokens."""

    def __init__(self, index: int, spec: CacheSpec, pool: BlockPool, max_sequences: int, chunk_tokens: int):
        self.index, self.spec, self.pool, self.chunk_tokens = index, spec, pool, chunk_tokens
        self.table = np.full((max_sequences, _FIRST_WIDTH), GIVEN_BACK, dtype=np.int64)

    def least_blocks(self, num_tokens: int) -> int:
        """Blocks that a sequence of so many tokens must hold at once at some time, however small its steps are."""
        return self.pool.blocks_for(num_tokens)

    def room(self, sequence: Sequence) -> int:
        """Tokens, from the first of the sequence on, whose blocks it has."""
        return len(sequence.blocks[self.index]) * self.pool.block_size

    def reach(self, sequence: Sequence) -> int:
        """Tokens that would have blocks if the sequence took all that are available."""
        return (len(sequence.blocks[self.index]) + self.pool.num_available) * self.pool.block_size

    def missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks to take before the first `num_tokens` tokens have some."""
        return max(0, self.pool.blocks_for(num_tokens) - len(sequence.blocks[self.index]))

    def outstanding(self, held: list[int], num_tokens: int) -> int:
        """Blocks that a sequence with these will still take until `num_tokens` are computed, as far as can be told."""
        return max(0, self.pool.blocks_for(num_tokens) - len(held))

    def cost(self, nodes: list[PrefixNode], num_tokens: int) -> int:
        """Available blocks that a new sequence of `num_tokens` tokens takes up sooner or later, with these chunks."""
        cached = self.cached_blocks(nodes)
        revived = sum(map(self.pool.is_cached, cached))
        return revived + self.outstanding(cached, num_tokens)

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Take the missing blocks; the caller has checked that there are enough."""
        if missing := self.missing(sequence, num_tokens):
            self._append(sequence, self.pool.take(missing))

    def _append(self, sequence: Sequence, blocks: list[int]) -> None:
        held = sequence.blocks[self.index]
        start, end = len(held), len(held) + len(blocks)
        if end > self.table.shape[1]:
            wider = np.full((len(self.table), max(end, 2 * self.table.shape[1])), GIVEN_BACK, dtype=np.int64)
            wider[:, : self.table.shape[1]] = self.table
            self.table = wider
        held += blocks
        self.table[sequence.row, start:end] = blocks

    def let_go(self, sequence: Sequence) -> None:
        """Give back what no later token of the sequence can see."""

    def truncate(self, sequence: Sequence, num_tokens: int) -> None:
        """Give back the blocks behind the first `num_tokens` tokens."""
        held, keep = sequence.blocks[self.index], self.pool.blocks_for(num_tokens)
        if len(held) > keep:
            self.pool.give_back(reversed(held[keep:]))
            self.table[sequence.row, keep : len(held)] = GIVEN_BACK
            del held[keep:]

    def release(self, sequence: Sequence) -> None:
        """Give back everything, the end of the text first: it is evicted before what it rests on."""
        held = sequence.blocks[self.index]
        self.pool.give_back([block for block in reversed(held) if block != GIVEN_BACK])
        self.table[sequence.row, : len(held)] = GIVEN_BACK
        sequence.blocks[self.index] = []

    # ---- prefixes

    def longest(self, nodes: list[PrefixNode], limit: int) -> int:
        """The largest number of chunks, at most `limit`, after which a sequence can go on from what is cached."""
        for count, node in enumerate(nodes[:limit]):
            if node.contents[self.index] is None:
                return count
        return limit

    def cached_blocks(self, nodes: list[PrefixNode]) -> list[int]:
        """Blocks that a sequence refers to when it takes up these chunks, GIVEN_BACK where it needs none."""
        return [block for node in nodes for block in node.contents[self.index]]

    def adopt(self, sequence: Sequence, nodes: list[PrefixNode]) -> None:
        """Take up these chunks."""
        blocks = self.cached_blocks(nodes)
        for block in blocks:
            if block != GIVEN_BACK:
                self.pool.share(block)
        self._append(sequence, blocks)

    def content(self, sequence: Sequence, start: int, end: int) -> tuple[int, ...] | None:
        """The sequence's blocks of tokens start to end - 1, None where it has given some of them back."""
        size = self.pool.block_size
        blocks = tuple(sequence.blocks[self.index][start // size : end // size])
        return None if GIVEN_BACK in blocks else blocks

    def tables(self, sequences: list[Sequence]) -> list[list[int]]:
        """The blocks that each sequence refers to."""
        return [[block for block in s.blocks[self.index] if block != GIVEN_BACK] for s in sequences]

    def check_integrity(self, sequences: list[Sequence], owners: dict[int, object]) -> None:
        """AssertionError unless pool, table and the sequences' lists agree."""
        self.pool.check_integrity(self.tables(sequences), owners)
        for s in sequences:
            held, row = s.blocks[self.index], self.table[s.row]
            assert row[: len(held)].tolist() == held, f"{s.request_id}: its row of the table is another"
            assert (row[len(held) :] == GIVEN_BACK).all(), f"{s.request_id}: its row of the table is too long"
            assert s.num_computed <= self.room(s), f"{s.request_id}: more tokens than blocks"


class WindowGroup(BlockGroup):
    """Entries of the last `window` tokens; blocks wholly behind it are given back while the sequence goes on."""

    @property
    def window(self) -> int:
        return self.spec.window

    def first_block(self, num_tokens: int) -> int:
        """The first block that the token at position `num_tokens`, or a later one, sees."""
        return max(0, num_tokens - self.window + 1) // self.pool.block_size

    def least_blocks(self, num_tokens: int) -> int:
        # a query sees `window` positions, itself among them, which lie in at most so many blocks
        size = self.pool.block_size
        return min(self.pool.blocks_for(num_tokens), (self.window + size - 2) // size + 1)

    def outstanding(self, held: list[int], num_tokens: int) -> int:
        live = len(held) - held.count(GIVEN_BACK)
        return max(0, min(self.pool.blocks_for(num_tokens) - len(held), self.least_blocks(num_tokens) - live))

    def let_go(self, sequence: Sequence) -> None:
        held, first = sequence.blocks[self.index], self.first_block(sequence.num_computed)
        last = first
        while last and held[last - 1] != GIVEN_BACK:
            last -= 1
        if last < first:
            self.pool.give_back(reversed(held[last:first]))
            held[last:first] = [GIVEN_BACK] * (first - last)
            self.table[sequence.row, last:first] = GIVEN_BACK

    def longest(self, nodes: list[PrefixNode], limit: int) -> int:
        for count in range(limit, 0, -1):
            needed = nodes[max(0, count * self.chunk_tokens - self.window + 1) // self.chunk_tokens : count]
            if all(node.contents[self.index] is not None for node in needed):
                return count
        return 0

    def cached_blocks(self, nodes: list[PrefixNode]) -> list[int]:
        nothing = (GIVEN_BACK,) * (self.chunk_tokens // self.pool.block_size)
        blocks = [block for node in nodes for block in node.contents[self.index] or nothing]
        first = self.first_block(len(nodes) * self.chunk_tokens)
        return [GIVEN_BACK] * first + blocks[first:]


class StateGroup:
    """A state per sequence, in 1 + `max_drafts` slots: one that is, and those that it may become when drafts stay.

    The first of a sequence's slots holds its state. A state after a whole chunk can be copied to a slot of its own and
    taken up by others, who get a copy: a state is written in place.
    """

    def __init__(self, index: int, spec: CacheSpec, pool: BlockPool, max_sequences: int, max_drafts: int):
        self.index, self.spec, self.pool, self.slots_each = index, spec, pool, 1 + max_drafts
        self.table = np.full((max_sequences, self.slots_each), GIVEN_BACK, dtype=np.int64)

    def least_blocks(self, num_tokens: int) -> int:
        return self.slots_each

    def cost(self, nodes: list[PrefixNode], num_tokens: int) -> int:
        """Available slots that a new sequence takes, the cached one that it copies its state from included."""
        return self.slots_each + sum(map(self.pool.is_cached, self.cached_blocks(nodes) if nodes else ()))

    def take_slots(self, sequence: Sequence) -> None:
        """Give a new sequence its slots; the caller has checked that there are enough."""
        sequence.blocks[self.index] = self.pool.take(self.slots_each)
        self.table[sequence.row] = sequence.blocks[self.index]

    def accept(self, sequence: Sequence, num_accepted: int) -> None:
        """After a step that wrote a state per token: the one after so many drafts holds."""
        slots = sequence.blocks[self.index]
        sequence.blocks[self.index] = slots[num_accepted:] + slots[:num_accepted]
        self.table[sequence.row] = sequence.blocks[self.index]

    def release(self, sequence: Sequence) -> None:
        self.pool.give_back(reversed(sequence.blocks[self.index]))
        self.table[sequence.row] = GIVEN_BACK
        sequence.blocks[self.index] = []

    # ---- prefixes

    def longest(self, nodes: list[PrefixNode], limit: int) -> int:
        while limit and nodes[limit - 1].contents[self.index] is None:
            limit -= 1
        return limit

    def cached_blocks(self, nodes: list[PrefixNode]) -> list[int]:
        return list(nodes[-1].contents[self.index])

    def adopt(self, sequence: Sequence, nodes: list[PrefixNode]) -> tuple[int, int]:
        """Give a new sequence its slots. Returns the copy (source, target) to make before it runs."""
        (source,) = self.cached_blocks(nodes)
        self.pool.share(source)  # it must not be among the slots that are taken next
        self.take_slots(sequence)
        self.pool.give_back([source])
        return source, sequence.blocks[self.index][0]

    def save(self, sequence: Sequence) -> tuple[int, int] | None:
        """A slot for a copy of the present state, as (source, target), if there is one that nobody needs.

        The target is in use; it is cached once it is registered and given back.
        """
        if not self.pool.num_available:
            return None
        return sequence.blocks[self.index][0], self.pool.take(1)[0]

    def tables(self, sequences: list[Sequence]) -> list[list[int]]:
        return [s.blocks[self.index] for s in sequences]

    def check_integrity(self, sequences: list[Sequence], owners: dict[int, object]) -> None:
        """AssertionError unless pool, table and the sequences' slots agree."""
        self.pool.check_integrity(self.tables(sequences), owners)
        for s in sequences:
            slots = s.blocks[self.index]
            assert len(slots) == self.slots_each, f"{s.request_id}: {len(slots)} state slots"
            assert self.table[s.row].tolist() == slots, f"{s.request_id}: its row of the table is another"
