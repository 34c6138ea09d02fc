"""What a machine's ceilings allow a model at most: upper bounds, never measurements."""

from dataclasses import dataclass

from wholecurve.models.config import ModelConfig


@dataclass(frozen=True)
class Ceilings:
    """Bytes read per second and FLOPs per second that were measured (or are printed) for a device."""

    read_bytes_per_s: float
    gemm_flops_per_s: float


def decode_bound(
    config: ModelConfig,
    ceilings: Ceilings,
    itemsize: int,
    concurrency: int,
    prompt_tokens: float,
    output_tokens: float,
) -> dict[str, float]:
    """Highest decode speed [tok/s/user] and closed-loop output throughput [tok/s] at `concurrency`.

    A decode step reads every weight once and the keys and values of all sequences, at a mean context of prompt plus
    half the output, and does the FLOPs of `concurrency` rows; it cannot be faster than the slower of the two. The
    first token of a request comes from its prefill, the other n − 1 of `output_tokens` n from decode steps; the FLOPs
    of the prefill bound the throughput but not the speed.
    """
    context = prompt_tokens + output_tokens / 2
    read = config.weight_bytes_per_step(itemsize) + concurrency * context * config.kv_bytes_per_token(itemsize)
    flops = config.decode_flops(concurrency, context)
    step_s = max(read / ceilings.read_bytes_per_s, flops / ceilings.gemm_flops_per_s)
    decoded = (output_tokens - 1) / output_tokens  # share of the output tokens that decode steps make
    prefill_flops = config.prefill_flops(round(prompt_tokens)) / output_tokens
    token_s = max(
        decoded * read / concurrency / ceilings.read_bytes_per_s,
        (decoded * flops / concurrency + prefill_flops) / ceilings.gemm_flops_per_s,
    )
    return {"decode_speed_tok_per_s": 1 / step_s, "output_throughput_tok_per_s": 1 / token_s}


def prefill_bound(config: ModelConfig, ceilings: Ceilings, itemsize: int, step_tokens: int) -> dict[str, float]:
    """Highest input throughput [tok/s] of one prompt of `step_tokens` from an empty cache."""
    read_s = config.weight_bytes_per_step(itemsize) / ceilings.read_bytes_per_s
    step_s = max(read_s, config.prefill_flops(step_tokens) / ceilings.gemm_flops_per_s)
    return {"input_throughput_tok_per_s": step_tokens / step_s}
