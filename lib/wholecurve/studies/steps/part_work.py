"""Bytes and FLOPs of each part of a step: what its products read and compute, part by part.

Sums over the parts are those of `decode_work` and `prefill_work`, but for the last layer of a prefill: after its keys
and values only the rows whose logits are wanted go on, so the bound counts no others.
"""

from wholecurve.models.config import ModelConfig
from wholecurve.studies.steps.work import StepWork

# As the native form names its timers, in its order (Part of models/native/step.hpp)
PARTS = ("embedding", "norm", "qkv", "attention", "output", "gate_up", "down", "head", "waiting")
WORKING = ("qkv", "attention", "output", "gate_up", "down", "head")  # parts with FLOPs
OUTSIDE = "outside"  # of all timers: the call, planning, threads that begin late, reading the timers


def decode_part_work(config: ModelConfig, itemsize: int, requests: int, context: int) -> dict[str, StepWork]:
    """Work of each part of a step of `requests` sequences, one new token each, over `context` cached tokens each."""
    pairs = requests * (context + 1)
    return part_work(config, itemsize, requests, requests, requests, pairs, pairs, requests * context)


def prefill_part_work(
    config: ModelConfig, itemsize: int, tokens: int, last_layer_rows: int | None = 1
) -> dict[str, StepWork]:
    """Work of each part of a step of one sequence of `tokens` new tokens and no cached ones, one row of logits.

    last_layer_rows: the last tokens that go on after the last layer's keys and values; None for all, as
    `ModelConfig.prefill_flops` counts.
    """
    last = tokens if last_layer_rows is None else last_layer_rows
    earlier = tokens - last
    pairs, before = tokens * (tokens + 1) // 2, earlier * (earlier + 1) // 2
    return part_work(config, itemsize, tokens, last, 1, pairs, pairs - before, 0)


def part_work(
    config: ModelConfig,
    itemsize: int,
    tokens: int,
    last_layer_tokens: int,
    logits_rows: int,
    pairs: int,
    last_layer_pairs: int,
    cached_tokens: int,
) -> dict[str, StepWork]:
    """{part: StepWork} of a step; "embedding" and "waiting" have no work, their bytes are read as the head's or none.

    pairs: unmasked pairs of a query token and a key, per layer. cached_tokens: those of all sequences together, whose
    keys and values are read once. Weights are counted at `itemsize` bytes, norms included, each once.
    """
    c, inner = config, config.num_layers - 1
    wide, key_value = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    all_tokens, last_reduced = tokens * c.num_layers, tokens * inner + last_layer_tokens

    def product(elements: int, rows: int, matrices: int = c.num_layers) -> StepWork:
        return StepWork(itemsize * elements * matrices, 2.0 * elements * rows)

    attention = 4.0 * wide * (pairs * inner + last_layer_pairs)  # scores and weighted sum of values
    return {
        "embedding": StepWork(0, 0.0),
        "norm": StepWork(itemsize * c.hidden_size * (2 * c.num_layers + 1), 0.0),
        "qkv": product(c.hidden_size * (wide + 2 * key_value), all_tokens),
        "attention": StepWork(cached_tokens * c.kv_bytes_per_token(itemsize), attention),
        "output": product(wide * c.hidden_size, last_reduced),
        "gate_up": product(2 * c.hidden_size * c.intermediate_size, last_reduced),
        "down": product(c.intermediate_size * c.hidden_size, last_reduced),
        "head": product(c.vocab_size * c.hidden_size, logits_rows, 1),
        "waiting": StepWork(0, 0.0),
    }


def turning_rows(itemsize: int, read_bytes_per_s: float, gemm_flops_per_s: float) -> float:
    """Rows of a product from which on arithmetic bounds it: a weight of `itemsize` bytes costs 2 FLOPs per row."""
    return itemsize / 2 * gemm_flops_per_s / read_bytes_per_s
