"""Which blocks hold which beginnings of texts.

A node stands for a chunk of tokens after a given beginning: its parent. Nodes are found by a hash that is chained from
chunk to chunk, and believed only when tokens and parent are the same: a hash that collides costs time, never a wrong
token. The chain begins at a root that stands for a domain (a model, a tenant's salt), so that equal tokens of different
domains have nothing in common. What the blocks are is a matter of the cache groups, see `groups.py`.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable

from wholecurve.engine.cache.pool import BlockPool

HashFunction = Callable[[bytes, bytes], bytes]


def chained_hash(parent: bytes, content: bytes) -> bytes:
    """16 bytes that depend on everything since the root."""
    return hashlib.blake2b(content, digest_size=16, key=parent).digest()


class PrefixNode:
    """One chunk of tokens after what its parent stands for.

    contents: per cache group its blocks of this chunk, None where the group has (or needs) none. It stays while a group
    has blocks of it, a longer beginning rests on it, or a sequence is about to add one (`num_pins`).
    """

    __slots__ = ("content", "contents", "digest", "num_children", "num_pins", "parent")

    def __init__(self, parent: "PrefixNode | None", content: bytes, digest: bytes, num_groups: int):
        self.parent, self.content, self.digest = parent, content, digest
        self.contents: list[tuple[int, ...] | None] = [None] * num_groups
        self.num_children = self.num_pins = 0

    @property
    def is_needed(self) -> bool:
        return bool(self.num_children or self.num_pins) or any(blocks is not None for blocks in self.contents)


class PrefixKeys:
    """The chain of one text: content and digest of each full chunk, made once; a text that grows adds to it."""

    def __init__(self, domain: tuple[str, ...], chunk_tokens: int, hash_function: HashFunction):
        self.chunk_tokens, self.hash_function = chunk_tokens, hash_function
        # each part with its length in front: ("ab", "c") is not ("a", "bc")
        parts = [part.encode() for part in domain]
        self.root_content = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        self.root_digest = hash_function(b"", self.root_content)
        self.contents: list[bytes] = []
        self.digests: list[bytes] = []

    def extend(self, token_ids: list[int], num_chunks: int) -> None:
        """Make the keys of the first `num_chunks` chunks of a text that begins as before."""
        size = self.chunk_tokens
        for chunk in range(len(self.contents), num_chunks):
            content = array("q", token_ids[chunk * size : (chunk + 1) * size]).tobytes()
            parent = self.digests[-1] if self.digests else self.root_digest
            self.contents.append(content)
            self.digests.append(self.hash_function(parent, content))


class PrefixIndex:
    """All nodes, by digest. `pools`: of the cache groups, None for a group without blocks."""

    def __init__(self, pools: list[BlockPool | None]):
        self.pools = pools
        self._nodes: dict[bytes, list[PrefixNode]] = {}  # nodes whose digests collide share a list

    def find(self, parent: PrefixNode | None, content: bytes, digest: bytes) -> PrefixNode | None:
        """The node of exactly this content after this parent."""
        for node in self._nodes.get(digest, ()):
            if node.parent is parent and node.content == content:
                return node
        return None

    def find_or_insert(self, parent: PrefixNode | None, content: bytes, digest: bytes) -> PrefixNode:
        """The node, pinned once: the caller unpins it or inserts after it."""
        node = self.find(parent, content, digest)
        if node is None:
            node = PrefixNode(parent, content, digest, len(self.pools))
            self._nodes.setdefault(digest, []).append(node)
            if parent is not None:
                parent.num_children += 1
        node.num_pins += 1
        return node

    def attach(self, node: PrefixNode, group: int, blocks: tuple[int, ...]) -> None:
        """These blocks, which are in use, hold what the node stands for; they take the place of an older copy."""
        if node.contents[group] is not None:
            self.detach(node, group)
        node.contents[group] = blocks
        for block in blocks:
            self.pools[group].register(block, node)

    def detach(self, node: PrefixNode, group: int) -> None:
        """Forget a group's blocks of a node: one of them is needed, and the others are worth nothing without it."""
        for block in node.contents[group]:
            self.pools[group].unregister(block)
        node.contents[group] = None
        self._drop_unneeded(node)

    def unpin(self, node: PrefixNode) -> None:
        node.num_pins -= 1
        self._drop_unneeded(node)

    def clear(self) -> None:
        """Forget all contents; what sequences have pinned stays."""
        for node in [node for bucket in self._nodes.values() for node in bucket]:
            for group, blocks in enumerate(node.contents):
                if blocks is not None:
                    self.detach(node, group)

    def _drop_unneeded(self, node: PrefixNode | None) -> None:
        while node is not None and not node.is_needed:
            bucket = self._nodes[node.digest]
            bucket.remove(node)
            if not bucket:
                del self._nodes[node.digest]
            node = node.parent
            if node is not None:
                node.num_children -= 1

    def owners(self, group: int) -> dict[int, PrefixNode]:
        """Registered block -> node, as the nodes have it."""
        nodes = [node for bucket in self._nodes.values() for node in bucket]
        return {block: node for node in nodes for block in node.contents[group] or ()}

    def check_integrity(self, pinned: list[PrefixNode]) -> None:
        """AssertionError unless every node is needed, reachable and counted right. pinned: by sequences."""
        nodes = [node for bucket in self._nodes.values() for node in bucket]
        known, pins = set(nodes), Counter(pinned)
        children = Counter(node.parent for node in nodes)
        for node in nodes:
            assert node.is_needed, "a node that nothing needs"
            assert node.parent is None or node.parent in known, "a node whose parent is gone"
            assert node.num_children == children[node], "children miscounted"
            assert node.num_pins == pins[node], "pins miscounted"
        assert pins.keys() <= known, "a pinned node is gone"
