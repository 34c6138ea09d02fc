"""Speculative verification on a CPU: the rows of some requests at once, those of absent drafts left out."""

import torch

from wholecurve.kernels.sampling.cpu import draw, keep_the_best, softmax_weights, without_nan
from wholecurve.kernels.sampling.philox import verification_uniforms
from wholecurve.kernels.sampling.reference import TINY

ELEMENTS = 2**19  # of the rows that are handled together


def verification_cpu(
    draft_tokens,
    target_logits,
    temperature,
    seeds,
    steps,
    *,
    draft_probs=None,
    top_k=None,
    top_p=None,
    min_p=None,
    acceptance_rates=None,
):
    """See `wholecurve.kernels.verification.verification`. No request's arithmetic depends on those around it."""
    num_requests, positions, vocab = target_logits.shape
    tokens = torch.nn.functional.pad(draft_tokens, (0, 1), value=-1)
    num_accepted = torch.empty(num_requests, dtype=torch.int32)
    num_drafts = (draft_tokens >= 0).cumprod(dim=1).sum(dim=1)
    accept_with, draw_with = verification_uniforms(seeds[:, None], steps[:, None] + torch.arange(positions))
    requests = max(1, ELEMENTS // (vocab * positions))
    for first in range(0, num_requests, requests):
        part = slice(first, first + requests)
        filters = [None if limits is None else limits[part] for limits in (top_k, top_p, min_p)]
        proposal = None if draft_probs is None else draft_probs[part]
        target = Target(target_logits[part], num_drafts[part], temperature[part], *filters)
        if acceptance_rates is None:
            stays = target.accepts(tokens[part], proposal, accept_with[part])
        else:
            stays = accept_with[part, :-1] < acceptance_rates[part]
        stays &= torch.arange(positions - 1) < num_drafts[part, None]
        accepted = stays.cumprod(dim=1).sum(dim=1)
        replaced = (accepted < num_drafts[part]) & (acceptance_rates is None)
        uniform = draw_with[part].gather(1, accepted[:, None])[:, 0]
        added = target.added(accepted, replaced, tokens[part], proposal, uniform)
        num_accepted[part] = accepted
        tokens[part] = tokens[part].masked_fill(torch.arange(positions) > accepted[:, None], -1)
        tokens[part].scatter_(1, accepted[:, None], added[:, None])
    return tokens, num_accepted


class Target:
    """What the target says of R requests: of each the rows that follow its drafts, in order. request, position: [N] of
    those rows. values: [N, V]. warm: [N] bool, rows to draw from. weights: [W, V] of the warm ones, what their filters
    leave out cleared. total: [W] float64, sums of the weights.
    """

    def __init__(self, logits, num_drafts, temperature, *filters):
        self.first = (num_drafts + 1).cumsum(dim=0) - (num_drafts + 1)  # row of each request
        wanted = torch.arange(logits.shape[1]) <= num_drafts[:, None]
        self.request, self.position = wanted.nonzero(as_tuple=True)
        self.values = without_nan(logits.flatten(0, 1) if wanted.all() else logits[wanted])
        top = self.values.amax(dim=-1)
        heat = temperature[self.request]
        self.nothing = top == -torch.inf
        self.warm = (heat >= TINY) & ~self.nothing
        self.all_warm = bool(self.warm.all())
        values, top, heat, of_rows = map(self.of_warm, (self.values, top, heat, self.request))
        self.weights = softmax_weights(values, top, heat)
        if len(values):
            limits = (None if numbers is None else numbers[of_rows] for numbers in filters)
            keep_the_best(self.weights, values, top, heat, *limits)
        self.total = self.weights.sum(dim=-1).double()

    def of_warm(self, tensor):
        """The part of [N, …] that belongs to warm rows."""
        return tensor if self.all_warm else tensor[self.warm]

    def best(self, rows):
        """Best tokens of the rows in a bool or index tensor, −1 where all logits are −inf."""
        found = torch.from_numpy(self.values[rows].numpy().argmax(axis=-1))
        return found.where(~self.nothing[rows], -1)

    def accepts(self, tokens, proposal, uniform):
        """Whether drafts [R, K] stay, for tokens and numbers [R, K + 1]; where there is no draft it may be anything."""
        stays = torch.zeros(len(tokens), tokens.shape[1] - 1, dtype=torch.bool)
        draft = tokens[self.request, self.position]
        if not self.all_warm:
            cold = ~self.warm & (draft >= 0)
            stays[self.request[cold], self.position[cold]] = draft[cold] == self.best(cold)
        drafted = self.of_warm(draft) >= 0
        request, position, draft = (self.of_warm(held)[drafted] for held in (self.request, self.position, draft))
        chance = self.weights[drafted].gather(1, draft[:, None])[:, 0].double() / self.total[drafted]
        drawn_with = 1.0 if proposal is None else proposal[request, position, draft].double()
        stays[request, position] = uniform[request, position] * drawn_with < chance
        return stays

    def added(self, accepted, replaced, tokens, proposal, uniform):
        """The token [R] after the accepted drafts, in place of a rejected one where `replaced`."""
        row = self.first + accepted
        warm = self.warm[row]
        if not warm.all():
            added = self.best(row)
            if warm.any():
                held = (accepted, replaced, tokens, None if proposal is None else proposal, uniform)
                held = (None if tensor is None else tensor[warm] for tensor in held)
                added[warm] = self.drawn(row[warm], *held)
            return added
        return self.drawn(row, accepted, replaced, tokens, proposal, uniform)

    def drawn(self, row, accepted, replaced, tokens, proposal, uniform):
        """`added` where all rows are warm."""
        place = row if self.all_warm else self.warm.cumsum(dim=0)[row] - 1
        rejected = tokens.gather(1, accepted[:, None])[replaced, 0]
        if proposal is None:
            self.weights[place[replaced], rejected] = 0.0
        weights = self.weights[place]
        if proposal is not None and len(rejected):
            chances = weights[replaced].div_(self.total[place[replaced], None].to(weights.dtype))
            weights[replaced] = chances.sub_(proposal[replaced, accepted[replaced]]).clamp_(min=0)
        added = draw(weights, uniform)
        empty = replaced & (weights.amax(dim=-1) == 0)
        if empty.any():  # only by rounding: a draft that leaves nothing is accepted
            added[empty] = self.best(row[empty])
        return added
