"""Random numbers of a workload, from seed, kind, load and repeat alone: every contender gets the same requests."""

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Seeds:
    """Where the random numbers of one point come from.

    ``purpose`` keeps what is measured apart from what warms up: their prompts must not meet in a cache.
    """

    seed: int
    kind: str
    load: float  # concurrency or rate: 8 and 8.0 are the same load
    repeat: int
    purpose: str = "measured"

    def generator(self, *parts: str | int) -> np.random.Generator:
        """A generator for one part of the workload, such as ("session", 3); no other part's draws move it."""
        return np.random.default_rng(self.number(*parts))

    def number(self, *parts: str | int) -> int:
        """128 bits that belong to one part of the workload."""
        names = (self.seed, self.kind, f"{float(self.load):.12g}", self.repeat, self.purpose, *parts)
        return int.from_bytes(hashlib.sha256("\x1f".join(map(str, names)).encode()).digest()[:16], "big")
