"""The draft model against a form without a cache: its drafts, its rollback, its blocks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_engine import VOCABULARY, prompt_of, tiny_model

from wholecurve.engine.sampling import RequestSampling, Sampler, SampleRow, SamplingParams
from wholecurve.engine.scoring import continuation_logits
from wholecurve.engine.sequence import Sequence
from wholecurve.engine.speculation.draft_model import DraftModelProposer
from wholecurve.errors import UserError
from wholecurve.models.batch import KVSpec


def sequence_of(name, prompt, **params):
    sequence = Sequence(name, list(prompt), SamplingParams(**params))
    sequence.sampling = RequestSampling(sequence.params, sequence.prompt_ids, VOCABULARY)
    return sequence


def extend(sequence, tokens):
    sequence.token_ids += tokens
    sequence.sampling.commit(tokens)


def naive_drafts(model, sequence, limit, sampled=True):
    """Every draft from a forward pass over everything before it."""
    drafts = []
    for _ in range(limit):
        logits = continuation_logits(model, sequence.token_ids + drafts, [0])
        if sampled:
            row = SampleRow(sequence.sampling, sequence.num_sampled + len(drafts), drafts)
            drafts.append(int(Sampler(VOCABULARY, "cpu").sample(logits, [row]).tokens))
        else:
            drafts.append(int(logits.argmax()))
    return drafts


def check_blocks(proposer):
    """Every block is free or of one sequence, and holds what is counted as computed."""
    states = list(proposer._states.values())
    proposer.blocks.pool.check_integrity([state.blocks for state in states], {})
    for state in states:
        assert 0 <= state.computed + len(state.guesses) <= len(state.blocks) * proposer.block_size
        assert state.computed <= len(state.sequence.token_ids)


PARAMS = [
    {},
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.7, "top_p": 0.8, "seed": 12, "presence_penalty": 0.9, "repetition_penalty": 1.3},
    {"temperature": 1.5, "top_k": 5, "seed": 13, "logit_bias": {3: 2.0}, "min_new_tokens": 9, "stop_token_ids": (3,)},
]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    most=st.integers(1, 5),
    block_size=st.sampled_from([1, 4, 16]),
    sampled=st.booleans(),
    data=st.data(),
)
def test_drafts_are_those_of_a_model_without_a_cache(lengths, most, block_size, sampled, data):
    """Over steps that accept some drafts, reject others, leave sequences out, forget them or bring new ones."""
    model = tiny_model(seed=1)
    proposer = DraftModelProposer(
        model, most, vocab_size=VOCABULARY, cache_tokens=400, block_size=block_size, sampled=sampled
    )
    sequences = [sequence_of(f"r{i}", prompt_of(n, i), **PARAMS[i % 4]) for i, n in enumerate(lengths)]
    for step in range(4):
        asked = [s for s in sequences if data.draw(st.integers(0, 4))]
        limits = [data.draw(st.integers(0, most + 1)) for _ in asked]
        drafts = proposer.propose(asked, limits)
        expected = [naive_drafts(model, s, min(limit, most), sampled) for s, limit in zip(asked, limits)]
        assert drafts == expected
        check_blocks(proposer)
        for sequence, own in zip(asked, drafts):
            kept = data.draw(st.integers(0, len(own)))
            extend(sequence, [*own[:kept], *prompt_of(data.draw(st.integers(1, 2)), 7 * step + kept)])
        for i, sequence in enumerate(sequences):
            if not data.draw(st.integers(0, 5)):
                proposer.forget(sequence)
                sequences[i] = sequence_of(f"r{i}", prompt_of(3 + step, 50 + i), **PARAMS[step])
        check_blocks(proposer)
    for sequence in sequences:
        proposer.forget(sequence)
    assert proposer.blocks.pool.num_free == proposer.blocks.pool.num_blocks and not proposer._states


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    cache_tokens=st.integers(4, 60),
    budget=st.integers(1, 9),
)
def test_a_small_cache_and_a_small_budget_give_right_drafts_or_none(lengths, cache_tokens, budget):
    model = tiny_model(seed=1)
    proposer = DraftModelProposer(
        model, 3, vocab_size=VOCABULARY, cache_tokens=cache_tokens, block_size=4, max_batch_tokens=budget
    )
    sequences = [sequence_of(f"r{i}", prompt_of(n, i)) for i, n in enumerate(lengths)]
    for step in range(8):
        for sequence, drafts in zip(sequences, proposer.propose(sequences, [3] * len(sequences))):
            assert drafts == naive_drafts(model, sequence, 3)[: len(drafts)]
            extend(sequence, [*drafts[: step % 3], step])
        check_blocks(proposer)
    for sequence in sequences:
        proposer.forget(sequence)
    assert proposer.blocks.pool.num_free == proposer.blocks.pool.num_blocks


def counted(model):
    """Batches that the model is run with from now on, as (tokens, sequences, decode rows)."""
    batches = []

    class Counting:
        def __getattr__(self, name):
            return getattr(model, name)

        def __call__(self, batch, caches):
            batches.append((len(batch.token_ids), len(batch.context_lens), batch.num_decodes))
            return model(batch, caches)

    return Counting(), batches


def test_a_forward_pass_per_draft_and_only_what_is_new():
    model, batches = counted(tiny_model(seed=1))
    proposer = DraftModelProposer(model, 3, vocab_size=VOCABULARY)
    sequences = [sequence_of("a", prompt_of(9, 0)), sequence_of("b", prompt_of(5, 1))]
    first, second = proposer.propose(sequences, [3, 2])
    assert batches == [(14, 2, 0), (2, 2, 2), (1, 1, 1)]
    extend(sequences[0], [*first, 4])  # all accepted: the last draft and the token after it are new
    extend(sequences[1], [1 - min(second[0], 1)])  # none accepted
    batches.clear()
    proposer.propose(sequences, [3, 3])
    assert batches == [(3, 2, 1), (2, 2, 2), (2, 2, 2)]
    batches.clear()
    assert proposer.propose(sequences, [0, 0]) == [[], []] and batches == []
    assert proposer.propose([], []) == [] and batches == []


def test_catching_up_is_spread_over_steps():
    model, batches = counted(tiny_model(seed=1))
    proposer = DraftModelProposer(model, 2, vocab_size=VOCABULARY, max_batch_tokens=10)
    sequences = [sequence_of("a", prompt_of(17, 0)), sequence_of("b", prompt_of(6, 1))]
    assert proposer.propose(sequences, [2, 2]) == [[], []]
    assert batches == [(10, 1, 0)]
    drafts = proposer.propose(sequences, [2, 2])
    assert [len(own) for own in drafts] == [2, 0]
    assert batches[1:] == [(10, 2, 0), (1, 1, 1)]
    assert proposer.propose(sequences, [2, 2]) == [naive_drafts(model, s, 2) for s in sequences]


def test_who_does_not_fit_gets_no_drafts_and_keeps_no_block():
    proposer = DraftModelProposer(tiny_model(seed=1), 4, vocab_size=VOCABULARY, cache_tokens=20, block_size=4)
    old, new = sequence_of("old", prompt_of(14, 0)), sequence_of("new", prompt_of(5, 1))
    assert [len(d) for d in proposer.propose([old, new], [4, 4])] == [4, 0]
    assert "new" not in [s.sequence.request_id for s in proposer._states.values() if s.blocks]
    extend(old, [1, 2, 3, 4])  # 18 tokens: three drafts fit into 20 places, as the last one is not stored
    assert [len(d) for d in proposer.propose([old, new], [4, 4])] == [3, 0]
    extend(old, [1, 2, 3])
    assert [len(d) for d in proposer.propose([old, new], [4, 4])] == [0, 4]
    assert len(proposer._states["new"].blocks) == 2 and not proposer._states["old"].blocks
    check_blocks(proposer)


def test_a_new_sequence_under_an_old_name_starts_anew():
    model = tiny_model(seed=1)
    proposer = DraftModelProposer(model, 2, vocab_size=VOCABULARY, block_size=4)
    for length in (9, 14, 5):
        sequence = sequence_of("a", prompt_of(length, length))
        assert proposer.propose([sequence], [2]) == [naive_drafts(model, sequence, 2)]
        check_blocks(proposer)


def test_no_draft_lies_beyond_the_last_position():
    model = tiny_model(seed=1, max_position=12)
    proposer = DraftModelProposer(model, 5, vocab_size=VOCABULARY)
    for length, count in ((8, 5), (9, 4), (12, 1), (13, 0)):
        sequence = sequence_of(f"r{length}", prompt_of(length, 0))
        (drafts,) = proposer.propose([sequence], [9])
        assert len(drafts) == count
        if length < 12:
            assert drafts == naive_drafts(tiny_model(seed=1), sequence, count)


def test_a_row_with_nothing_to_choose_ends_the_drafts():
    model = tiny_model(seed=1)

    class Broken:
        def __getattr__(self, name):
            return getattr(model, name)

        def __call__(self, batch, caches):
            logits = model(batch, caches)
            logits[batch.positions[batch.logits_rows] >= 6] = torch.nan
            return logits

    proposer = DraftModelProposer(Broken(), 4, vocab_size=VOCABULARY)
    drafts = proposer.propose([sequence_of("a", prompt_of(5, 0)), sequence_of("b", prompt_of(7, 0))], [4, 4])
    assert [len(own) for own in drafts] == [2, 0]


@pytest.mark.parametrize("option", ["max_drafts", "cache_tokens", "block_size", "max_batch_tokens"])
def test_sizes_of_nothing_are_refused(option):
    options = {"max_drafts": 2, "vocab_size": VOCABULARY, option: 0}
    with pytest.raises(UserError, match=rf"{option.replace('max_drafts', 'with')} 0.*must be at least 1"):
        DraftModelProposer(tiny_model(), **options)


def test_another_vocabulary_is_refused():
    with pytest.raises(UserError, match=r"vocabulary has 61 tokens, the target's 60; they must be the same"):
        DraftModelProposer(tiny_model(), 2, vocab_size=60)


def test_caches_that_cannot_be_rolled_back_are_refused():
    class Windowed:
        config = tiny_model().config
        cache_specs = (KVSpec(1, 2, 8), KVSpec(1, 2, 8, window=16))

    with pytest.raises(UserError, match="caches of kind full, window; only one of kind full"):
        DraftModelProposer(Windowed(), 2, vocab_size=VOCABULARY)
