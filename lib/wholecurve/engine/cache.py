"""The paged key-value cache: who owns which block, and the tensors behind the blocks."""

import torch

from wholecurve.models.batch import KVCache
from wholecurve.models.config import ModelConfig


class BlockPool:
    """Free list over `num_blocks` blocks of `block_size` tokens. A block has one owner or is free."""

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks, self.block_size = num_blocks, block_size
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens fill or begin."""
        return -(-tokens // self.block_size)

    def take(self, count: int) -> list[int]:
        """Remove `count` blocks from the free list. The caller has checked that there are enough."""
        assert count <= len(self._free), f"{count} blocks asked of {len(self._free)}"
        return [self._free.pop() for _ in range(count)]

    def give_back(self, blocks: list[int]) -> None:
        """Return blocks; the most recently used ones are handed out first again."""
        self._free.extend(reversed(blocks))

    def check_integrity(self, owned: list[list[int]]) -> None:
        """Every block is either free or owned by exactly one sequence."""
        held = [block for blocks in owned for block in blocks]
        everything = sorted(held + self._free)
        assert everything == list(range(self.num_blocks)), "blocks lost, doubled or unknown"


def allocate_cache(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> KVCache:
    """Tensors of all layers, each [num_blocks, block_size, num_kv_heads, head_dim]."""
    shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)

    def layers() -> list[torch.Tensor]:
        return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]

    return KVCache(layers(), layers())
