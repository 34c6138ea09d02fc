"""Bugs that other engines had, as scenarios for this one: small caches, and answers that must be of a plain run."""

import pytest
from tiny_engine import is_idle
from toy_hybrid import (
    FULL,
    HYBRID,
    LATENT,
    STATE,
    ScriptedProposer,
    ToyModel,
    history_of,
    mix,
    plain_tokens,
    toy_greedy,
    toy_prompt,
    window_of,
)

from wholecurve.engine import Engine
from wholecurve.errors import UserError


def toy_engine(specs=(FULL,), **options):
    sizes = {"cache_tokens": 64, "block_size": 4, "max_batch_tokens": 16, "max_sequences": 4}
    return Engine(ToyModel(specs), check=True, **{"prefix_cache": True, **sizes, **options})


def run_all(engine, requests, on_step=None):
    """Run {name: (prompt, params)} together; every answer must be that of the plain run. Returns the steps it took."""
    tokens, steps = {name: [] for name in requests}, 0
    for name, (prompt, params) in requests.items():
        engine.add(name, prompt, params)
    while engine.has_unfinished:
        outputs = engine.step()
        for output in outputs:
            tokens[output.request_id] += output.token_ids
        steps += 1
        assert steps < 2000, "the engine spins"
        if on_step:
            on_step(engine)
    for name, (prompt, params) in requests.items():
        assert tokens[name] == plain_tokens(engine.model.cache_specs, tuple(prompt), params), name
    assert is_idle(engine)
    return steps


@pytest.mark.parametrize("specs", [(FULL,), (FULL, window_of(6)), HYBRID], ids=["full", "window", "hybrid"])
@pytest.mark.parametrize("overlap", [False, True])
def test_sixteen_requests_with_one_beginning_in_a_tiny_pool(specs, overlap):
    """Preempted texts leave blocks behind that they find again, as long as nobody has taken them."""
    engine = toy_engine(specs, cache_tokens=64, max_sequences=16, overlap=overlap)
    beginning = toy_prompt(17, 1)
    requests = {f"r{i}": ([*beginning, *toy_prompt(i % 5, i)], toy_greedy(10 + i % 7)) for i in range(16)}
    run_all(engine, requests)
    stats = engine.stats()
    assert stats.preemptions > 3 and stats.prefix_hit_tokens > 0
    prompt_tokens = sum(len(prompt) for prompt, _ in requests.values())
    assert stats.prompt_tokens == stats.prefix_queried_tokens == prompt_tokens, "a preempted prompt counts once"
    assert stats.prefix_hit_tokens < prompt_tokens


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_text_that_is_preempted_one_token_into_a_block(k, prefix_cache):
    """At block_size * k + 1 tokens the last block has one token, which must not be lost when all is computed again."""
    engine = toy_engine(cache_tokens=80, prefix_cache=prefix_cache)
    prompt, params = toy_prompt(4, 1), toy_greedy(12)
    engine.add("r", prompt, params)
    tokens = []
    while len(prompt) + len(tokens) < 4 * k + 1:
        tokens += [token for output in engine.step() for token in output.token_ids]
    (sequence,) = engine.scheduler.running
    engine.scheduler._preempt(sequence)
    engine.scheduler.check_integrity()
    assert sequence.token_ids == [*prompt, *tokens] and sequence.num_computed == 0
    while engine.has_unfinished:
        tokens += [token for output in engine.step() for token in output.token_ids]
    assert tokens == plain_tokens((FULL,), tuple(prompt), params)
    assert sequence.num_preemptions == 1 and is_idle(engine)


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("block_size", [4, 8])
@pytest.mark.parametrize("new_tokens", [1, 2, 5])
def test_a_prompt_as_long_as_a_block_in_a_pool_that_just_holds_it(length, block_size, new_tokens):
    engine = toy_engine(cache_tokens=length + new_tokens - 1, block_size=block_size)
    for _ in range(3):
        run_all(engine, {"r": (toy_prompt(length, 1), toy_greedy(new_tokens))})


