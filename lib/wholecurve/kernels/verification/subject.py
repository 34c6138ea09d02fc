"""Speculative verification as the laboratory sees it."""

import torch

from wholecurve.kernels.sampling.philox import verification_uniforms
from wholecurve.kernels.sampling.reference import TINY, best, row_parameters, without_nan
from wholecurve.kernels.sampling.spec import of_row
from wholecurve.kernels.sampling.subject import SUM_ERROR, clear_draw, kept_sets
from wholecurve.kernels.subject import Expected, Subject
from wholecurve.kernels.verification import FORMS, spec, verification
from wholecurve.kernels.verification.reference import draft_chances


def make(
    inputs,
    num_requests,
    num_drafts,
    vocab,
    temperature,
    accepted,
    drafts=None,
    probs=None,
    top_k=None,
    top_p=None,
    min_p=None,
    synthetic=False,
    scale=3.0,
    row_gap=0,
    dtype="bfloat16",
):
    """Arguments of `verification` for a case; `obey` sees to the drafts that are accepted."""

    def per_request(values, number):
        chosen = [of_row(values, request) for request in range(num_requests)] if values is not None else None
        return None if chosen is None else inputs.fixed(chosen, number)

    logits = inputs.normal(num_requests, num_drafts + 1, vocab + row_gap, dtype=dtype, scale=scale)
    given = {
        "draft_tokens": inputs.integers(0, vocab, num_requests, num_drafts),
        "target_logits": logits[..., :vocab],
        "temperature": per_request(temperature, "float32"),
        "seeds": inputs.integers(-(2**63), 2**63 - 1, num_requests),
        "steps": inputs.integers(0, 2**40, num_requests),
        "draft_probs": None,
        "top_k": per_request(top_k, "int32"),
        "top_p": per_request(top_p, "float32"),
        "min_p": per_request(min_p, "float32"),
        "acceptance_rates": inputs.uniform(num_requests, num_drafts) if synthetic else None,
    }
    if probs is not None:
        drawn_with = inputs.normal(num_requests, num_drafts, vocab, dtype="float32", scale=scale).softmax(dim=-1)
        given["draft_probs"] = drawn_with.to(getattr(torch, probs))
    if not inputs.is_meta:
        for request in range(num_requests):
            drafted = num_drafts if drafts is None else of_row(drafts, request)
            obey(given, request, drafted, min(of_row(accepted, request), drafted))
    return given


def obey(given, request, drafted, accepted):
    """Change a request's arguments so that this many of its drafts stay: its first rejection is sure, but not by much.

    A chance that decides is set to 5/4 or 4/5 of what it is compared with. Under a filter it cannot be: there the
    draft becomes the best token, or the last one, which the filter leaves out.
    """
    given["draft_tokens"][request, drafted:] = -1
    for position in range(min(accepted + 1, drafted)):
        stays = position < accepted
        uniform, _ = verification_uniforms(given["seeds"][request], given["steps"][request] + position)
        if given["acceptance_rates"] is not None:
            given["acceptance_rates"][request, position] = (1 + uniform) / 2 if stays else uniform / 2
            continue
        token, logits = given["draft_tokens"][request, position], given["target_logits"][request, position]
        logits[token] = -torch.inf  # what follows is about the others
        heat = float(given["temperature"][request])
        if heat == 0:
            logits[token] = logits.amax() + (1 if stays else -1)
        elif any(given[name] is not None for name in ("top_k", "top_p", "min_p")):
            others = logits[logits.isfinite()]
            logits[token] = others.amax() + 20 * heat if stays else others.amin() - 1
            if not stays and given["draft_probs"] is not None:  # accepted if it were not for the filter
                given["draft_probs"][request, position, token] = 0.0
        else:
            probs = given["draft_probs"]
            reach = float(uniform) * (1.0 if probs is None else float(probs[request, position, token]))
            chance = min(1.25 * reach, (1 + reach) / 2) if stays else 0.8 * reach
            odds = torch.tensor(chance / (1 - chance), dtype=torch.float64).log()
            logits[token] = heat * ((logits.double() / heat).logsumexp(dim=0) + odds)


def expected(
    draft_tokens,
    target_logits,
    temperature,
    seeds,
    steps,
    draft_probs=None,
    top_k=None,
    top_p=None,
    min_p=None,
    acceptance_rates=None,
):
    """Tokens and accepted drafts in float64 of the requests where rounding to fp32 cannot give others."""
    num_requests, positions, _ = target_logits.shape
    tokens, accepted, certain = [], [], []
    for request in range(num_requests):
        heat, *limits = row_parameters(request, temperature, top_k, top_p, min_p)
        given, clear = [], True
        for position in range(positions):
            uniforms = verification_uniforms(seeds[request], steps[request] + position)
            accept_with, draw_with = (float(uniform) for uniform in uniforms)
            place = Place(target_logits[request, position], heat, limits)
            draft = int(draft_tokens[request, position]) if position < positions - 1 else -1
            if draft >= 0 and acceptance_rates is not None:
                stays = accept_with < float(acceptance_rates[request, position])
                proposal = None
            elif draft >= 0:
                proposal = draft_chances(
                    draft, place.vocab, None if draft_probs is None else draft_probs[request, position]
                )
                proposal = proposal.to(place.chances)
                stays, sure = place.stays(draft, float(proposal[draft]), accept_with)
                clear &= sure
            if draft >= 0 and stays:
                given.append(draft)
                continue
            added, sure = place.added(None if draft < 0 else proposal, draw_with)
            clear &= sure
            break
        accepted.append(len(given))
        tokens.append(given + [added] + [-1] * (positions - 1 - len(given)))
        certain.append(clear)
    device = target_logits.device
    tokens = torch.tensor(tokens, dtype=torch.int64, device=device).view(num_requests, positions)
    certain = torch.tensor(certain, dtype=torch.bool, device=device)
    accepted = torch.tensor(accepted, dtype=torch.int32, device=device)
    return Expected(tokens, where=certain[:, None].expand(tokens.shape)), Expected(accepted, where=certain)


