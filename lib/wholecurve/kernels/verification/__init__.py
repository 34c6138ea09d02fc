"""Speculative verification: which drafted tokens stay, and the one token that follows them."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.sampling import check_logits, check_rows
from wholecurve.kernels.verification.cpu import verification_cpu
from wholecurve.kernels.verification.reference import verification_reference

FORMS = ("reference", "cpu", "triton", "interpret")


def form_for(device):
    """Name of the form that `verification` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def verification(
    draft_tokens,
    target_logits,
    temperature,
    seeds,
    steps,
    form=None,
    *,
    draft_probs=None,
    top_k=None,
    top_p=None,
    min_p=None,
    acceptance_rates=None,
):
    """Accept a beginning of each request's drafted tokens and add one token of the target model.

    draft_tokens: [B, K] int64, K ≥ 0, contiguous; a request that drafted fewer has −1 after its last one.
    target_logits: [B, K + 1, V], bfloat16, float16 or float32 (float64 but for the Triton form): row i is what follows
    the first i drafted tokens. B and K + 1 must lie like one dimension, the last one be contiguous. Rows that follow
    an absent draft may hold anything.
    temperature, top_k, top_p, min_p: [B] as in `sampling`; they make the target's chances p from every row of logits,
    the last one too. seeds, steps: [B] int64; steps[b] numbers the first token that this call gives. The numbers in
    [0, 1) for the token at position i depend on (seeds[b], steps[b] + i) alone, and are independent of those that
    `sampling` draws with at the same seeds and steps: a draft model may use it.

    draft_probs: [B, K, V] of floats, last dimension contiguous: the chances q that the drafted tokens were drawn with,
    filters and temperature included. None for drafts that were not drawn (n-gram, greedy): q is 1 at the draft.

    Temperature 0: a draft stays while it is the target's best token (the lowest id of equal ones); the next token is
    the best one. Else (Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, algorithm 1) a draft x stays when
    u · q(x) < p(x); in place of the first that does not, a token is drawn from max(p − q, 0); when all stay, one is
    drawn from p. The tokens are then distributed as the target's own. A draft with p(x) = 0 never stays, also where
    q(x) = 0 or u = 0, and one with p(x) ≥ q(x) > 0 always does.
    acceptance_rates: [B, K] float32: synthetic acceptance. A draft stays when u is less than its rate, whatever the
    logits say, so the rates are conditional ones (`acceptance.py`), and the pattern depends on seeds and steps alone.
    The next token is the target's: the best one, or drawn from p.

    Returns (tokens [B, K + 1] int64, num_accepted [B] int32): the drafts that stay, then the added token, then −1. No
    input is written. A row of logits that has nothing to choose gives −1 as added token.
    ValueError for shapes or dtypes outside this contract and, on a CPU, for parameters out of range; IndexError on a
    CPU for a drafted token that is not in the vocabulary, which on a GPU never stays.
    """
    check_logits("verification", target_logits, 3, "target_logits")
    check_drafts(draft_tokens, target_logits, draft_probs, acceptance_rates)
    check_rows("verification", len(draft_tokens), temperature, seeds, steps, top_k, top_p, min_p)
    options = dict(draft_probs=draft_probs, top_k=top_k, top_p=top_p, min_p=min_p, acceptance_rates=acceptance_rates)
    chosen = forms.choose_form(form, target_logits.device, FORMS)
    if chosen == "reference":
        return verification_reference(draft_tokens, target_logits, temperature, seeds, steps, **options)
    if chosen == "cpu":
        return verification_cpu(draft_tokens, target_logits, temperature, seeds, steps, **options)
    from wholecurve.kernels.verification.kernel import verification_triton

    interpreted = chosen == "interpret"
    return verification_triton(
        draft_tokens, target_logits, temperature, seeds, steps, **options, interpreted=interpreted
    )


def check_drafts(draft_tokens, target_logits, draft_probs, acceptance_rates):
    """ValueError for drafts that do not fit the logits; IndexError on a CPU for tokens beyond the vocabulary."""
    num_requests, positions, vocab = target_logits.shape
    wanted = (num_requests, positions - 1)
    if draft_tokens.shape != wanted or draft_tokens.dtype != torch.int64 or not draft_tokens.is_contiguous():
        given = f"{tuple(draft_tokens.shape)} {draft_tokens.dtype}"
        raise ValueError(f"verification: draft_tokens must be {wanted}, contiguous, torch.int64; they are {given}")
    stride = target_logits.stride()
    if num_requests > 1 and positions > 1 and stride[0] != positions * stride[1]:
        raise ValueError(f"verification: requests and positions of target_logits must lie evenly, strides are {stride}")
    if draft_probs is not None:
        if draft_probs.shape != (*wanted, vocab) or not draft_probs.dtype.is_floating_point:
            given = f"{tuple(draft_probs.shape)} {draft_probs.dtype}"
            raise ValueError(f"verification: draft_probs must be {(*wanted, vocab)} of floats, they are {given}")
        if draft_probs.stride(-1) != 1 and vocab > 1:
            raise ValueError("verification: last dimension of draft_probs is strided")
    if acceptance_rates is not None:
        given = f"{tuple(acceptance_rates.shape)} {acceptance_rates.dtype}"
        fits = acceptance_rates.shape == wanted and acceptance_rates.dtype == torch.float32
        if not fits or (wanted[1] > 1 and acceptance_rates.stride(1) != 1):
            raise ValueError(f"verification: acceptance_rates must be {wanted} torch.float32 rows, they are {given}")
        if draft_probs is not None:
            raise ValueError("verification: acceptance_rates leave draft_probs no meaning, give one of the two")
    if draft_tokens.device.type == "cpu" and draft_tokens.numel() and int(draft_tokens.max()) >= vocab:
        raise IndexError(f"verification: drafted token {int(draft_tokens.max())} in a vocabulary of {vocab}")