@pytest.mark.parametrize("overlap", [False, True])
def test_prompts_of_one_block_that_are_preempted_while_they_ask_for_the_next(overlap):
    """The block that one gives up goes to another in the same step: no row of a table may keep an old number."""
    engine = toy_engine(cache_tokens=20, max_sequences=5, overlap=overlap, prefix_cache=False)
    run_all(engine, {f"r{i}": (toy_prompt(4, i), toy_greedy(9)) for i in range(5)})
    assert engine.stats().preemptions > 0


def test_a_request_that_can_never_fit_is_refused_at_once_and_the_others_go_on():
    engine = toy_engine(cache_tokens=16)
    engine.add("fits", toy_prompt(8, 1), toy_greedy(9))
    for prompt_tokens, new_tokens in ((17, 1), (8, 10), (1, 17)):
        with pytest.raises(UserError, match=r"request big: .* need 5 cache blocks of 4 tokens, the cache has 4"):
            engine.add("big", toy_prompt(prompt_tokens, 1), toy_greedy(new_tokens))
    while engine.has_unfinished:
        assert engine.step()
    run_all(engine, {"big": (toy_prompt(16, 1), toy_greedy(1))})


def test_one_beginning_inserted_by_two_at_the_same_time():
    """Each has computed the beginning in blocks of its own; those of the second must not be freed under its feet."""
    engine = toy_engine(cache_tokens=96, max_batch_tokens=64)
    prompt = toy_prompt(16, 1)
    engine.add("a", [*prompt, 1], toy_greedy(3))
    engine.add("b", [*prompt, 2], toy_greedy(20))
    engine.step()
    engine.step()
    a, b = engine.scheduler.running
    assert not set(a.blocks[0]) & set(b.blocks[0])
    while "a" in engine._requests:
        engine.step()
    # others take everything that nobody refers to, the blocks of the first included, while the second goes on
    owned = list(b.blocks[0])
    for i in range(6):
        engine.add(f"c{i}", toy_prompt(40, 10 + i), toy_greedy(2))
        while f"c{i}" in engine._requests:
            engine.step()
    assert b.blocks[0][: len(owned)] == owned
    while engine.has_unfinished:
        engine.step()
    assert b.token_ids[17:] == plain_tokens((FULL,), (*prompt, 2), toy_greedy(20))


def test_a_prompt_longer_than_a_chunk_whose_chunks_are_known_already(monkeypatch):
    """Nothing is looked up here, so what the second computes is in the cache already; it still gets ahead."""
    engine = toy_engine(cache_tokens=256, max_batch_tokens=16)
    monkeypatch.setattr(engine.cache, "_longest", lambda *_: 0)
    prompt = toy_prompt(80, 1)
    requests = {name: (prompt, toy_greedy(2)) for name in ("a", "b")}
    steps = run_all(engine, requests)
    # 5 chunks of 16; then 15 (the first one decodes), 4 of 16 and 1; then the last token
    assert steps == 5 + 6 + 1


def test_overlap_and_preemption_in_a_pool_that_is_nearly_full():
    """94 % in use, and steps are scheduled before the tokens of the last one are known."""
    for seed in range(8):
        results = []
        for overlap in (False, True):
            engine = toy_engine(cache_tokens=64, max_sequences=8, overlap=overlap, prefix_cache=seed % 2 == 0)
            full = []
            requests = {f"r{i}": (toy_prompt(5 + 3 * (i % 3), 9 * seed + i), toy_greedy(9 + i % 6)) for i in range(12)}
            run_all(engine, requests, lambda e, full=full: full.append(e.stats().blocks_used))
            assert max(full) >= 15 and engine.stats().preemptions > 0
            results.append(engine.stats().output_tokens)
        assert results[0] == results[1]


