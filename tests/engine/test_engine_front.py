"""The front of the engine: adding, finishing, aborting, generating, streaming, scoring, loading."""

import pytest
import torch
from tiny_engine import EOS, VOCABULARY, greedy, is_idle, prompt_of, run_with_arrivals, tiny_model, tokens_alone

from wholecurve.engine import Engine, SamplingParams, StepOutput
from wholecurve.engine.load import default_device
from wholecurve.engine.scoring import continuation_logits
from wholecurve.errors import UserError


@pytest.fixture
def engine():
    return Engine(tiny_model(), cache_tokens=160, block_size=8, max_batch_tokens=24, max_sequences=4, check=True)


def with_token(token):
    """A prompt whose greedy continuation of 12 has `token` first at a place after the first, and that place."""
    for seed in range(5000):
        prompt = prompt_of(5, seed)
        tokens = tokens_alone(tiny_model(), tuple(prompt), greedy(12))
        if token in tokens[1:-1] and token != tokens[0]:
            return prompt, tokens, tokens.index(token)
    raise AssertionError("no such prompt")


def finished(engine, prompt, params):
    tokens, reasons = run_with_arrivals(engine, {"r": (0, prompt, params)})
    assert is_idle(engine)
    return tokens["r"], reasons["r"]


def test_the_end_token_stops_and_is_the_last_token(engine):
    prompt, tokens, place = with_token(EOS)
    assert finished(engine, prompt, SamplingParams(max_new_tokens=12)) == (tokens[: place + 1], "stop")
    assert finished(engine, prompt, SamplingParams(max_new_tokens=12, ignore_eos=True)) == (tokens, "length")
    assert finished(engine, prompt, SamplingParams(max_new_tokens=place)) == (tokens[:place], "length")
    assert finished(engine, prompt, SamplingParams(max_new_tokens=place + 1)) == (tokens[: place + 1], "stop")


def test_stop_tokens_stop_also_when_the_end_token_is_ignored(engine):
    prompt, tokens, place = with_token(EOS)
    stop = tokens[place - 1]
    first = tokens.index(stop)
    for ignore_eos in (False, True):
        params = SamplingParams(max_new_tokens=12, stop_token_ids=(stop, 3), ignore_eos=ignore_eos)
        assert finished(engine, prompt, params) == (tokens[: first + 1], "stop")


def test_the_stop_tokens_of_one_request_do_not_stop_another(engine):
    prompt, tokens, place = with_token(EOS)
    requests = {
        "stops": (0, prompt, greedy(12, ignore_eos=False)),
        "goes on": (0, prompt, greedy(12)),
        "other stop": (1, prompt, greedy(12, stop_token_ids=(tokens[0],))),
        "short": (1, prompt, greedy(3)),
    }
    result, reasons = run_with_arrivals(engine, requests)
    assert result == {
        "stops": tokens[: place + 1], "goes on": tokens, "other stop": tokens[:1], "short": tokens[:3]
    }  # fmt: skip
    assert reasons == {"stops": "stop", "goes on": "length", "other stop": "stop", "short": "length"}


def test_a_step_reports_one_token_per_sequence_and_its_end(engine):
    prompt = prompt_of(30, 1)
    expected = tokens_alone(tiny_model(), tuple(prompt), greedy(2))
    engine.add("a", prompt, greedy(2))
    assert engine.step() == []  # 24 of 30 prompt tokens
    assert engine.step() == [StepOutput("a", [expected[0]], None)]
    assert engine.step() == [StepOutput("a", [expected[1]], "length")]
    assert is_idle(engine)


@pytest.mark.parametrize(
    ("prompt", "params", "reason"),
    [
        ([], greedy(1), "no tokens"),
        ([VOCABULARY], greedy(1), f"outside the vocabulary of {VOCABULARY}"),
        ([3, -1], greedy(1), "outside the vocabulary"),
        ([1] * 100, greedy(29), "prompt 100 \\+ max_new_tokens 29 exceed the model's context of 128"),
        ([1, 2.5], greedy(1), "request r: the prompt must be a list of token ids"),
        ([1, 2**70], greedy(1), "request r: the prompt must be a list of token ids"),
        ([1], greedy(1, stop=("x",)), "request r: stop is given; it needs an engine with a tokenizer"),
        ([1], greedy(1, stop_token_ids=(99,)), "request r: stop_token_ids names token 99"),
    ],
)
def test_requests_that_cannot_be_run_are_refused_and_leave_nothing(engine, prompt, params, reason):
    with pytest.raises(UserError, match=reason):
        engine.add("r", prompt, params)
    assert is_idle(engine)
    engine.add("r", [1], greedy(1))


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"priority": 1.5}, "request r: priority is 1.5; it must be a whole number"),
        ({"priority": True}, "request r: priority is True"),
        ({"cache_salt": None}, "request r: cache_salt is None; it must be a string"),
    ],
)
def test_options_of_a_request_that_make_no_sense(engine, option, reason):
    with pytest.raises(UserError, match=reason):
        engine.add("r", [1], greedy(1), **option)
    assert is_idle(engine)


