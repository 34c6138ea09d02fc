"""Logarithms of the probabilities that the model gave, before anything changed them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from wholecurve.kernels.sampling.cpu import ELEMENTS, softmax_weights
from wholecurve.kernels.top_k import top_k


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of the softmax of the model's own logits: before bias, grammar, penalties, temperature and
    filters, so that they do not depend on how the token was drawn.

    alternatives: (token id, logprob) of the most probable tokens, best first and equal ones by id; the chosen token is
    among them only when it is one of these.
    """

    token_id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class ChosenLogprobs:
    """Logprobs of some rows of a step, on the device until they are asked for.

    positions: (row, number of alternatives). tokens, logprobs: [rows]; ids, id_logprobs: [rows, most alternatives],
    best first, ids −1 where a row has fewer tokens with a probability.
    """

    positions: list[tuple[int, int]]
    tokens: Tensor
    logprobs: Tensor
    ids: Tensor
    id_logprobs: Tensor

    @classmethod
    def read(cls, logits: Tensor, tokens: Tensor, positions: list[tuple[int, int]]) -> "ChosenLogprobs":
        """logits: [R, V] as the model gave them. tokens: [R], −1 for none, which has logprob −inf."""
        vocab = logits.shape[1]
        most = min(max(number for _, number in positions), vocab)
        index = torch.tensor([row for row, _ in positions], device=logits.device)
        # on a CPU so few rows at a time that they stay in its cache, and that memory is used again
        rows = max(1, ELEMENTS // vocab) if logits.device.type == "cpu" else len(positions)
        parts = [logprobs_of(logits[part], tokens[part], most) for part in index.split(rows)]
        return cls(positions, tokens[index], *map(torch.cat, zip(*parts, strict=True)))

    def per_row(self, num_rows: int) -> list[TokenLogprobs | None]:
        """What each of the step's rows asked for, None where it asked for nothing."""
        result: list[TokenLogprobs | None] = [None] * num_rows
        columns = (self.tokens, self.logprobs, self.ids, self.id_logprobs)
        for (row, number), token, logprob, ids, id_logprobs in zip(
            self.positions, *(column.tolist() for column in columns), strict=True
        ):
            pairs = [(i, value) for i, value in zip(ids[:number], id_logprobs[:number], strict=True) if i >= 0]
            result[row] = TokenLogprobs(token, logprob, tuple(pairs))
        return result


def logprobs_of(logits: Tensor, tokens: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """(logprobs [R] of tokens [R], ids [R, most], their logprobs) of rows [R, V]; see `ChosenLogprobs`."""
    values = logits.float().nan_to_num(-torch.inf, torch.inf, -torch.inf)
    top = values.amax(dim=-1)
    logs = softmax_weights(values, top, torch.ones_like(top)).sum(dim=-1, keepdim=True).log()

    def logprobs_at(ids: Tensor) -> Tensor:
        own = values.gather(1, ids.clamp(min=0))
        difference = torch.where(own == top[:, None], 0.0, own - top[:, None])
        return torch.where(ids >= 0, difference - logs, -torch.inf)

    chosen = logprobs_at(tokens[:, None])[:, 0]
    if not most:
        nothing = tokens[:, None][:, :0]
        return chosen, nothing, nothing.float()
    ids = largest(values, most)
    ranked = values.gather(1, ids.clamp(min=0)).where(ids >= 0, -torch.inf)
    # ids ascend, so a stable sort leaves equal ones in order of id
    ids = ids.gather(1, ranked.argsort(dim=1, descending=True, stable=True))
    return chosen, ids, logprobs_at(ids)


def largest(values: Tensor, number: int) -> Tensor:
    """Ids [R, number] of the largest values [R, V], the lowest of equal ones, in ascending order; −1 at the end where
    fewer are above −inf.
    """
    if values.device.type == "cpu" and number < values.shape[1]:
        best, ids = values.topk(number + 1)  # ten times as fast, and says which ones where the last is not tied
        if (best[:, number - 1] > best[:, number]).all():
            return ids[:, :number].sort(dim=1).values
    return top_k(values, number).long()
