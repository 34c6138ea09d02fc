"""The blocks of one cache group: who refers to them, which are free, and which still hold something of use."""

from collections import OrderedDict
from collections.abc import Callable, Iterable


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, each of them free, cached or in use.

    In use: somebody refers to it. Cached: nobody does, but its content is registered under an owner, so that it can be
    taken up again; the one that was given back longest ago is evicted first. A block in use can be registered too.
    `on_evict` is called with the owner of a block that is about to be used for something else.
    """

    def __init__(self, num_blocks: int, block_size: int, on_evict: Callable[[object], None] | None = None):
        self.num_blocks, self.block_size, self.on_evict = num_blocks, block_size, on_evict
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # the next to be evicted first
        self._owners: dict[int, object] = {}  # of registered blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody refers to and whose content can be found."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `take` can hand out: free ones, and cached ones at the price of their content."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens fill or begin."""
        return -(-tokens // self.block_size)

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks, one reference each. The caller has checked that there are enough."""
        assert count <= self.num_available, f"{count} blocks asked of {self.num_available}"
        blocks = []
        for _ in range(count):
            while not self._free:
                self._evict_one()
            block = self._free.pop()
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def _evict_one(self) -> None:
        owner = self._owners[next(iter(self._cached))]
        if self.on_evict:
            self.on_evict(owner)  # unregisters this block and those that are worth nothing without it
        else:
            self.unregister(next(iter(self._cached)))

    def share(self, block: int) -> None:
        """One more reference to a block that is in use or cached."""
        if not self._references[block]:
            del self._cached[block]
        self._references[block] += 1

    def give_back(self, blocks: Iterable[int]) -> None:
        """One reference less to each. Of registered blocks the first of the list are evicted first, of others the last
        is handed out first again."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} given back, but nobody had it"
            self._references[block] -= 1
            if not self._references[block]:
                if block in self._owners:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def register(self, block: int, owner: object) -> None:
        """Keep the content of a block that is in use when it is given back, until it is evicted."""
        assert self._references[block] > 0 and block not in self._owners, f"block {block} cannot be registered"
        self._owners[block] = owner

    def unregister(self, block: int) -> None:
        """Forget the content; a cached block is free then."""
        del self._owners[block]
        if not self._references[block]:
            del self._cached[block]
            self._free.append(block)

    def is_cached(self, block: int) -> bool:
        """Whether nobody refers to this registered block."""
        return block in self._cached

    def check_integrity(self, tables: Iterable[list[int]], owners: dict[int, object]) -> None:
        """AssertionError unless every block is free, cached or referred to as often as `tables` do.

        tables: the blocks of each sequence. owners: registered block -> owner, as the prefix cache has it.
        """
        references = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), "a block stands twice in one table"
            for block in table:
                assert 0 <= block < self.num_blocks, f"block {block} does not exist"
                references[block] += 1
        assert references == self._references, "references lost or doubled"
        assert owners == self._owners, "registered blocks differ from what the prefix cache knows"
        unused = [block for block, count in enumerate(references) if not count]
        assert sorted([*self._free, *self._cached]) == unused, "blocks lost, doubled or unknown"
        assert all((block in self._cached) == (block in self._owners) for block in unused), "cached without an owner"