def test_the_whole_context_of_the_model_can_be_used(engine):
    tokens, _ = run_with_arrivals(engine, {"r": (0, prompt_of(100, 1), greedy(28))})
    assert len(tokens["r"]) == 28


def test_an_id_is_free_again_after_its_request(engine):
    engine.add("r", [1, 2], greedy(3))
    with pytest.raises(UserError, match="request r: this id is in use"):
        engine.add("r", [1, 2], greedy(3))
    engine.abort("r")
    assert is_idle(engine)
    with pytest.raises(UserError, match="request r: not known, or finished"):
        engine.abort("r")
    assert finished(engine, [1, 2], greedy(3))[1] == "length"


def test_the_prompt_that_was_given_is_not_changed(engine):
    prompt = [1, 2, 3]
    engine.generate([prompt], greedy(4))
    assert prompt == [1, 2, 3]


def test_generate_keeps_the_order_of_its_prompts(engine):
    prompts = [prompt_of(length, 9) for length in (40, 1, 17, 3, 25, 2)]
    for _ in range(2):  # ids of an earlier call must not be in the way
        expected = [tokens_alone(tiny_model(), tuple(prompt), greedy(5)) for prompt in prompts]
        assert engine.generate(prompts, greedy(5)) == expected
    assert engine.generate([], greedy(5)) == [] and is_idle(engine)


def test_generate_leaves_nothing_behind_after_an_error(engine, monkeypatch):
    with pytest.raises(UserError, match="generate-1"):
        engine.generate([[1, 2], [], [3]], greedy(5))
    assert is_idle(engine)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine.runner, "run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        engine.generate([[1, 2], [3]], greedy(5))
    assert is_idle(engine)
    assert len(engine.generate([[1, 2], [3]], greedy(5))[1]) == 5


def test_generate_goes_on_with_requests_that_were_there_before(engine):
    engine.add("other", prompt_of(30, 2), greedy(20))
    assert engine.generate([prompt_of(4, 1)], greedy(3)) == [
        tokens_alone(tiny_model(), tuple(prompt_of(4, 1)), greedy(3))
    ]
    assert engine.has_unfinished
    engine.abort("other")
    assert is_idle(engine)


def test_a_stream_gives_the_same_tokens(engine):
    prompt = prompt_of(30, 2)
    assert list(engine.stream(prompt, greedy(6))) == tokens_alone(tiny_model(), tuple(prompt), greedy(6))
    assert is_idle(engine)


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_stream_that_is_closed_early_frees_its_blocks(engine, taken):
    stream = engine.stream(prompt_of(30, 2), greedy(6))
    for _ in range(taken):
        next(stream)
    assert engine.has_unfinished == (taken > 0)
    stream.close()
    assert is_idle(engine)
    assert len(list(engine.stream([1], greedy(2)))) == 2


def test_sampled_tokens_depend_on_the_seed_alone(engine):
    prompt = prompt_of(12, 1)
    params = [greedy(8, temperature=1.3, top_p=0.95, seed=seed) for seed in (1, 2, 1)]
    requests = {f"r{i}": (2 * i, prompt, p) for i, p in enumerate(params)}
    requests["greedy"] = (0, prompt, greedy(8))
    tokens, _ = run_with_arrivals(engine, requests)
    assert tokens["r0"] == tokens["r2"] == tokens_alone(tiny_model(), tuple(prompt), params[0])
    assert tokens["r1"] == tokens_alone(tiny_model(), tuple(prompt), params[1]) != tokens["r0"]
    assert tokens["greedy"] == tokens_alone(tiny_model(), tuple(prompt), greedy(8)) != tokens["r0"]


def test_scores_are_the_logits_that_decided_each_token():
    model, prompt = tiny_model(), prompt_of(21, 4)
    tokens = tokens_alone(model, tuple(prompt), greedy(7))
    logits = continuation_logits(model, prompt, tokens)
    assert logits.shape == (7, VOCABULARY) and logits.argmax(dim=1).tolist() == tokens
    # teacher forcing: another token at place 2 changes what follows it, not what came before
    forced = continuation_logits(model, prompt, [*tokens[:2], (tokens[2] + 1) % VOCABULARY, *tokens[3:]])
    assert torch.equal(forced[:3], logits[:3]) and not torch.equal(forced[3], logits[3])
    assert continuation_logits(model, prompt, []).shape == (0, VOCABULARY)


def test_the_default_device_is_one_that_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert default_device() == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert default_device() == "cuda"
