"""The requests of a study, from the seed alone: the same for every contender, unique across levels and repeats."""

import numpy as np

from wholecurve.studies.plan_parts import BatchPlan, DecodePlan, PrefillPlan
from wholecurve.studies.request import Request


def _generator(seed: int, *parts: int) -> np.random.Generator:
    return np.random.default_rng([seed, *parts])


def _prompt(rng: np.random.Generator, length: int, vocab_size: int) -> list[int]:
    # Low ids are special tokens in every tokenizer of this family; a prompt is made of ordinary ones.
    low = min(64, vocab_size // 2)
    return rng.integers(low, vocab_size, size=length).tolist()


def decode_requests(plan: DecodePlan, seed: int, concurrency: int, repeat: int, vocab_size: int) -> list[Request]:
    """Requests of one decode point, in the order in which they are sent."""
    rng = _generator(seed, 1, concurrency, repeat)
    requests = []
    for index in range(concurrency * plan.requests_per_slot):
        length = int(rng.integers(plan.prompt_tokens[0], plan.prompt_tokens[1] + 1))
        output = int(rng.integers(plan.output_tokens[0], plan.output_tokens[1] + 1))
        requests.append(Request(f"r{index:04d}", _prompt(rng, length, vocab_size), output))
    return requests


def warm_up_requests(concurrency: int, prompt_tokens: int, seed: int, vocab_size: int) -> list[Request]:
    """Discarded requests that are sent before a point: one per slot, a few tokens each, prompts of their own."""
    rng = _generator(seed, 2, concurrency, prompt_tokens)
    return [Request(f"w{i:04d}", _prompt(rng, prompt_tokens, vocab_size), 4) for i in range(concurrency)]


def prefill_requests(plan: PrefillPlan, seed: int, step_tokens: int, repeat: int, vocab_size: int) -> list[Request]:
    """Requests of one prefill point: prompts of exactly `step_tokens`, one generated token."""
    rng = _generator(seed, 3, step_tokens, repeat)
    return [Request(f"r{i:04d}", _prompt(rng, step_tokens, vocab_size), 1) for i in range(plan.requests)]


def batch_requests(plan: BatchPlan, seed: int, concurrency: int, repeat: int, vocab_size: int) -> list[Request]:
    """Requests of one batch point, batch after batch, all of the same lengths."""
    rng = _generator(seed, 5, concurrency, repeat)
    count = concurrency * plan.batches(concurrency)
    return [
        Request(f"r{i:04d}", _prompt(rng, plan.prompt_tokens, vocab_size), plan.output_tokens) for i in range(count)
    ]
