"""The tokens that grammars allow, as bits, on the rows of a step."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from wholecurve.engine.sampling.sampler import SampleRow


class GrammarMasks:
    """Fills one row of bits per row of logits and applies them together."""

    def __init__(self, vocab_size: int, device: torch.device):
        self._vocab_size, self._device = vocab_size, device

    def apply(self, logits: Tensor, rows: list["SampleRow"], places: list[int]) -> None:
        """Set to −inf, in place, what the grammars forbid in logits [rows, V]. places: rows that have a grammar.

        A row after drafts is masked as if they were right. Where one of them is not allowed the row is left as it is:
        its token cannot be used, since the row of the wrong draft itself forbids it.
        """
        import xgrammar

        bits = xgrammar.allocate_token_bitmask(len(rows), self._vocab_size)  # all of them set
        for place in places:
            request, _, drafts = rows[place]
            request.matcher.fill(bits, place, drafts)
        for place in places:
            rows[place].request.matcher.forget_drafts()
        bits = bits.to(self._device)
        xgrammar.apply_token_bitmask_inplace(logits, bits, vocab_size=self._vocab_size, indices=places)
