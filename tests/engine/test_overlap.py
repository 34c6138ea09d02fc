"""Steps that are begun before the tokens of the last one are known give the same tokens."""

import threading
import time
from concurrent.futures import Future

import pytest
import torch
from tiny_engine import EOS, greedy, is_idle, prompt_of, run_with_arrivals, tiny_model, tokens_alone
from toy_hybrid import FULL, HYBRID, ScriptedProposer, ToyModel, plain_tokens, toy_greedy, toy_prompt

from wholecurve.engine import Engine

SIZES = {"cache_tokens": 256, "block_size": 8, "max_batch_tokens": 24, "max_sequences": 4}


def requests_of(params_of):
    return {f"r{i}": (2 * i, tuple(prompt_of(n, i)), params_of(i)) for i, n in enumerate((30, 1, 17, 40, 8, 25))}


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("cache_tokens", [256, 88])
def test_the_same_tokens_with_and_without(prefix_cache, cache_tokens):
    requests = requests_of(lambda i: greedy(4 + i, **({"temperature": 0.8, "seed": i} if i % 2 else {})))
    results = []
    for overlap in (False, True):
        options = {**SIZES, "cache_tokens": cache_tokens, "prefix_cache": prefix_cache}
        engine = Engine(tiny_model(), check=True, overlap=overlap, **options)
        results.append(run_with_arrivals(engine, requests))
        assert is_idle(engine)
    assert results[0] == results[1]
    for name, (_, prompt, params) in requests.items():
        assert results[1][0][name] == tokens_alone(tiny_model(), prompt, params)


def test_a_step_is_begun_before_the_last_one_is_taken_in():
    """The tokens of a step come with the next call, and meanwhile the model has been asked for more."""
    engine = Engine(ToyModel((FULL,)), overlap=True, check=True, **SIZES)
    engine.add("r", toy_prompt(5, 1), toy_greedy(4))
    expected = plain_tokens((FULL,), tuple(toy_prompt(5, 1)), toy_greedy(4))
    assert engine.step() == []
    (sequence,) = engine.scheduler.running
    assert sequence.num_pending == 1 and sequence.num_computed == 5
    seen = []
    while engine.has_unfinished:
        seen.append([token for output in engine.step() for token in output.token_ids])
        assert len(engine._in_flight) == (engine.has_unfinished and sequence.num_sampled < 4)
    assert seen == [[token] for token in expected]
    assert engine.model.num_steps == 4, "no step is run for a text that is known to be at its end"


def test_steps_run_on_a_thread_of_their_own():
    class Watched(ToyModel):
        def __call__(self, batch, caches):
            self.threads.add(threading.current_thread().name)
            return super().__call__(batch, caches)

    for overlap in (True, False):
        model = Watched((FULL,))
        model.threads = set()
        Engine(model, overlap=overlap, **SIZES).generate([toy_prompt(5, 1)], toy_greedy(4))
        assert (threading.current_thread().name not in model.threads) == overlap and len(model.threads) == 1


def test_what_was_computed_after_an_end_token_is_dropped():
    prompt, params = next(
        (prompt, params)
        for seed in range(500)
        if (prompt := toy_prompt(6, seed)) and (params := toy_greedy(12, ignore_eos=False))
        and 2 < len(plain_tokens((FULL,), tuple(prompt), params)) < 10
    )  # fmt: skip
    expected = plain_tokens((FULL,), tuple(prompt), params)
    engine = Engine(ToyModel((FULL,)), overlap=True, check=True, **SIZES)
    for name in ("a", "b"):
        engine.add(name, prompt, params)
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    assert not engine._in_flight, "nothing runs when there is nothing to do"
    for name in ("a", "b"):
        mine = [output for output in outputs if output.request_id == name]
        assert [t for output in mine for t in output.token_ids] == expected
        assert [output.finish_reason for output in mine] == [None] * (len(expected) - 1) + ["stop"]
    assert engine.stats().output_tokens == 2 * len(expected)
    assert engine.model.num_steps == len(expected) + 1, "one step was in flight when the end came"
    assert is_idle(engine)


@pytest.mark.parametrize("specs", [(FULL,), HYBRID], ids=["full", "hybrid"])
def test_a_row_is_reused_while_a_step_of_its_last_owner_is_in_flight(specs):
    """One seat: the token that is still computed for the one who left must not become the next one's input."""
    engine = Engine(ToyModel(specs), overlap=True, check=True, prefix_cache=True, **{**SIZES, "max_sequences": 1})
    requests = {f"r{i}": (toy_prompt(3 + i, i), toy_greedy(12, ignore_eos=False)) for i in range(12)}
    for name, (prompt, params) in requests.items():
        engine.add(name, prompt, params)
    tokens = {name: [] for name in requests}
    while engine.has_unfinished:
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
    assert tokens == {name: plain_tokens(specs, tuple(p), params) for name, (p, params) in requests.items()}


