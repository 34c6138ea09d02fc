"""A tiny random Llama and helpers that run requests through an engine, alone or among others."""

import functools

import torch

from wholecurve.engine import Engine, SamplingParams
from wholecurve.models.config import ModelConfig
from wholecurve.models.llama import build_llama

VOCABULARY = 61
EOS = 7


@functools.cache
def tiny_model(dtype=torch.float32, num_heads=6, num_kv_heads=2, head_dim=8, max_position=128, seed=0):
    """Two layers, an attention far from uniform, greedy continuations that do not settle on one token."""
    config = ModelConfig(
        VOCABULARY, 40, 56, 2, num_heads, num_kv_heads, head_dim, 1e-5, 500.0, max_position, False, None, (EOS,)
    )
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows, columns, scale=1.5):
        return torch.randn(rows, columns, generator=generator) * scale / columns**0.5

    weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, 40, 40**0.5),
        "lm_head.weight": matrix(VOCABULARY, 40),
        "model.norm.weight": torch.ones(40),
    }
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": torch.ones(40),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(40),
            f"{prefix}.self_attn.q_proj.weight": matrix(num_heads * head_dim, 40),
            f"{prefix}.self_attn.k_proj.weight": matrix(num_kv_heads * head_dim, 40),
            f"{prefix}.self_attn.v_proj.weight": matrix(num_kv_heads * head_dim, 40),
            f"{prefix}.self_attn.o_proj.weight": matrix(40, num_heads * head_dim),
            f"{prefix}.mlp.gate_proj.weight": matrix(56, 40),
            f"{prefix}.mlp.up_proj.weight": matrix(56, 40),
            f"{prefix}.mlp.down_proj.weight": matrix(40, 56),
        }
    return build_llama(config, weights, dtype)


def prompt_of(length, seed):
    """`length` token ids that differ from those of every other seed, also in their first tokens."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()


@functools.cache
def tokens_alone(model, prompt, params):
    """What a request gives in an engine of its own, in one prefill. prompt: a tuple."""
    engine = Engine(model, cache_tokens=256, block_size=16, max_batch_tokens=256, max_sequences=1, check=True)
    return engine.generate([list(prompt)], params)[0]


def run_with_arrivals(engine, requests, on_step=None):
    """Tokens and finish reason per request id. requests: {id: (arrival step, prompt, params)}.

    Steps until nothing is left, at most 2,000 times. on_step(engine, step number, outputs) is called after each.
    """
    tokens, reasons = {name: [] for name in requests}, {}
    waiting = sorted(requests.items(), key=lambda item: item[1][0])
    for step in range(2000):
        while waiting and waiting[0][1][0] <= step:
            name, (_, prompt, params) = waiting.pop(0)
            engine.add(name, list(prompt), params)
        outputs = engine.step()
        for output in outputs:
            tokens[output.request_id] += output.token_ids
            if output.finish_reason:
                reasons[output.request_id] = output.finish_reason
        if on_step:
            on_step(engine, step, outputs)
        if not waiting and not engine.has_unfinished:
            return tokens, reasons
    raise AssertionError("the engine spins")


def is_idle(engine):
    """Whether nothing is left of any request: no block in use, no row taken, nothing to do."""
    stats = engine.stats()
    assert stats.blocks_free + stats.blocks_cached + stats.blocks_used == stats.blocks_total
    engine.scheduler.check_integrity()
    return not stats.blocks_used and not stats.running and not stats.waiting and engine.step() == []


def record_logits(engine):
    """{request: {place of a token in the answer: the logits [vocab] that decided it}}, filled while the engine runs."""
    logits, sample = {}, engine.runner.sampler.sample

    def recorded(step_logits, rows, argmax=None):
        names = {sequence.sampling: name for name, sequence in engine._requests.items()}
        for values, row in zip(step_logits, rows, strict=True):
            logits.setdefault(names[row.request], {})[row.output_index] = values.clone()
        return sample(step_logits, rows, argmax)

    engine.runner.sampler.sample = recorded
    return logits


def greedy(max_new_tokens, **others):
    """Greedy parameters that run to the end."""
    return SamplingParams(max_new_tokens=max_new_tokens, **{"ignore_eos": True, **others})
