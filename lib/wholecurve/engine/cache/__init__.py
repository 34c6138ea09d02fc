"""The paged caches: pools of blocks, groups of several kinds, prefixes that texts share, one owner of all."""

from wholecurve.engine.cache.manager import CacheManager, CacheSettings
from wholecurve.engine.cache.pool import BlockPool

__all__ = ["BlockPool", "CacheManager", "CacheSettings"]
