"""What the engine reports: text, stop reasons, logprobs, counters; the same whether steps overlap or not."""

import functools

import pytest
import torch
from tiny_engine import EOS, VOCABULARY, greedy, is_idle, prompt_of, tiny_model, tokens_alone
from tokenizers import Tokenizer, decoders, models
from toy_hybrid import FULL, HYBRID, ScriptedProposer, ToyModel, toy_greedy, toy_prompt
from transformers import PreTrainedTokenizerFast

from wholecurve.engine import Engine, SamplingParams
from wholecurve.engine.outputs import EngineStats
from wholecurve.engine.scoring import continuation_logits


@functools.cache
def letters():
    """A letter or two per token: token 3 is "d", token 30 "ab"; the end token is special."""
    names = [chr(97 + i) if i < 26 else chr(97 + (i - 26) // 26) + chr(97 + i % 26) for i in range(VOCABULARY)]
    names[EOS] = "</s>"
    core = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="</s>"))
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")


def text_of(tokens):
    return letters().decode(tokens, skip_special_tokens=True)


@pytest.fixture(params=[False, True], ids=["one by one", "overlap"])
def engine(request):
    sizes = {"cache_tokens": 256, "block_size": 8, "max_batch_tokens": 24, "max_sequences": 4}
    return Engine(tiny_model(), tokenizer=letters(), overlap=request.param, check=True, **sizes)


def outputs_of(engine, prompt, params, name="r"):
    engine.add(name, prompt, params)
    outputs = []
    while engine.has_unfinished:
        outputs += [output for output in engine.step() if output.request_id == name]
    assert is_idle(engine)
    return outputs


def whole(outputs):
    """(tokens, text, finish reason, stop reason) of all outputs of a request."""
    assert all(output.finish_reason is None and output.stop_reason is None for output in outputs[:-1])
    tokens = [token for output in outputs for token in output.token_ids]
    return tokens, "".join(output.text for output in outputs), outputs[-1].finish_reason, outputs[-1].stop_reason


def prompt_that_ends(most):
    """A prompt whose answer has the end token among its first `most`, but not as the very first."""
    prompts = (prompt_of(5, seed) for seed in range(999))
    return next(p for p in prompts if EOS in tokens_alone(tiny_model(), tuple(p), greedy(12))[1:most])


def test_the_text_is_that_of_the_tokens(engine):
    prompt, params = prompt_of(9, 1), greedy(12)
    expected = tokens_alone(tiny_model(), tuple(prompt), params)
    assert whole(outputs_of(engine, prompt, params)) == (expected, text_of(expected), "length", None)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_the_answer_where_it_is_complete(engine, include):
    prompt = prompt_of(9, 1)
    tokens = tokens_alone(tiny_model(), tuple(prompt), greedy(12))
    stop = text_of(tokens[4:7])
    start = text_of(tokens).index(stop)
    end = next(n for n in range(1, 13) if stop in text_of(tokens[:n]))
    params = greedy(12, stop=(stop,), include_stop=include)
    expected = text_of(tokens)[: start + len(stop) * include]
    assert whole(outputs_of(engine, prompt, params)) == (tokens[:end], expected, "stop", stop)


def test_text_that_might_have_become_a_stop_string_comes_at_the_end(engine):
    prompt = prompt_of(9, 1)
    tokens = tokens_alone(tiny_model(), tuple(prompt), greedy(12))
    text = text_of(tokens)
    outputs = outputs_of(engine, prompt, greedy(12, stop=(text[-2:] + "never",)))
    assert whole(outputs) == (tokens, text, "length", None)
    assert outputs[-1].text.endswith(text[-2:])


def test_no_stop_string_ends_within_the_least_length(engine):
    prompt = prompt_of(9, 1)
    tokens = tokens_alone(tiny_model(), tuple(prompt), greedy(12))
    stop = text_of(tokens[2:4])
    assert stop not in text_of(tokens[4:])
    assert whole(outputs_of(engine, prompt, greedy(12, stop=(stop,))))[2] == "stop"
    params = greedy(12, stop=(stop,), min_new_tokens=8)
    assert whole(outputs_of(engine, prompt, params)) == (tokens, text_of(tokens), "length", None)


def test_accepted_drafts_beyond_a_stop_string_are_dropped():
    prompt = prompt_of(9, 1)
    tokens = tokens_alone(tiny_model(), tuple(prompt), greedy(12))
    stop = text_of(tokens[2:4])

    class AllRight(ScriptedProposer):
        def propose(self, sequences, limits):
            return [tokens[s.num_sampled :][:limit] for s, limit in zip(sequences, limits, strict=True)]

    engine = Engine(
        tiny_model(), tokenizer=letters(), cache_tokens=256, prefix_cache=True, check=True, speculation=AllRight({}, 8)
    )
    engine.add("r", prompt, greedy(12, stop=(stop,)))
    engine.step()
    (sequence,) = engine.scheduler.running
    (output,) = engine.step()
    assert (output.token_ids, output.finish_reason, output.stop_reason) == (tokens[1:4], "stop", stop)
    assert sequence.token_ids == [*prompt, *tokens[:4]]
    assert is_idle(engine)