class Place:
    """The target at one position in float64. chances: [V], of all tokens that may be kept. doubtful: the share of those
    that rounding may leave out.
    """

    def __init__(self, logits, temperature, limits):
        self.values = without_nan(logits.double())
        self.vocab, self.is_greedy = len(logits), temperature < TINY
        if self.is_greedy:
            self.chances = torch.zeros_like(self.values)
            return
        self.surely, perhaps, weights = kept_sets(self.values, 0.0, temperature, *limits)
        weights = weights * perhaps
        self.chances = weights / weights.sum() if weights.any() else weights
        self.doubtful = float((self.chances * ~self.surely).sum())

    def stays(self, draft, proposal, uniform):
        """(whether a draft is accepted, whether that is certain)."""
        if self.is_greedy:
            return draft == best(self.values), True
        chance, reach = float(self.chances[draft]), uniform * proposal
        error = chance * (4 * SUM_ERROR + 2 * self.doubtful)
        certain = bool(self.surely[draft]) or chance == 0
        return reach < chance, certain and (chance == 0 or abs(reach - chance) > error)

    def added(self, proposal, uniform):
        """(the token that is added, whether that is certain); proposal: of a rejected draft, else None."""
        if self.is_greedy:
            return best(self.values), True
        left = self.chances if proposal is None else (self.chances - proposal).clamp(min=0)
        if not left.any():
            return best(self.values), not self.chances.any()
        error = 4 * SUM_ERROR + 2 * self.doubtful
        token, clear = clear_draw(left, uniform, error)
        return token, clear and bool(self.surely[token]) and float(left.sum()) > 100 * error


def eager(
    draft_tokens,
    target_logits,
    temperature,
    seeds,
    steps,
    draft_probs=None,
    top_k=None,
    top_p=None,
    min_p=None,
    acceptance_rates=None,
):
    """What transformers' `_speculative_sampling` does for one request, for all of them: softmax of every row, ratios
    of the drafts, the first rejection, the clipped difference, a draw by its running sum.
    """
    _, positions, vocab = target_logits.shape
    device = target_logits.device
    scores = target_logits.float()
    greedy = (temperature == 0)[:, None]
    best_tokens = scores.argmax(dim=-1)
    scores = scores / torch.where(temperature > 0, temperature, 1.0)[:, None, None]
    if top_k is not None or top_p is not None:
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        if top_k is not None:
            limits = torch.where(top_k > 0, top_k, vocab)[:, None, None]
            ordered = ordered.masked_fill(torch.arange(vocab, device=device) >= limits, -torch.inf)
        if top_p is not None:
            chances = ordered.softmax(dim=-1)
            left_out = (chances.cumsum(dim=-1) - chances >= top_p[:, None, None]) & (top_p < 1)[:, None, None]
            left_out[..., 0] = False
            ordered = ordered.masked_fill(left_out, -torch.inf)
        scores = torch.empty_like(scores).scatter_(-1, order, ordered)
    chances = scores.softmax(dim=-1)
    if min_p is not None:
        least = min_p[:, None, None] * chances.amax(dim=-1, keepdim=True)
        chances = scores.masked_fill(chances < least, -torch.inf).softmax(dim=-1)

    places = torch.arange(positions, device=device)
    accept_with, draw_with = verification_uniforms(seeds[:, None], steps[:, None] + places)
    drafted, token = draft_tokens >= 0, draft_tokens.clamp(min=0)[..., None]
    if acceptance_rates is not None:
        stays = accept_with[:, :-1] < acceptance_rates
    else:
        of_target = chances[:, :-1].gather(-1, token)[..., 0]
        drawn_with = 1.0 if draft_probs is None else draft_probs.gather(-1, token)[..., 0].double()
        stays = torch.where(greedy, draft_tokens == best_tokens[:, :-1], accept_with[:, :-1] * drawn_with < of_target)
    accepted = (stays & drafted).cumprod(dim=1).sum(dim=1, keepdim=True)
    row = chances.gather(1, accepted[..., None].expand(-1, 1, vocab))[:, 0]
    if acceptance_rates is None and positions > 1:
        at = accepted.clamp(max=positions - 2)
        rejected = (accepted < drafted.sum(dim=1, keepdim=True)).float()
        if draft_probs is None:
            taken = torch.zeros_like(row).scatter_(1, token[..., 0].gather(1, at), torch.inf)
        else:
            taken = draft_probs.gather(1, at[..., None].expand(-1, 1, vocab))[:, 0].float()
        row = (row - torch.where(rejected > 0, taken, 0.0)).clamp(min=0)
    running = row.cumsum(dim=-1)
    target = draw_with.gather(1, accepted).to(running.dtype) * running[:, -1:]
    last = torch.searchsorted(running, running[:, -1:].contiguous())
    added = torch.minimum(torch.searchsorted(running, target, right=True), last)
    added = torch.where(greedy, best_tokens.gather(1, accepted), added)
    padded = torch.nn.functional.pad(draft_tokens, (0, 1), value=-1)
    tokens = torch.where(places < accepted, padded, torch.where(places == accepted, added, -1))
    return tokens, accepted[:, 0].int()


SUBJECT = Subject("verification", verification, FORMS, spec, make, expected, baselines={"eager": eager})
