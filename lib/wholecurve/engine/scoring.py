"""Logits of a given continuation: what the model thinks of tokens that somebody else chose."""

import torch

from wholecurve.engine.cache import BlockPool, allocate_cache
from wholecurve.engine.runner import Runner
from wholecurve.engine.sampling import SamplingParams
from wholecurve.engine.scheduler import ScheduledStep
from wholecurve.engine.sequence import Sequence
from wholecurve.models.llama import Llama

_BLOCK_SIZE = 16


@torch.inference_mode()
def continuation_logits(model: Llama, prompt_ids: list[int], tokens: list[int]) -> torch.Tensor:
    """Logits [len(tokens), vocab_size] that decide each of `tokens`, given the prompt and the tokens before it."""
    token_ids = prompt_ids + tokens[:-1]
    sequence = Sequence("score", token_ids, SamplingParams(max_new_tokens=1))
    pool = BlockPool(-(-len(token_ids) // _BLOCK_SIZE), _BLOCK_SIZE)
    sequence.blocks = pool.take(pool.num_blocks)
    cache = allocate_cache(model.config, pool.num_blocks, _BLOCK_SIZE, model.dtype, model.device)
    batch, _ = Runner(model, cache, _BLOCK_SIZE).build(ScheduledStep([], [(sequence, len(token_ids))]))
    first = len(prompt_ids) - 1
    batch.logits_rows = torch.arange(first, first + len(tokens), device=model.device)
    return model(batch, cache)