def test_a_stop_token_is_named_and_its_text_left_out(engine):
    prompt = prompt_of(9, 1)
    tokens = tokens_alone(tiny_model(), tuple(prompt), greedy(12))
    stop = tokens[5]
    length = tokens.index(stop) + 1
    for include in (False, True):
        params = greedy(12, stop_token_ids=(stop,), include_stop=include)
        text = text_of(tokens[: length - (not include)])
        assert whole(outputs_of(engine, prompt, params)) == (tokens[:length], text, "stop", stop)


def test_the_models_own_end_has_no_reason_of_its_own(engine):
    prompt = prompt_that_ends(12)
    tokens = tokens_alone(tiny_model(), tuple(prompt), SamplingParams(max_new_tokens=12))
    assert tokens[-1] == EOS
    expected = (tokens, text_of(tokens[:-1]), "stop", None)
    assert whole(outputs_of(engine, prompt, SamplingParams(max_new_tokens=12))) == expected


def test_an_answer_has_its_least_length(engine):
    prompt = prompt_that_ends(4)
    short = outputs_of(engine, prompt, SamplingParams(max_new_tokens=30))
    longer = outputs_of(engine, prompt, SamplingParams(max_new_tokens=30, min_new_tokens=12))
    assert len(whole(short)[0]) <= 4 and len(whole(longer)[0]) >= 12


def test_logprobs_are_those_of_the_models_logits(engine):
    prompt = prompt_of(9, 1)
    plain = outputs_of(engine, prompt, greedy(6))
    assert all(output.logprobs is None for output in plain)
    engine.add("others", prompt_of(12, 2), greedy(9))
    outputs = outputs_of(engine, prompt, greedy(6, logprobs=3))
    tokens = whole(outputs)[0]
    assert tokens == whole(plain)[0]
    expected = continuation_logits(tiny_model(), prompt, tokens).log_softmax(dim=-1)
    for place, output in enumerate(outputs):
        (entry,) = output.logprobs
        assert entry.token_id == tokens[place] and len(entry.alternatives) == 3
        assert entry.logprob == pytest.approx(float(expected[place, tokens[place]]), abs=1e-5)
        assert [token for token, _ in entry.alternatives] == expected[place].topk(3).indices.tolist()


class Silent(ToyModel):
    """Has no token to offer from its third step on."""

    def __call__(self, batch, caches):
        logits = super().__call__(batch, caches)
        return logits if self.num_steps < 3 else torch.full_like(logits, torch.nan)


@pytest.mark.parametrize("overlap", [False, True])
def test_where_nothing_can_be_chosen_the_request_ends(overlap):
    engine = Engine(Silent((FULL,)), cache_tokens=64, overlap=overlap, check=True)
    outputs = outputs_of(engine, toy_prompt(5, 1), toy_greedy(9))
    assert [len(output.token_ids) for output in outputs] == [1, 1, 0]
    assert [output.finish_reason for output in outputs] == [None, None, "abort"]


def test_counters():
    engine = Engine(ToyModel(HYBRID), cache_tokens=64, block_size=4, max_sequences=3, prefix_cache=True, check=True)
    prompt = toy_prompt(13, 1)
    blocks = 16 + 16 + 6
    empty = EngineStats(0, 0, blocks, 0, 0, blocks, 0, 0, 0, 0, 0, 0, 0, 0)
    assert engine.stats() == empty
    engine.add("a", prompt, toy_greedy(3))
    assert (engine.stats().waiting, engine.stats().running) == (1, 0)
    engine.step()
    stats = engine.stats()
    assert (stats.waiting, stats.running, stats.steps, stats.prompt_tokens) == (0, 1, 1, 13)
    assert stats.blocks_used == 3 + 3 + 1, "the chunk ends after 12 tokens, where its state is saved"
    while engine.has_unfinished:
        engine.step()
    outputs = outputs_of(engine, prompt, toy_greedy(3))
    assert [output.num_cached for output in outputs] == [12] * 3
    stats = engine.stats()
    assert (stats.prefix_queried_tokens, stats.prefix_hit_tokens) == (26, 12)
    assert (stats.prompt_tokens, stats.output_tokens, stats.preemptions) == (26, 6, 0)
    assert stats.blocks_cached == 3 + 3 + 1 and stats.blocks_used == 0 and not stats.synthetic


def test_checks_can_be_switched_on_from_outside(monkeypatch):
    monkeypatch.setenv("WHOLECURVE_CHECK", "1")
    engine = Engine(ToyModel((FULL,)), cache_tokens=64)
    engine.add("r", toy_prompt(5, 1), toy_greedy(5))
    engine.cache.pools[0]._free.pop()
    with pytest.raises(AssertionError, match="lost, doubled or unknown"):
        engine.step()
    monkeypatch.setenv("WHOLECURVE_CHECK", "0")
    assert not Engine(ToyModel((FULL,)), cache_tokens=64).check
