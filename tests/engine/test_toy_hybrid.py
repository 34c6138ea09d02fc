"""Models with caches of several kinds through everything at once: the answers are those of a run without any cache."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_engine import is_idle
from toy_hybrid import (
    FULL,
    HYBRID,
    LATENT,
    STATE,
    ScriptedProposer,
    ToyModel,
    history_of,
    plain_numbers,
    plain_tokens,
    toy_greedy,
    toy_prompt,
    window_of,
)

from wholecurve.engine import Engine
from wholecurve.errors import UserError

FAMILIES = {
    "full": (FULL,),
    "window and full": (window_of(5), FULL),
    "windows of two sizes": (window_of(3), window_of(11), FULL),
    "state alone": (STATE,),
    "two states and full": (STATE, FULL, STATE),
    "latent and history": (LATENT, history_of(3)),
    "everything": HYBRID,
}


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_engine_gives_the_tokens_of_a_plain_run(name, data):
    specs = FAMILIES[name]
    draw = data.draw
    beginning = toy_prompt(draw(st.integers(0, 20)), 77)
    requests = {}
    for i in range(draw(st.integers(1, 6))):
        prompt = [*beginning[: draw(st.integers(0, 20))], *toy_prompt(draw(st.integers(1, 20)), i)]
        requests[f"r{i}"] = (draw(st.integers(0, 6)), prompt, toy_greedy(draw(st.integers(1, 12)), ignore_eos=False))
    texts = {name: (p, plain_tokens(specs, tuple(p), params)) for name, (_, p, params) in requests.items()}
    max_drafts = draw(st.integers(0, 4))
    engine = Engine(
        ToyModel(specs),
        check=True,
        block_size=draw(st.sampled_from([1, 3, 4, 8, tuple((2, 4, 6, 3)[i % 4] for i in range(len(specs)))])),
        cache_tokens=draw(st.integers(52, 140)),
        max_batch_tokens=draw(st.integers(1, 40)),
        max_sequences=draw(st.integers(1, 5)),
        prefix_cache=draw(st.booleans()),
        overlap=not max_drafts and draw(st.booleans()),
        speculation=ScriptedProposer(texts, max_drafts) if max_drafts else None,
    )
    for _ in range(2):
        tokens, steps, waiting = {name: [] for name in requests}, 0, sorted(requests.items(), key=lambda r: r[1][0])
        while waiting or engine.has_unfinished:
            while waiting and waiting[0][1][0] <= steps:
                request, (_, prompt, params) = waiting.pop(0)
                engine.add(request, prompt, params)
            for output in engine.step():
                tokens[output.request_id] += output.token_ids
            steps += 1
            assert steps < 2000, "the engine spins"
        assert tokens == {name: text for name, (_, text) in texts.items()}
        assert is_idle(engine)


def test_the_toy_looks_at_everything():
    """Each group makes a difference, and a change of any token of a context changes what follows."""
    prompt = tuple(toy_prompt(30, 1))
    seen = {plain_numbers(specs, prompt)[0][-1] for specs in FAMILIES.values()}
    assert len(seen) == len(FAMILIES)
    for specs in (FULL,), (STATE,), HYBRID:
        for place in range(30):
            changed = (*prompt[:place], (prompt[place] + 1) % 29, *prompt[place + 1 :])
            assert plain_numbers(specs, changed)[0][-1] != plain_numbers(specs, prompt)[0][-1]


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_window_holds_no_more_than_it_needs(prefix_cache):
    """A text of 200 tokens with a window of 10: its other blocks are free, or cached."""
    engine = Engine(
        ToyModel((window_of(10),)), cache_tokens=256, block_size=4, max_sequences=2, max_batch_tokens=16,
        prefix_cache=prefix_cache, check=True,
    )  # fmt: skip
    if not prefix_cache:
        # two windows of up to 4 blocks, one more block each, and the tokens of a step
        assert engine.stats().blocks_total == 2 * 5 + 4
    engine.add("r", toy_prompt(40, 1), toy_greedy(160))
    most = 0
    while engine.has_unfinished:
        engine.step()
        most = max(most, engine.stats().blocks_used)
    assert most <= 3 + 16 // 4 + 1
    assert is_idle(engine)


def test_a_state_has_a_slot_per_draft_and_one_for_itself():
    proposer = ScriptedProposer({}, 3)
    engine = Engine(ToyModel((STATE,)), max_sequences=5, speculation=proposer)
    assert engine.stats().blocks_total == 5 * 4
    engine = Engine(ToyModel((STATE,)), max_sequences=5, prefix_cache=True)
    assert engine.stats().blocks_total == 5 + 5
    prompt = toy_prompt(9, 1)
    engine.add("r", prompt, toy_greedy(2))
    engine.step()
    assert engine.stats().blocks_used == 1


@pytest.mark.parametrize("block_size", [(4, 4), (), (4, 4, 4, 0), (4, 4, 4, 4, 4)])
def test_block_sizes_that_do_not_fit_the_groups(block_size):
    with pytest.raises(UserError, match=r"block size|both must be at least 1"):
        Engine(ToyModel(HYBRID), block_size=block_size)
