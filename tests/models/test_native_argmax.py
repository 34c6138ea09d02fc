"""The largest logit on the way: the lowest id of equal ones, whatever the threads, without the logits too."""

from dataclasses import replace

import pytest
import torch
from native_models import DTYPES, PagedSequences, lowest_of_largest, needs_native, streams, tiny

from wholecurve.models.native import build_native_llama

pytestmark = needs_native
VOCABULARY = 8 * 32 + 5  # eight whole panels of the head, and one that is not
HIDDEN = tiny("narrow")[0].hidden_size


def model_with_head(head, dtype, threads=1, norm=None):
    """The narrow model with a head [vocabulary, hidden], and another weight of the norm before it."""
    config, weights = tiny("narrow")
    embedding = weights["model.embed_tokens.weight"].repeat(3, 1)[: len(head)]
    changed = {"lm_head.weight": head, "model.embed_tokens.weight": embedding}
    if norm is not None:
        changed["model.norm.weight"] = norm
    return build_native_llama(replace(config, vocab_size=len(head)), weights | changed, dtype, threads)


def answers(model, rows="all", count=9):
    """(logits, argmax with logits, argmax without) of a prompt."""
    tokens = [token % 64 for token in streams("narrow")[0][:count]]
    logits, found = None, []
    for argmax_only in (False, True):
        paged = PagedSequences(model)
        batch = paged.batch([(0, 0, tokens)], rows)
        batch.argmax_only = argmax_only
        result = model(batch, [paged.cache])
        logits = logits if result is None else result
        assert (result is None) == argmax_only
        found.append(batch.argmax)
    return logits, *found


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_lowest_id_of_equal_logits_wins(dtype, threads):
    """Rows repeat at distances within a vector, a panel, a thread's share and between shares."""
    generator = torch.Generator().manual_seed(0)
    for different in (1, 2, 5, 16, 17, 32, 33, 100, 130, VOCABULARY):
        head = torch.randn(different, HIDDEN, generator=generator).repeat(VOCABULARY, 1)[:VOCABULARY]
        logits, argmax, without_logits = answers(model_with_head(head, dtype, threads))
        assert argmax.max() < different
        assert torch.equal(argmax, lowest_of_largest(logits)) and torch.equal(without_logits, argmax)
        assert torch.equal(argmax, logits.argmax(dim=1))


@pytest.mark.parametrize("place", [0, 15, 16, 31, 32, 63, 255, 256, 260])
def test_the_largest_is_found_wherever_it_is(place):
    """All logits are below 0, and so below those of the padding of the last panel."""
    head, norm = torch.zeros(VOCABULARY, HIDDEN), torch.zeros(HIDDEN)
    head[:, 0], head[place, 0], norm[0] = 1.0, 0.5, 1.0
    for threads in (1, 2):
        logits, argmax, without_logits = answers(model_with_head(head, torch.float32, threads, norm), count=40)
        below = logits[:, place] < 0
        assert 5 < below.sum() < 40 and (argmax[below] == place).all()
        assert torch.equal(argmax, lowest_of_largest(logits)) and torch.equal(without_logits, argmax)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinite_logits(dtype):
    """-inf is never chosen, where there is nothing else the answer is -1; of several +inf the first is."""
    head, norm = torch.zeros(VOCABULARY, HIDDEN), torch.zeros(HIDDEN)
    norm[0] = 1000.0
    for places in ([0, 1, 2, 260], [40, 90, 260], [33, 34], range(VOCABULARY)):
        head[:] = 0.0
        head[places, 0] = 3e38  # times the norm's weight overflows
        for threads in (1, 2):
            logits, argmax, without_logits = answers(model_with_head(head, dtype, threads, norm), count=40)
            up, down = logits[:, places[0]] == torch.inf, logits[:, places[0]] == -torch.inf
            assert up.sum() > 5 and down.sum() > 5 and not logits.isnan().any()
            first_finite = next((i for i in range(VOCABULARY) if i not in places), -1)
            assert (argmax[up] == places[0]).all() and (argmax[down] == first_finite).all()
            assert torch.equal(argmax, lowest_of_largest(logits)) and torch.equal(without_logits, argmax)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_is_never_chosen_and_hides_nothing(dtype):
    """As in the sampler: a damaged row of the head leaves the largest of the others; NaN alone gives -1."""
    generator = torch.Generator().manual_seed(0)
    for share in (0.05, 0.5, 0.9, 1.0):
        head = torch.randn(VOCABULARY, HIDDEN, generator=generator)
        damaged = torch.rand(VOCABULARY, generator=generator) < share
        head[damaged] = torch.nan
        logits, argmax, without_logits = answers(model_with_head(head, dtype, 2), count=40)
        assert torch.equal(logits.isnan(), damaged.expand(40, -1)) and torch.equal(without_logits, argmax)
        assert torch.equal(argmax, lowest_of_largest(logits.nan_to_num(-torch.inf)))


def test_no_rows():
    model = model_with_head(torch.ones(VOCABULARY, HIDDEN), torch.float32, 2)
    for count in (9, 100):
        logits, argmax, without_logits = answers(model, rows=[], count=count)
        assert logits.shape == (0, VOCABULARY) and argmax.shape == without_logits.shape == (0,)
