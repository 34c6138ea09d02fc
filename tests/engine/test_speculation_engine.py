"""Speculation changes how many steps an answer takes, and nothing else."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speculation_runs import PROPOSERS, Oracle, answers_alone, draft_model, is_forgotten, requests_of, run_with
from tiny_engine import EOS, greedy, is_idle, prompt_of, tiny_model, tokens_alone

from wholecurve.engine import Engine, SamplingParams
from wholecurve.engine.speculation import NgramProposer

SAMPLED = [
    greedy(17),
    SamplingParams(max_new_tokens=21, temperature=1.0, seed=5),  # ends where the model says so
    greedy(12, temperature=0.8, top_p=0.9, seed=6),
    greedy(15, temperature=1.2, top_k=7, seed=7, min_p=0.02),
    greedy(16, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2),
    greedy(14, temperature=0.9, seed=8, frequency_penalty=0.7, logit_bias={3: 4.0, 9: float("-inf")}),
    SamplingParams(max_new_tokens=19, temperature=1.5, seed=9, min_new_tokens=11, stop_token_ids=(1, 2, 3, 4, 5)),
    greedy(1),
    greedy(2, temperature=0.5, seed=10),
]


def check(engine, proposer, requests, answers, tokens, reasons):
    """Tokens are those of each request alone, and the counters and caches agree with them."""
    assert tokens == answers
    for name, (_, _, params) in requests.items():
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else (EOS,))}
        assert reasons[name] == ("stop" if tokens[name][-1] in ends else "length")
    stats = engine.stats()
    assert stats.output_tokens == sum(map(len, tokens.values())) and not stats.synthetic
    assert 0 <= stats.drafts_accepted <= min(stats.drafts_proposed, stats.output_tokens - len(tokens))
    assert is_idle(engine) and is_forgotten(proposer)


@pytest.mark.parametrize("kind", PROPOSERS)
@pytest.mark.parametrize("block_size", [1, 8])
def test_tokens_are_those_without_speculation(kind, block_size):
    """Requests of every way of sampling at once: chunked prompts, all in one batch, from beginning to end."""
    requests = requests_of([9, 25, 1, 16, 7, 8, 30, 3, 15], SAMPLED, arrivals=(0, 0, 2, 5))
    answers = answers_alone(requests)
    proposer = PROPOSERS[kind](answers)
    engine, tokens, reasons = run_with(
        proposer, requests, cache_tokens=600, block_size=block_size, max_batch_tokens=24, max_sequences=6
    )
    check(engine, proposer, requests, answers, tokens, reasons)
    stats = engine.stats()
    if kind in ("wrong", "greedy drafts", "wild"):
        least, most = {"wrong": (0, 0), "greedy drafts": (0.05, 0.9), "wild": (0.9, 1)}[kind]
        assert least <= stats.drafts_accepted / stats.drafts_proposed <= most


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(sorted(PROPOSERS)),
    lengths=st.lists(st.integers(1, 28), min_size=1, max_size=6),
    arrivals=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    options=st.fixed_dictionaries(
        {
            "cache_tokens": st.integers(52, 140),
            "block_size": st.sampled_from([1, 4, 8, 16]),
            "max_batch_tokens": st.integers(1, 40),
            "max_sequences": st.integers(1, 6),
            "prefix_cache": st.booleans(),
            "overlap": st.booleans(),  # steps with drafts do not
        }
    ),
    aborts=st.dictionaries(st.integers(0, 20), st.integers(0, 5), max_size=3),
)
def test_any_load_on_a_small_pool(kind, lengths, arrivals, options, aborts):
    """Chunks, preemptions, shared prefixes and aborts in any mixture; an aborted request has a part of its answer."""
    requests = requests_of(lengths, SAMPLED, arrivals)
    answers = answers_alone(requests)
    proposer, aborted = PROPOSERS[kind](answers), set()

    def abort(engine, step, _):
        name = f"r{aborts.get(step)}"
        if name in engine._requests:
            engine.abort(name)
            aborted.add(name)

    engine, tokens, reasons = run_with(proposer, requests, abort, **options)
    for name in requests:
        assert tokens[name] == (answers[name][: len(tokens[name])] if name in aborted else answers[name])
    assert set(reasons) == set(requests) - aborted
    stats = engine.stats()
    assert stats.drafts_accepted <= stats.drafts_proposed
    assert is_idle(engine) and is_forgotten(proposer)


@pytest.mark.parametrize("params", SAMPLED[:6], ids=range(6))
@pytest.mark.parametrize("num_drafts", [1, 3])
def test_a_draft_model_that_is_the_target_is_always_right(params, num_drafts):
    """Also where the target draws by chance, since drafts are drawn with the same numbers: 1 + k tokens a step."""
    proposer, requests = draft_model(0, num_drafts), {"a": (0, tuple(prompt_of(11, 3)), params)}
    answers = answers_alone(requests)
    engine, tokens, _ = run_with(proposer, requests, cache_tokens=128)
    stats, length = engine.stats(), len(answers["a"])
    assert tokens == answers and length > 1 + num_drafts
    assert stats.steps == 1 + math.ceil((length - 1) / (1 + num_drafts))
    assert stats.drafts_accepted >= length - 1 - math.ceil((length - 1) / (1 + num_drafts))
    if length == params.max_new_tokens:
        assert stats.drafts_accepted == stats.drafts_proposed


def test_drafts_of_another_model_are_mostly_wrong_and_counted_so():
    requests = {"a": (0, tuple(prompt_of(9, 0)), greedy(40))}
    engine, tokens, _ = run_with(draft_model(1, 2), requests, cache_tokens=128)
    assert tokens == answers_alone(requests)
    stats = engine.stats()
    assert stats.steps == 40 - stats.drafts_accepted
    # each step verifies 2 drafts, but for the last ones, which only have room for fewer
    assert 2 * (stats.steps - 1) - 3 <= stats.drafts_proposed <= 2 * (stats.steps - 1)
    assert stats.drafts_accepted < stats.drafts_proposed / 2


def test_a_text_that_repeats_itself_is_foretold_from_the_prompt():
    """The model is made to go round in a circle by its bias, as no random model does by itself."""
    params = greedy(30, logit_bias={token: 1e4 for token in (5,)})
    requests = {"a": (0, tuple(prompt_of(12, 1)), params)}
    engine, tokens, _ = run_with(NgramProposer(5), requests, cache_tokens=128)
    assert tokens == {"a": [5] * 30}
    # 1 from the prompt, two alone until a run of two is known, then 6 a step
    assert engine.stats().steps <= 3 + math.ceil(27 / 6) + 1
    assert engine.stats().drafts_accepted >= 20


@pytest.mark.parametrize("right", [0, 1, 2, 3, 4])
def test_counters_of_drafts(right):
    """Four drafts a step of which `right` are: 1 + right tokens a step until the answer has no room for all four."""
    requests = {"a": (0, tuple(prompt_of(7, 2)), greedy(41))}
    answers = answers_alone(requests)
    seen = []

    def count(engine, *_):
        stats = engine.stats()
        seen.append((stats.drafts_proposed, stats.drafts_accepted, stats.output_tokens))

    run_with(Oracle(answers, 4, right), requests, count, cache_tokens=128)
    whole = [s for s in seen if s[2] <= 37]
    assert whole == [(4 * i, right * i, 1 + (1 + right) * i) for i in range(len(whole))] and len(whole) > 7


@pytest.mark.parametrize("num_drafts", [1, 2, 5, 7])
@pytest.mark.parametrize("new_tokens", [1, 2, 6, 9])
def test_an_answer_never_gets_longer_than_it_may(num_drafts, new_tokens):
    """Right drafts reach its last token in the middle of a step; none is verified that could not stay."""
    longer = {"a": (0, tuple(prompt_of(10, 4)), greedy(30))}
    requests = {"a": (0, tuple(prompt_of(10, 4)), greedy(new_tokens))}
    engine, tokens, reasons = run_with(Oracle(answers_alone(longer), num_drafts), requests, cache_tokens=64)
    assert tokens == answers_alone(requests) and reasons == {"a": "length"}
    stats = engine.stats()
    assert stats.steps == 1 + math.ceil((new_tokens - 1) / (1 + num_drafts))
    assert stats.drafts_proposed == stats.drafts_accepted == new_tokens - stats.steps


@pytest.mark.parametrize("place", [1, 2, 3, 4, 5, 6, 7])
def test_an_end_token_among_right_drafts_ends_the_answer(place):
    """The step that verifies it goes on with right tokens behind it: they are dropped, and count as nothing."""
    prompt = tuple(prompt_of(10, 0))
    everything = tokens_alone(tiny_model(), prompt, greedy(30))
    stop = everything[place]
    assert stop not in everything[:place]
    params = greedy(30, stop_token_ids=(stop,))
    requests = {"a": (0, prompt, params)}
    outputs = []
    engine, tokens, reasons = run_with(
        Oracle({"a": everything}, 3), requests, lambda engine, step, given: outputs.extend(given), cache_tokens=64
    )
    assert tokens == answers_alone(requests) == {"a": everything[: place + 1]} and reasons == {"a": "stop"}
    assert outputs[-1].stop_reason == stop
    # tokens of a step: 1, then four each; accepted are those that are not the last of such a four
    assert engine.stats().drafts_accepted == place - place // 4
    assert is_idle(engine)


def test_the_models_own_end_token_among_drafts():
    """A request that samples its end, found by looking, ends there under speculation too."""
    model, found = tiny_model(), None
    for seed in range(200):
        params = SamplingParams(max_new_tokens=30, temperature=1.3, seed=seed)
        answer = tokens_alone(model, tuple(prompt_of(6, 0)), params)
        if 4 <= len(answer) < 30:
            found = params
            break
    requests = {"a": (0, tuple(prompt_of(6, 0)), found)}
    for kind in PROPOSERS:
        engine, tokens, reasons = run_with(PROPOSERS[kind]({"a": answer}), requests, cache_tokens=64)
        assert tokens == {"a": answer} and answer[-1] == EOS and reasons == {"a": "stop"}, kind
        assert is_idle(engine)


@pytest.mark.parametrize("kind", ["half right", "right", "itself"])
def test_logprobs_belong_to_their_tokens(kind):
    """One per token, as without speculation, also behind accepted drafts and up to an end among them."""
    prompt = tuple(prompt_of(10, 4))
    everything = tokens_alone(tiny_model(), prompt, greedy(20))
    requests = {
        "a": (0, prompt, greedy(20, logprobs=3)),
        "b": (0, prompt, greedy(20, logprobs=0, stop_token_ids=(everything[6],))),
        "c": (1, prompt, greedy(20)),
        "d": (2, prompt, greedy(11, logprobs=2, temperature=1.0, seed=4)),
    }

    def logprobs_with(proposer):
        seen = {name: [] for name in requests}

        def collect(engine, step, outputs):
            for output in outputs:
                if output.logprobs is None:
                    assert requests[output.request_id][2].logprobs is None
                else:
                    assert len(output.logprobs) == len(output.token_ids)
                    seen[output.request_id] += output.logprobs

        _, tokens, _ = run_with(proposer, requests, collect, cache_tokens=256)
        return tokens, seen

    plain_tokens, plain = logprobs_with(None)
    tokens, seen = logprobs_with(PROPOSERS[kind](plain_tokens))
    assert tokens == plain_tokens and not seen["c"] and len(seen["b"]) == 7
    for name in requests:
        assert [p.token_id for p in seen[name]] == (tokens[name] if name != "c" else [])
        assert [p.logprob for p in seen[name]] == pytest.approx([p.logprob for p in plain[name]], abs=1e-5)
        assert [[i for i, _ in p.alternatives] for p in seen[name]] == [
            [i for i, _ in p.alternatives] for p in plain[name]
        ]


def test_an_abort_between_steps_forgets_the_request():
    requests = requests_of([9, 12], [greedy(30)])
    for kind in ("ngram", "itself", "half right"):
        proposer = PROPOSERS[kind](answers_alone(requests))

        def abort(engine, step, _):
            if step == 2:
                engine.abort("r0")

        engine, tokens, _ = run_with(proposer, requests, abort, cache_tokens=128)
        assert tokens["r1"] == answers_alone(requests)["r1"] and 0 < len(tokens["r0"]) < 30
        assert is_idle(engine) and is_forgotten(proposer)


def test_an_error_in_a_step_costs_no_token():
    """The model fails once in the middle: proposers start anew, and the answers are the same."""
    model, requests = tiny_model(), requests_of([9, 12, 5], [greedy(20), SAMPLED[2]])
    answers = answers_alone(requests)

    class FailsOnce:
        calls = 0

        def __getattr__(self, name):
            return getattr(model, name)

        def __call__(self, batch, caches):
            self.calls += 1
            if self.calls == 4:
                raise RuntimeError("once")
            return model(batch, caches)

    for kind in ("ngram", "itself", "half right"):
        proposer = PROPOSERS[kind](answers)
        engine = Engine(FailsOnce(), speculation=proposer, cache_tokens=256, check=True)
        for name, (_, prompt, params) in requests.items():
            engine.add(name, list(prompt), params)
        tokens, failures = {name: [] for name in requests}, 0
        while engine.has_unfinished:
            try:
                for output in engine.step():
                    tokens[output.request_id] += output.token_ids
            except RuntimeError:
                failures += 1
                assert is_forgotten(proposer)
        assert tokens == answers and failures == 1