@pytest.mark.parametrize("block_size", [1, 8, 32])
def test_drafts_with_large_blocks_use_the_pool_to_its_last_token(block_size):
    """Blocks that drafts had taken come back, so that a text which just fits gets to its end."""
    prompt, params = toy_prompt(30, 1), toy_greedy(35)
    texts = {"r": (prompt, plain_tokens((FULL,), tuple(prompt), params))}
    engine = toy_engine(cache_tokens=64, block_size=block_size, speculation=ScriptedProposer(texts, 5))

    def nothing_to_spare(engine):
        for sequence in engine.scheduler.running:
            assert len(sequence.blocks[0]) == -(-sequence.num_computed // block_size)

    for _ in range(3):
        run_all(engine, {"r": (prompt, params)}, nothing_to_spare)
    assert engine.stats().preemptions == 0 and engine.stats().drafts_accepted > 10


@pytest.mark.parametrize("fails", [False, True])
def test_an_abort_after_a_state_was_taken_up_and_before_it_was_used(fails, monkeypatch):
    """The copy of a cached state is ordered when a request is let in; whatever happens then, no slot is lost."""
    engine = toy_engine(HYBRID)
    prompt = toy_prompt(21, 1)
    run_all(engine, {"first": (prompt, toy_greedy(2))})
    total = engine.stats()
    for i in range(40):
        engine.add(f"r{i}", prompt, toy_greedy(2))
        if fails:
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(engine.runner, "run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
                engine.step()
        else:
            engine.scheduler.schedule()
            engine.scheduler.check_integrity()
        engine.abort(f"r{i}")
        assert is_idle(engine)
    run_all(engine, {"last": (prompt, toy_greedy(2))})
    assert engine.stats().blocks_total == total.blocks_total


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("max_drafts", [0, 3])
def test_a_window_never_gives_back_what_is_still_seen(window, max_drafts):
    """Everything that is free is overwritten between steps, and rejected drafts move the window back."""
    specs = (window_of(window), FULL)
    requests = {f"r{i}": (toy_prompt(9 + i, i), toy_greedy(20)) for i in range(4)}
    texts = {name: (prompt, plain_tokens(specs, tuple(prompt), params)) for name, (prompt, params) in requests.items()}
    proposer = ScriptedProposer(texts, max_drafts) if max_drafts else None
    engine = toy_engine(specs, cache_tokens=160, speculation=proposer, prefix_cache=False)
    held = []

    def overwrite(engine):
        for pool, cache in zip(engine.cache.pools, engine.runner.caches, strict=True):
            cache[pool._free] = 123456789
        held.extend(sum(block >= 0 for block in s.blocks[0]) for s in engine.scheduler.running if s.is_decoding)

    run_all(engine, requests, overwrite)
    # the window, the tokens of one step, and what is given back only when the next block is taken
    assert max(held) <= (window + max_drafts) // 4 + 3 < 29 // 4 + 1


@pytest.mark.parametrize("specs", [(FULL,), HYBRID], ids=["full", "hybrid"])
def test_a_preempted_text_comes_back_without_its_old_drafts(specs):
    requests = {f"r{i}": (toy_prompt(5 + i, i), toy_greedy(14)) for i in range(6)}
    texts = {name: (prompt, plain_tokens(specs, tuple(prompt), params)) for name, (prompt, params) in requests.items()}
    proposer = ScriptedProposer(texts, 3)
    engine = toy_engine(specs, cache_tokens=40, speculation=proposer)
    run_all(engine, requests)
    stats = engine.stats()
    assert stats.preemptions > 0 and stats.drafts_accepted > 0
    assert len(proposer.forgotten) == stats.preemptions + len(requests), "every preemption and every end is told"


class ThreeThenNone(ScriptedProposer):
    """Three right drafts, then none, in turns."""

    def propose(self, sequences, limits):
        self.step += 1
        if self.step % 2:
            return [[] for _ in sequences]
        return [
            self.texts[s.request_id][1][s.num_sampled : s.num_sampled + min(3, limit)]
            for s, limit in zip(sequences, limits, strict=True)
        ]


@pytest.mark.parametrize("specs", [(STATE,), (FULL, STATE, history_of(2)), HYBRID], ids=["state", "full", "hybrid"])
def test_after_accepted_drafts_a_step_without_any_reads_the_right_state(specs):
    requests = {f"r{i}": (toy_prompt(6 + i, i), toy_greedy(17)) for i in range(3)}
    texts = {name: (prompt, plain_tokens(specs, tuple(prompt), params)) for name, (prompt, params) in requests.items()}
    engine = toy_engine(specs, cache_tokens=160, speculation=ThreeThenNone(texts, 3))
    run_all(engine, requests)
    assert engine.stats().drafts_accepted == engine.stats().drafts_proposed > 20


def test_a_hybrid_never_goes_on_from_where_no_state_was_saved():
    """The other groups could serve more; with drafts, states move on by several tokens and skip boundaries."""
    prompt = toy_prompt(30, 1)
    params = toy_greedy(20)
    text = plain_tokens(HYBRID, tuple(prompt), params)
    requests = {"r": (prompt, params)}
    engine = toy_engine(HYBRID, cache_tokens=256, speculation=ThreeThenNone({"r": (prompt, text)}, 3))
    run_all(engine, requests)
    for length in range(1, 20):
        longer = [*prompt, *text[:length], 3, 3]
        engine.speculation.texts["r"] = (longer, plain_tokens(HYBRID, tuple(longer), toy_greedy(3)))
        run_all(engine, {"r": (longer, toy_greedy(3))})
    assert engine.stats().prefix_hit_tokens > 20 * 20


@pytest.mark.parametrize("block_size", [(4, 2, 8, 1), (3, 5, 1, 1), (8, 4, 2, 7)])
def test_the_same_prompt_four_times_where_groups_have_blocks_of_other_sizes(block_size):
    engine = toy_engine((FULL, window_of(9), LATENT, STATE), cache_tokens=240, block_size=block_size)
    prompt = toy_prompt(51, 1)
    for _ in range(4):
        run_all(engine, {"r": (prompt, toy_greedy(12))})
    assert engine.stats().prefix_hit_tokens == 3 * (50 // engine.cache.chunk_tokens * engine.cache.chunk_tokens)


def test_one_generate_after_another_and_in_the_midst_of_others():
    engine = toy_engine(cache_tokens=128)
    prompts = [toy_prompt(length, 1) for length in (9, 1, 20)]
    expected = [plain_tokens((FULL,), tuple(prompt), toy_greedy(5)) for prompt in prompts]
    assert engine.generate(prompts, toy_greedy(5)) == expected
    engine.add("other", toy_prompt(9, 2), toy_greedy(30))
    assert engine.generate(prompts[::-1], toy_greedy(5)) == expected[::-1]
    assert engine.generate(prompts, toy_greedy(5)) == expected
    assert engine.has_unfinished
    engine.abort("other")
    assert is_idle(engine)


def test_what_was_sampled_before_a_preemption_is_reported_once_and_computed_again():
    engine = toy_engine(cache_tokens=32, max_sequences=4, prefix_cache=False)
    reported = {}

    def note(engine):
        for sequence in engine.scheduler.waiting:
            if sequence.num_preemptions:
                reported[sequence.request_id] = sequence.num_sampled

    requests = {f"r{i}": (toy_prompt(4, i), toy_greedy(20)) for i in range(4)}
    run_all(engine, requests, note)
    assert len(reported) >= 2 and all(count > 0 for count in reported.values())
    assert engine.stats().output_tokens == 4 * 20


@pytest.mark.parametrize("seed", range(4))
def test_aborts_between_any_two_steps_leave_nothing_behind(seed):
    """Waiting, in a chunk, decoding, preempted, with a step in flight: all of it happens here."""
    requests = {f"r{i}": (toy_prompt(3 + 7 * (i % 4), i), toy_greedy(12)) for i in range(10)}
    states = set()
    for overlap in (False, True):
        engine = toy_engine(HYBRID, cache_tokens=48, overlap=overlap)
        for name, (prompt, params) in requests.items():
            engine.add(name, prompt, params)
        step = 0
        while engine.has_unfinished:
            engine.step()
            step += 1
            sequences = list(engine._requests.values())
            if sequences and mix(seed, step) % 3 == 0:
                victim = sequences[mix(seed, step, 1) % len(sequences)]
                states.add(
                    "preempted" if victim.row < 0 and victim.num_preemptions
                    else "waiting" if victim.row < 0
                    else "pending" if victim.num_pending
                    else "decoding" if victim.is_decoding
                    else "chunk"
                )  # fmt: skip
                engine.abort(victim.request_id)
                engine.scheduler.check_integrity()
        assert is_idle(engine)
    assert len(states) >= 3
