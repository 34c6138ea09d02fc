"""The one owner of all cache groups of an engine: what sequences take, share, roll back and leave behind."""

import math
import sys
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

import torch

from wholecurve.engine.cache.groups import BlockGroup, StateGroup, WindowGroup
from wholecurve.engine.cache.pool import BlockPool
from wholecurve.engine.cache.prefix import HashFunction, PrefixIndex, PrefixKeys, PrefixNode, chained_hash
from wholecurve.engine.sequence import Sequence
from wholecurve.errors import UserError
from wholecurve.models.batch import CacheSpec

NEVER = sys.maxsize


@dataclass(frozen=True)
class CacheSettings:
    """Sizes of an engine's caches.

    cache_tokens: what a group that keeps every token can hold, rounded up to whole blocks. block_sizes: tokens per
    block, one for all groups or one for each. prefix_cache: whether beginnings of texts are kept for others that begin
    alike. domain: of cached prefixes; engines of other models that share nothing else must differ in it. max_drafts:
    per sequence and step.
    """

    cache_tokens: int = 16384
    block_sizes: int | tuple[int, ...] = 16
    max_sequences: int = 64
    max_batch_tokens: int = 2048
    max_drafts: int = 0
    prefix_cache: bool = False
    domain: str = ""

    def block_size_of(self, specs: ListOf[CacheSpec]) -> list[int]:
        """Tokens per block of each group; UserError for sizes that are not one per group, or below 1."""
        sizes = [self.block_sizes] * len(specs) if isinstance(self.block_sizes, int) else list(self.block_sizes)
        if len(sizes) != len(specs):
            raise UserError(f"{len(sizes)} block sizes; the model has {len(specs)} cache groups")
        if self.cache_tokens < 1 or min(sizes) < 1:
            raise UserError(f"cache_tokens is {self.cache_tokens}, block_size {min(sizes)}; both must be at least 1")
        return sizes

    def num_blocks(self, spec: CacheSpec, block_size: int) -> int:
        """Blocks of a group (kind state: slots, of which those beyond the sequences' own keep cached states)."""
        if spec.kind == "state":
            return self.max_sequences * (1 + self.max_drafts) + self.prefix_cache * self.max_sequences
        blocks = -(-self.cache_tokens // block_size)
        if spec.kind == "window" and not self.prefix_cache:
            # what all sequences can hold at once: their windows, a block to go on, and the new tokens of one step
            windows = self.max_sequences * ((spec.window + block_size - 2) // block_size + 2)
            return min(blocks, windows + -(-self.max_batch_tokens // block_size))
        return blocks


class CacheManager:
    """Blocks of all groups for all sequences.

    A running sequence has a row in every group's table. Prefixes are shared in chunks of `chunk_tokens`, the least
    common multiple of all block sizes, so that a chunk is whole blocks in every group; a sequence can only go on from
    a length that every group can serve.
    `copies` are (group, source, target): blocks to be copied, in this order, before the next step runs.
    """

    def __init__(self, specs: ListOf[CacheSpec], settings: CacheSettings, hash_function: HashFunction = chained_hash):
        self.specs, self.settings, self.hash_function = specs, settings, hash_function
        sizes = settings.block_size_of(specs)
        paged = [size for spec, size in zip(specs, sizes, strict=True) if spec.kind not in ("state", "history")]
        self.chunk_tokens = math.lcm(*(paged or sizes))
        self.pools: list[BlockPool | None] = []
        for index, (spec, size) in enumerate(zip(specs, sizes, strict=True)):
            if spec.kind == "history":
                self.pools.append(None)
                continue
            num_blocks, block_size = settings.num_blocks(spec, size), 1 if spec.kind == "state" else size
            self.pools.append(BlockPool(num_blocks, block_size, lambda node, i=index: self.index.detach(node, i)))
        self.index = PrefixIndex(self.pools)
        self.block_groups: list[BlockGroup] = []
        self.state_groups: list[StateGroup] = []
        for index, (spec, pool) in enumerate(zip(specs, self.pools, strict=True)):
            if spec.kind == "state":
                self.state_groups.append(StateGroup(index, spec, pool, settings.max_sequences, settings.max_drafts))
            elif pool is not None:
                kind = WindowGroup if spec.kind == "window" else BlockGroup
                self.block_groups.append(kind(index, spec, pool, settings.max_sequences, self.chunk_tokens))
        self.groups: list[BlockGroup | StateGroup] = [*self.block_groups, *self.state_groups]
        self.copies: list[tuple[int, int, int]] = []
        self.prefix_queried_tokens = self.prefix_hit_tokens = 0
        self._free_rows = list(range(settings.max_sequences - 1, -1, -1))

    def allocate_all(self, dtype: torch.dtype, device: torch.device) -> list[object]:
        """The memory of every group, in the order of the specs."""
        sizes = [(pool.num_blocks, pool.block_size) if pool else (0, 1) for pool in self.pools]
        return [spec.allocate(*size, dtype, device) for spec, size in zip(self.specs, sizes, strict=True)]

    # ---- room

    def refusal(self, num_tokens: int) -> str | None:
        """Why a sequence that stores `num_tokens` tokens could not run even alone; None when it can."""
        for group in self.groups:
            needed, there = group.least_blocks(num_tokens), group.pool.num_blocks
            if needed > there:
                return f"need {needed} cache blocks of {group.pool.block_size} tokens, the cache has {there}"
        return None

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give a running sequence blocks for its next `num_tokens` tokens; False, and none, when there are too few."""
        end = sequence.num_computed + num_tokens
        if end <= sequence.capacity:
            return True
        if self.allocatable(sequence, num_tokens) < num_tokens:
            return False
        for group in self.block_groups:
            group.extend(sequence, end)
        self._measure(sequence)
        return True

    def allocatable(self, sequence: Sequence, num_tokens: int) -> int:
        """How many of its next `num_tokens` tokens could get blocks."""
        for group in self.block_groups:
            group.let_go(sequence)
            num_tokens = min(num_tokens, group.reach(sequence) - sequence.num_computed)
        return max(0, num_tokens)

    def _measure(self, sequence: Sequence) -> None:
        sequence.capacity = min((group.room(sequence) for group in self.block_groups), default=NEVER)

    def cut(self, sequence: Sequence, num_tokens: int) -> int:
        """A chunk of at most `num_tokens` tokens, made to end where a state is worth keeping for others."""
        if not (self.settings.prefix_cache and self.state_groups):
            return num_tokens
        start, end = sequence.num_computed, sequence.num_computed + num_tokens
        if start < sequence.branch < end:
            return sequence.branch - start
        # the last token of a text is computed by whoever sends it again, so a state after it is none to go on from
        last = end - (end == len(sequence.token_ids))
        boundary = last // self.chunk_tokens * self.chunk_tokens
        return boundary - start if start < boundary else num_tokens

    # ---- a sequence comes, goes on, is set back, and goes

    def admit(self, sequence: Sequence, running: list[Sequence]) -> bool:
        """Let a sequence in, with what the prefix cache has of it; False, and nothing changes, when there is no room.

        Blocks are taken as its tokens come. There is room when all its known tokens will have blocks, those that the
        running sequences still need for theirs are left alone, and each of these can go on for another block.
        """
        nodes = self.match(sequence)
        for group in self.groups:
            cost = group.cost(nodes, len(sequence.token_ids))
            if running and isinstance(group, BlockGroup):
                cost += len(running)
                cost += sum(group.outstanding(s.blocks[group.index], len(s.token_ids)) for s in running)
            if cost > group.pool.num_available:
                return False
        sequence.row = self._free_rows.pop()
        sequence.blocks = [[] for _ in self.specs]
        sequence.num_computed = len(nodes) * self.chunk_tokens
        if nodes:
            for group in self.block_groups:
                group.adopt(sequence, nodes)
            self.copies += [(group.index, *group.adopt(sequence, nodes)) for group in self.state_groups]
        else:
            for group in self.state_groups:
                group.take_slots(sequence)
        self._measure(sequence)
        if self.settings.prefix_cache:
            self._hold(sequence, nodes)
        return True

    def rollback(self, sequence: Sequence, num_tokens: int, num_accepted: int) -> None:
        """After a step with drafts of which `num_accepted` stay: the last `num_tokens` tokens are not computed."""
        for group in self.state_groups:
            group.accept(sequence, num_accepted)
        if num_tokens:
            sequence.num_computed -= num_tokens
            for group in self.block_groups:
                group.truncate(sequence, sequence.num_computed)
            self._measure(sequence)

    def free(self, sequence: Sequence) -> None:
        """Take everything back from a running sequence; what it has computed stays in the prefix cache."""
        if sequence.prefix_node is not None:
            self.register(sequence)
            self.index.unpin(sequence.prefix_node)
            sequence.prefix_node = None
        for group in self.groups:
            group.release(sequence)
        self._free_rows.append(sequence.row)
        sequence.row, sequence.capacity, sequence.blocks = -1, 0, []

    # ---- prefixes

    def match(self, sequence: Sequence) -> list[PrefixNode]:
        """The chunks that a new sequence can go on from. Its last token is never among them: it gives the logits.

        Where states are all that keeps it from going on from further, the sequence will save one there.
        """
        if not self.settings.prefix_cache:
            return []
        if sequence.prefix_keys is None:
            domain = (self.settings.domain, sequence.cache_salt)
            sequence.prefix_keys = PrefixKeys(domain, self.chunk_tokens, self.hash_function)
        keys, most = sequence.prefix_keys, (len(sequence.token_ids) - 1) // self.chunk_tokens
        keys.extend(sequence.token_ids, most)
        node, nodes = self.index.find(None, keys.root_content, keys.root_digest), []
        while node is not None and len(nodes) < most:
            node = self.index.find(node, keys.contents[len(nodes)], keys.digests[len(nodes)])
            if node is not None:
                nodes.append(node)
        without_states = self._longest(self.block_groups, nodes, len(nodes))
        length = self._longest(self.groups, nodes, without_states)
        sequence.branch = without_states * self.chunk_tokens if length < without_states else 0
        return nodes[:length]

    def _longest(self, groups, nodes: list[PrefixNode], length: int) -> int:
        while length:
            shortest = min((group.longest(nodes, length) for group in groups), default=length)
            if shortest == length:
                break
            length = shortest
        return length

    def _hold(self, sequence: Sequence, nodes: list[PrefixNode]) -> None:
        """Pin the node that the sequence's next chunk will follow, and count the look-up."""
        keys = sequence.prefix_keys
        if nodes:
            sequence.prefix_node = nodes[-1]
            nodes[-1].num_pins += 1
        else:
            sequence.prefix_node = self.index.find_or_insert(None, keys.root_content, keys.root_digest)
        sequence.num_registered = len(nodes)
        sequence.next_boundary = (len(nodes) + 1) * self.chunk_tokens
        if not sequence.num_preemptions:
            sequence.num_cached = sequence.num_computed
            self.prefix_queried_tokens += len(sequence.prompt_ids)
            self.prefix_hit_tokens += sequence.num_cached

    def register(self, sequence: Sequence) -> None:
        """Make findable what the sequence has computed: chunks whose tokens are all known, and its state where it
        stands at the end of one."""
        keys, size = sequence.prefix_keys, self.chunk_tokens
        chunks = min(sequence.num_computed, len(sequence.token_ids)) // size
        keys.extend(sequence.token_ids, chunks)
        for chunk in range(sequence.num_registered, chunks):
            node = self.index.find_or_insert(sequence.prefix_node, keys.contents[chunk], keys.digests[chunk])
            self.index.unpin(sequence.prefix_node)
            sequence.prefix_node = node
            for group in self.block_groups:
                content = group.content(sequence, chunk * size, (chunk + 1) * size)
                if content is not None:
                    self.index.attach(node, group.index, content)
        sequence.num_registered = max(sequence.num_registered, chunks)
        sequence.next_boundary = (sequence.num_registered + 1) * size
        if chunks and chunks == sequence.num_registered and chunks * size == sequence.num_computed:
            self._save_states(sequence)

    def _save_states(self, sequence: Sequence) -> None:
        for group in self.state_groups:
            saved = sequence.prefix_node.contents[group.index]
            if saved is not None:
                group.pool.share(saved[0])  # to be evicted as if it had been saved now
                group.pool.give_back(saved)
            elif copy := group.save(sequence):
                self.copies.append((group.index, *copy))
                self.index.attach(sequence.prefix_node, group.index, copy[1:])
                group.pool.give_back(copy[1:])

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, as when a step has failed: what its blocks should hold may not have been written."""
        self.index.clear()
        self.copies.clear()

    # ---- checks

    def check_integrity(self, running: list[Sequence]) -> None:
        """AssertionError unless every block is free, cached or owned by running sequences, in every group."""
        rows = [s.row for s in running]
        assert sorted([*rows, *self._free_rows]) == list(range(self.settings.max_sequences)), "rows lost or doubled"
        for group in self.groups:
            pool = group.pool
            group.check_integrity(running, self.index.owners(group.index))
            assert pool.num_free + pool.num_cached + pool.num_used == pool.num_blocks, "blocks do not add up"
        self.index.check_integrity([s.prefix_node for s in running if s.prefix_node is not None])
        for s in running:
            assert s.capacity == min((group.room(s) for group in self.block_groups), default=NEVER), "wrong capacity"
