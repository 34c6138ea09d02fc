"""Logits of a given continuation: what the model thinks of tokens that somebody else chose."""

import torch

from wholecurve.engine.batching import single_batch

_BLOCK_SIZE = 16


@torch.inference_mode()
def continuation_logits(model, prompt_ids: list[int], tokens: list[int]) -> torch.Tensor:
    """Logits [len(tokens), vocab_size] that decide each of `tokens`, given the prompt and the tokens before it."""
    token_ids = prompt_ids + tokens[:-1]
    num_blocks = -(-len(token_ids) // _BLOCK_SIZE)
    caches = [spec.allocate(num_blocks, _BLOCK_SIZE, model.dtype, model.device) for spec in model.cache_specs]
    first = len(prompt_ids) - 1
    rows = list(range(first, first + len(tokens)))
    blocks, sizes = [list(range(num_blocks))] * len(caches), [_BLOCK_SIZE] * len(caches)
    return model(single_batch(token_ids, 0, blocks, sizes, model.device, rows), caches)
