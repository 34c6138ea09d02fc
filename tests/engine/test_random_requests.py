"""Thousands of random requests: nothing lost, nothing leaked, and every answer that of a plain sequential run.

Requests of random lengths, priorities, salts and ends come at random moments, share beginnings, and are aborted in the
midst of whatever they are doing, in engines so small that they are preempted all the time. WHOLECURVE_RANDOM_REQUESTS
sets how many run (10,000 in about half a minute on one core).
"""

import functools
import os

import numpy as np
import pytest
import torch
from tiny_engine import greedy, is_idle
from toy_hybrid import (
    EOS,
    FULL,
    GARBAGE,
    HYBRID,
    LATENT,
    STATE,
    VOCABULARY,
    ScriptedProposer,
    ToyModel,
    history_of,
    plain_tokens,
    toy_prompt,
    window_of,
)

from wholecurve.engine import Engine
from wholecurve.models.config import ModelConfig
from wholecurve.models.llama import build_llama

NUM_REQUESTS = int(os.environ.get("WHOLECURVE_RANDOM_REQUESTS", "10000"))

# (cache groups, options of the engine, most drafts); the first has room for all, the others for two or three requests
ENGINES = {
    "plain": ((FULL,), {"cache_tokens": 1024}, 0),
    "tiny pool": ((FULL,), {"cache_tokens": 64}, 0),
    "tiny pool, drafts": ((FULL,), {"cache_tokens": 64}, 3),
    "blocks of one token": ((FULL,), {"cache_tokens": 62, "block_size": 1}, 2),
    "window": ((FULL, window_of(6)), {"cache_tokens": 80}, 0),
    "windows alone": ((window_of(9), window_of(4)), {"cache_tokens": 60, "block_size": (2, 4)}, 3),
    "states": ((STATE,), {"cache_tokens": 64}, 2),
    "hybrid": (HYBRID, {"cache_tokens": 64}, 0),
    "hybrid, drafts": (HYBRID, {"cache_tokens": 72}, 3),
    "block sizes": ((FULL, window_of(10), LATENT, STATE), {"cache_tokens": 72, "block_size": (4, 2, 6, 1)}, 2),
    "latent and history": ((LATENT, window_of(1), history_of(3)), {"cache_tokens": 60, "block_size": 3}, 3),
}
MODES = {"one by one": {}, "overlap": {"overlap": True}, "no prefix cache": {"prefix_cache": False}}


@functools.cache
def prompts():
    """Distinct prompts of 1 to 40 tokens, most of them continuations of a few beginnings."""
    random = np.random.default_rng(0)
    beginnings = [toy_prompt(length, 100 + length) for length in (8, 16, 17, 24)]
    made = [toy_prompt(int(random.integers(1, 41)), i) for i in range(12)]
    for i in range(36):
        beginning = beginnings[random.integers(len(beginnings))]
        made.append(beginning[: random.integers(1, len(beginning) + 1)] + toy_prompt(int(random.integers(0, 17)), i))
    return [tuple(prompt) for prompt in made]


class Client:
    """Sends requests to an engine, aborts some, and takes down what comes back.

    expected: (prompt, params) -> tokens of a plain run. texts: filled with them, for a proposer to draft from.
    """

    def __init__(self, engine, random, expected, texts):
        self.engine, self.random, self.expected, self.texts = engine, random, expected, texts
        self.requests, self.given, self.ended, self.aborted = {}, {}, {}, set()

    def send(self):
        random, name = self.random, f"r{len(self.requests)}"
        prompt = prompts()[random.integers(len(prompts()))]
        params = some_params(random)
        tokens = self.expected(prompt, params)
        self.texts[name] = (prompt, tokens)
        salt = ("", "salt")[random.integers(2)]
        self.engine.add(name, list(prompt), params, priority=int(random.integers(3)), cache_salt=salt)
        self.requests[name], self.given[name] = (tokens, params), []

    def abort_one(self):
        if alive := list(self.engine._requests):
            name = alive[self.random.integers(len(alive))]
            self.engine.abort(name)
            self.aborted.add(name)

    def step(self):
        for output in self.engine.step():
            assert output.request_id not in self.ended and output.request_id not in self.aborted, "news of the dead"
            self.given[output.request_id] += output.token_ids
            if output.finish_reason:
                self.ended[output.request_id] = output.finish_reason

    def check(self):
        assert self.ended.keys() | self.aborted == self.requests.keys(), "requests were lost"
        for name, (tokens, params) in self.requests.items():
            if name in self.aborted:
                assert self.given[name] == tokens[: len(self.given[name])], name
            else:
                ends = (*params.stop_token_ids, *(() if params.ignore_eos else (EOS,)))
                reason = "stop" if tokens[-1] in ends else "length"
                assert (self.given[name], self.ended[name]) == (tokens, reason), name