def test_a_request_that_needs_its_tokens_at_once_makes_steps_run_one_by_one():
    """A penalty counts all tokens before; others in the batch are the same with it, and overlap again after it."""
    model = tiny_model()
    penalised = greedy(8, repetition_penalty=1.8)
    engine = Engine(model, overlap=True, check=True, **SIZES)
    requests = {
        "before": (0, tuple(prompt_of(9, 1)), greedy(12)),
        "penalised": (3, tuple(prompt_of(12, 2)), penalised),
        "after": (3, tuple(prompt_of(14, 3)), greedy(16)),
    }
    in_flight = []
    tokens, _ = run_with_arrivals(engine, requests, lambda e, *_: in_flight.append(len(e._in_flight)))
    for name, (_, prompt, params) in requests.items():
        assert tokens[name] == tokens_alone(model, prompt, params)
    assert tokens["penalised"] != tokens_alone(model, requests["penalised"][1], greedy(8))
    assert in_flight[:3] == [1, 1, 1] and in_flight[3:9] == [0] * 6 and 1 in in_flight[10:]


class OneBuffer(ToyModel):
    """Hands out the largest logits in the same memory at every step, as a replayed graph does."""

    buffer = torch.zeros(16, dtype=torch.int64)

    def __call__(self, batch, caches):
        logits = super().__call__(batch, caches)
        batch.argmax = self.buffer[: len(logits)]
        batch.argmax.copy_(logits.argmax(dim=-1))
        return logits


def test_tokens_are_copied_before_the_next_step_writes_over_them(monkeypatch):
    """Every step has ended before the tokens of the one before it are looked at."""
    engine = Engine(OneBuffer((FULL,)), overlap=True, check=True, **SIZES)

    def submit(*arguments):
        future = Future()
        future.set_result(engine.runner.run(*arguments))
        return future

    monkeypatch.setattr(engine.runner, "submit", submit)
    prompts = [toy_prompt(length, 1) for length in (5, 9, 3)]
    expected = [plain_tokens((FULL,), tuple(prompt), toy_greedy(8)) for prompt in prompts]
    assert engine.generate(prompts, toy_greedy(8)) == expected


def test_with_speculation_nothing_overlaps():
    prompt = toy_prompt(6, 1)
    expected = plain_tokens((FULL,), tuple(prompt), toy_greedy(9))
    proposer = ScriptedProposer({"generate-0": (prompt, expected)}, 3)
    engine = Engine(ToyModel((FULL,)), overlap=True, speculation=proposer, check=True, **SIZES)
    assert not engine.overlap and engine.generate([prompt], toy_greedy(9)) == [expected]


class FailsAt(ToyModel):
    """Fails once, in its n-th step, after it has written its entries."""

    def __init__(self, specs, failing_step):
        super().__init__(specs)
        self.failing_step = failing_step

    def __call__(self, batch, caches):
        logits = super().__call__(batch, caches)
        if self.num_steps == self.failing_step:
            raise RuntimeError("the device is gone")
        return logits


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("failing_step", range(1, 12))
def test_a_step_that_fails_costs_no_token(overlap, failing_step):
    specs = HYBRID
    engine = Engine(FailsAt(specs, failing_step), overlap=overlap, prefix_cache=True, check=True, **SIZES)
    requests = {f"r{i}": (toy_prompt(9 + 5 * i, i), toy_greedy(8)) for i in range(4)}
    for name, (prompt, params) in requests.items():
        engine.add(name, prompt, params)
    tokens, failures = {name: [] for name in requests}, 0
    while engine.has_unfinished:
        try:
            for output in engine.step():
                tokens[output.request_id] += output.token_ids
        except RuntimeError as error:
            assert str(error) == "the device is gone"
            failures += 1
            engine.scheduler.check_integrity()
            assert engine.stats().blocks_used == engine.stats().blocks_cached == 0
    assert tokens == {name: plain_tokens(specs, tuple(p), params) for name, (p, params) in requests.items()}
    assert failures == 1 and is_idle(engine)


class Alone(FailsAt):
    """Fails once, takes its time after that, and notes whether it was ever asked for two steps at once."""

    busy = twice = False

    def __call__(self, batch, caches):
        self.twice |= self.busy
        self.busy = True
        try:
            if self.num_steps >= self.failing_step:
                time.sleep(0.05)
            return super().__call__(batch, caches)
        finally:
            self.busy = False


def test_after_a_failure_the_next_step_waits_for_what_was_begun():
    """The step after the failing one is on the other thread already when the next one runs on this one."""
    engine = Engine(Alone((FULL,), 3), overlap=True, check=True, **SIZES)
    engine.add("r", toy_prompt(5, 1), toy_greedy(8))
    with pytest.raises(RuntimeError, match="the device is gone"):
        while True:
            engine.step()
    engine.add("penalised", toy_prompt(5, 2), toy_greedy(4, repetition_penalty=2.0))
    while engine.has_unfinished:
        engine.step()
    assert is_idle(engine) and not engine.model.twice


def test_end_tokens_of_the_real_model_too():
    params = greedy(20, ignore_eos=False)
    prompts = [prompt_of(5, seed) for seed in range(40)]
    engine = Engine(tiny_model(), overlap=True, check=True, **SIZES)
    results = engine.generate(prompts, params)
    assert results == [tokens_alone(tiny_model(), tuple(prompt), params) for prompt in prompts]
    assert any(tokens[-1] == EOS and len(tokens) < 20 for tokens in results)
