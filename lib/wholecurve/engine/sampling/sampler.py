"""From logits to tokens for all rows of a step, each row as if it were alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from wholecurve.engine.sampling.counts import PenaltyCounts
from wholecurve.engine.sampling.logprobs import ChosenLogprobs, TokenLogprobs
from wholecurve.engine.sampling.masks import GrammarMasks
from wholecurve.engine.sampling.request import RequestSampling
from wholecurve.engine.sampling.rows import Plan, RowGroup
from wholecurve.kernels.sampling import sampling
from wholecurve.kernels.sampling.cpu import without_nan


class SampleRow(NamedTuple):
    """One row of logits. request: whose it is. output_index: place in the answer of the token to draw, from 0. drafts:
    the tokens before it that are not committed yet, taken as if they were right.
    """

    request: RequestSampling
    output_index: int
    drafts: Sequence[int] = ()


@dataclass(frozen=True)
class SampledStep:
    """tokens: [R] int64 on the device of the logits, −1 in a row that has nothing to choose: every logit is −inf or
    NaN, or forbidden by the bias and the grammar.
    """

    tokens: Tensor
    chosen: ChosenLogprobs | None = None

    @property
    def logprobs(self) -> list[TokenLogprobs | None] | None:
        """Per row what its request asked for, None if none did. Waits for the device."""
        return None if self.chosen is None else self.chosen.per_row(len(self.tokens))


class Sampler:
    """Draws the next token of every row.

    Order of what is applied: logit bias, end tokens masked before min_new_tokens, and the grammar; then, in the kernel,
    penalties, temperature, top-k, top-p, min-p. A token depends on the row's logits, its request's parameters, the
    tokens before it, the seed and its place in the answer; never on other rows, nor on when it is drawn.
    """

    def __init__(self, vocab_size: int, device: torch.device | str):
        self.vocab_size, self.device = vocab_size, torch.device(device)
        # edited rows are a group of their own, and a table follows one group from step to step
        self._counts = {is_edited: PenaltyCounts(vocab_size, self.device) for is_edited in (False, True)}
        self._masks = GrammarMasks(vocab_size, self.device)
        self._composition: list[tuple[RequestSampling, bool]] = []
        self._plan = Plan([], self.device)

    @torch.inference_mode()
    def sample(self, logits: Tensor | None, rows: Sequence[SampleRow], argmax: Tensor | None = None) -> SampledStep:
        """One token per row of logits [R, V]; they are not written.

        argmax: [R] int64 where the model has found the lowest id of the largest logit on its way. With it, where all
        requests are plain, logits are not read and may be None.
        """
        if all([row.request.is_plain for row in rows]):
            return SampledStep(greedy(logits) if argmax is None else argmax)
        composition = [(row.request, row.request.masks_ends(row.output_index)) for row in rows]
        if composition != self._composition:
            self._composition, self._plan = composition, Plan(composition, self.device)
        tokens = torch.empty(len(rows), dtype=torch.int64, device=self.device)
        for group in self._plan.groups:
            if not group.is_plain:
                tokens[group.index] = self._draw(group, logits[group.index], [rows[i] for i in group.positions])
            elif argmax is not None:
                tokens[group.index] = argmax[group.index]
            else:
                tokens[group.index] = greedy(logits[group.index])
        chosen = None
        if self._plan.logprob_positions:
            chosen = ChosenLogprobs.read(logits, tokens, self._plan.logprob_positions)
        return SampledStep(tokens, chosen)

    def _draw(self, group: RowGroup, logits: Tensor, rows: list[SampleRow]) -> Tensor:
        """Tokens of rows that are sampled, edited or penalised."""
        if group.is_edited:
            # float32 also from a smaller dtype: a bias must not be lost to rounding
            logits = logits.to(torch.float32, copy=isinstance(group.index, slice))
            group.add_bias(logits)
            if group.grammar_places:
                self._masks.apply(logits, rows, group.grammar_places)
        steps = torch.tensor([row.output_index for row in rows], dtype=torch.int64, device=self.device)
        counts = self._counts[group.is_edited].of_rows(rows) if group.is_penalised else None
        return sampling(logits, group.temperature, group.seeds, steps, counts=counts, **group.options)


def greedy(logits: Tensor) -> Tensor:
    """The lowest id of the largest logit of each row [R, V]. On a CPU NaN is never chosen, and −1 stands where nothing
    can be; elsewhere a row with NaN gives no token that means anything.
    """
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    values = logits.float()
    # numpy finds the first of the largest ten times as fast
    tokens = torch.from_numpy(values.numpy().argmax(axis=-1))
    best = values.gather(1, tokens[:, None])[:, 0]
    if best.isfinite().all():
        return tokens
    values = without_nan(values)
    return torch.from_numpy(values.numpy().argmax(axis=-1)).where(values.amax(dim=-1) > -torch.inf, -1)