def run_requests(client, count):
    """Send `count` requests over time and step until all have ended."""
    engine, random, steps = client.engine, client.random, 0
    while len(client.requests) < count or engine.has_unfinished:
        while len(client.requests) < count and len(engine._requests) < 9 and random.random() < 0.6:
            client.send()
        for chance in (0.04, 0.02):  # between two steps, and while one may be in flight
            if random.random() < chance:
                client.abort_one()
            client.step()
        if not engine.overlap:  # a step in flight may still read what is free by now
            for group, (pool, cache) in enumerate(zip(engine.cache.pools, engine.runner.caches, strict=True)):
                if pool is not None:  # a state that is yet to be copied is still needed
                    ordered = {source for index, source, _ in engine.cache.copies if index == group}
                    poison(cache, [block for block in pool._free if block not in ordered])
        steps += 1
        assert steps < 100 * count + 1000, "the engine spins"
    client.check()
    assert is_idle(engine)


def poison(cache, blocks):
    """Fill blocks that nobody has, so that whoever reads one is found out."""
    tensors = [cache] if isinstance(cache, torch.Tensor) else cache.keys + cache.values
    for tensor in tensors:
        tensor[blocks] = torch.nan if tensor.is_floating_point() else GARBAGE


def some_params(random):
    ends = {} if random.random() < 0.5 else {"ignore_eos": False, "stop_token_ids": (int(random.integers(VOCABULARY)),)}
    return greedy(int(random.integers(1, 13)), **ends)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ENGINES)
def test_random_requests(name, mode):
    specs, options, max_drafts = ENGINES[name]
    random, texts = np.random.default_rng(sum(map(ord, name + mode))), {}
    if mode == "overlap":
        max_drafts = 0  # steps with drafts run one by one
    engine = Engine(
        ToyModel(specs),
        check=True,
        max_batch_tokens=int(random.integers(6, 40)),
        max_sequences=5,
        speculation=ScriptedProposer(texts, max_drafts) if max_drafts else None,
        **{"block_size": 4, "prefix_cache": True, **options, **MODES[mode]},
    )
    run_requests(
        Client(engine, random, functools.partial(plain_tokens, specs), texts),
        -(-NUM_REQUESTS // (len(ENGINES) * len(MODES))),
    )
    stats = engine.stats()
    assert (stats.prefix_hit_tokens > 0) == (mode != "no prefix cache")
    assert (stats.drafts_accepted > 0) == (max_drafts > 0)
    if name != "plain" and (FULL in specs or LATENT in specs):
        assert stats.preemptions > 0


@functools.cache
def smallest_llama():
    """One layer, hidden size 16."""
    config = ModelConfig(VOCABULARY, 16, 24, 1, 2, 1, 8, 1e-5, 500.0, 128, False, None, (EOS,))
    generator = torch.Generator().manual_seed(3)

    def matrix(rows, columns, scale=1.5):
        return torch.randn(rows, columns, generator=generator) * scale / columns**0.5

    prefix = "model.layers.0"
    weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, 16, 4),
        "lm_head.weight": matrix(VOCABULARY, 16),
        "model.norm.weight": torch.ones(16),
        f"{prefix}.input_layernorm.weight": torch.ones(16),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(16),
        f"{prefix}.self_attn.q_proj.weight": matrix(16, 16, 3),
        f"{prefix}.self_attn.k_proj.weight": matrix(8, 16, 3),
        f"{prefix}.self_attn.v_proj.weight": matrix(8, 16),
        f"{prefix}.self_attn.o_proj.weight": matrix(16, 16),
        f"{prefix}.mlp.gate_proj.weight": matrix(24, 16),
        f"{prefix}.mlp.up_proj.weight": matrix(24, 16),
        f"{prefix}.mlp.down_proj.weight": matrix(16, 24),
    }
    return build_llama(config, weights, torch.float32)


@functools.cache
def llama_alone(prompt, params):
    engine = Engine(smallest_llama(), cache_tokens=64, max_sequences=1)
    return engine.generate([list(prompt)], params)[0]


@pytest.mark.parametrize("mode", MODES)
def test_random_requests_on_real_kernels(mode):
    random = np.random.default_rng(1)
    engine = Engine(
        smallest_llama(), check=True, cache_tokens=64, max_batch_tokens=24, max_sequences=5,
        **{"block_size": 4, "prefix_cache": True, **MODES[mode]},
    )  # fmt: skip
    run_requests(Client(engine, random, llama_alone, {}), NUM_REQUESTS // 100)
    assert engine.stats().preemptions > 0
