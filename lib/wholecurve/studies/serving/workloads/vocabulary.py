"""The tokens of synthetic prompts: ordinary ones, none that a template or an engine gives a meaning to."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wholecurve.errors import UserError

# Without a tokenizer: the lowest ids are special tokens in most tokenizers, and so are these few left out.
LOWEST_IDS = 64


@dataclass(frozen=True)
class Vocabulary:
    """``ids`` are those that synthetic prompts are made of, rising; all ids below ``size`` are tokens of the model."""

    ids: np.ndarray = field(repr=False)
    size: int

    @classmethod
    def of(cls, vocab_size: int | None, tokenizer: Any | None) -> "Vocabulary":
        """Ordinary tokens of a tokenizer; of a bare size, all but the lowest 64 (half of them, if it is that small).

        A model's vocabulary may be padded beyond its tokenizer, and engines refuse ids that the tokenizer does not
        know: where both are given, the smaller one counts.
        """
        sizes = [size for size in (vocab_size, None if tokenizer is None else len(tokenizer)) if size is not None]
        if not sizes:
            raise UserError("prompts of token ids need the size of the model's vocabulary or its tokenizer")
        size = min(sizes)
        if tokenizer is None:
            ids = np.arange(min(LOWEST_IDS, size // 2), size)
        else:
            special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
            ids = np.setdiff1d(np.arange(size), np.fromiter(special, dtype=np.int64, count=len(special)))
        if len(ids) < 2:
            raise UserError(f"a vocabulary of {size} tokens has too few ordinary ones to write prompts with")
        return cls(ids, size)

    def draw(self, rng: np.random.Generator, tokens: int) -> list[int]:
        """``tokens`` ids, each drawn for itself."""
        return self.ids[rng.integers(0, len(self.ids), size=tokens)].tolist()
