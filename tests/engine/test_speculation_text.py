"""Speculation with what needs text: stop strings and grammars."""

import functools
import re

import pytest
from speculation_runs import Oracle, draft_model
from tiny_engine import EOS, VOCABULARY, is_idle, prompt_of, tiny_model
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from wholecurve.engine import Engine, SamplingParams
from wholecurve.engine.sampling import GrammarSpec
from wholecurve.engine.speculation import NgramProposer

CHARACTERS = "abcdef<ghijklmnopqrstuvwxyz0123456789 {}[],:.-_ABCDEFGHIJKLMNOP"  # "<" stands for the end token


@functools.cache
def tokenizer():
    """A character per token; the end token is the model's."""
    vocabulary = {character: i for i, character in enumerate(CHARACTERS[:VOCABULARY])}
    vocabulary["</s>"] = 7
    del vocabulary[CHARACTERS[7]]
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")


def run(proposer, requests, **options):
    """({request: (tokens, text, finish reason, stop reason)}, engine)."""
    options = {"cache_tokens": 256, "block_size": 4, **options}
    engine = Engine(tiny_model(), tokenizer=tokenizer(), speculation=proposer, check=True, **options)
    for name, (prompt, params) in requests.items():
        engine.add(name, prompt, params)
    tokens, texts, reasons = {name: [] for name in requests}, dict.fromkeys(requests, ""), {}
    while engine.has_unfinished:
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
            texts[output.request_id] += output.text
            reasons[output.request_id] = (output.finish_reason, output.stop_reason)
    assert is_idle(engine)
    return {name: (tokens[name], texts[name], *reasons[name]) for name in requests}, engine


def proposers(plain):
    """Proposers for the answers of a plain run."""
    answers = {name: result[0] for name, result in plain.items()}
    return {
        "right": Oracle(answers, 4),
        "half right": Oracle(answers, 5, right=2),
        "wrong": Oracle(answers, 3, right=0),
        "itself": draft_model(0, 3),
        "ngram": NgramProposer(4, 1, 2),
    }


KINDS = ["right", "half right", "wrong", "itself", "ngram"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("include_stop", [False, True])
def test_a_stop_string_ends_in_the_middle_of_a_step(kind, include_stop):
    """At every place of the answer, with right drafts that go on behind it."""
    prompt, params = prompt_of(10, 0), SamplingParams(max_new_tokens=24, ignore_eos=True)
    everything, text, *_ = run(None, {"a": (prompt, params)})[0]["a"]
    assert len(text) == len(everything) == 24
    for start in range(9):
        stop = text[start : start + 2]
        stopping = SamplingParams(max_new_tokens=24, ignore_eos=True, stop=(stop,), include_stop=include_stop)
        plain, _ = run(None, {"a": (prompt, stopping)})
        end = text.index(stop)
        assert plain["a"] == (everything[: end + 2], text[: end + 2 * include_stop], "stop", stop)
        proposer = proposers({"a": (everything,)})[kind]
        with_drafts, engine = run(proposer, {"a": (prompt, stopping)})
        assert with_drafts == plain
        assert engine.stats().output_tokens == end + 2


GRAMMARS = [
    GrammarSpec.regex(r"[a-f]{3}[0-9]{4,9}"),
    GrammarSpec.choice(["deed", "added", "faded", "a"]),
    GrammarSpec.regex(r"(ab|cd|12)*x"),
    GrammarSpec.regex(r"[a-z]{12,}"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache_tokens", [256, 36])
def test_answers_keep_to_their_grammar(kind, cache_tokens):
    """Greedy and sampled, wrong drafts that the grammar forbids among them, and set back in a small cache."""
    requests = {}
    for i, grammar in enumerate(GRAMMARS):
        requests[f"greedy-{i}"] = (prompt_of(9, i), SamplingParams(max_new_tokens=14, grammar=grammar))
        warm = SamplingParams(max_new_tokens=14, grammar=grammar, temperature=1.2, seed=i, ignore_eos=True)
        requests[f"warm-{i}"] = (prompt_of(8, 10 + i), warm)
    requests["free"] = (prompt_of(7, 20), SamplingParams(max_new_tokens=14, ignore_eos=True))
    plain, _ = run(None, requests)
    results, engine = run(proposers(plain)[kind], requests, cache_tokens=cache_tokens)
    assert results == plain
    assert (engine.stats().preemptions > 0) == (cache_tokens == 36)
    assert any(result[2] == "stop" for result in plain.values())
    for name, (_, text, reason, _) in results.items():
        if reason == "stop":
            grammar = GRAMMARS[int(name[-1])]
            pattern = grammar.text if grammar.kind == "regex" else "deed|added|faded|a"
            assert re.fullmatch(pattern, text), name
    if kind in ("right", "itself"):
        assert engine.stats().drafts_accepted > 0


@pytest.mark.parametrize("end", [2, 3, 4, 5, 6])
def test_an_end_of_a_grammar_among_right_drafts(end):
    """The drafts go on behind the end token, which ends the answer whatever follows and whatever ignore_eos says."""
    params = SamplingParams(max_new_tokens=20, grammar=GrammarSpec.regex(f"[a-f]{{{end}}}"), ignore_eos=True)
    plain, _ = run(None, {"a": (prompt_of(6, 1), params)})
    tokens, text, reason, _ = plain["a"]
    assert len(tokens) == end + 1 and tokens[-1] == EOS and len(text) == end and reason == "stop"
    results, engine = run(Oracle({"a": [*tokens, EOS, EOS, 3, EOS]}, 6), {"a": (prompt_of(6, 1), params)})
    assert results == plain and engine.stats().steps == 2 and engine.stats().drafts_accepted == end
