"""Our Llama against transformers' on tiny random checkpoints that transformers wrote."""

import pytest
import torch
from tiny_checkpoints import error_of_spread, largest_error, logits_by_chunks, transformers_model

from wholecurve.models.folder import read_folder
from wholecurve.models.llama import build_llama

SHAPES = {
    "as many kv heads as heads, untied": {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "3 heads per kv head, wide heads": {
        "hidden_size": 96,
        "num_attention_heads": 6,
        "head_dim": 32,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
    },
    "one kv head, narrow heads, small base": {
        "num_key_value_heads": 1,
        "head_dim": 8,
        "rope_theta": 50.0,
        "rms_norm_eps": 0.1,
        "tie_word_embeddings": False,
    },
    "one layer, tied": {"num_hidden_layers": 1, "rope_theta": 500000.0},
}
PROMPT = [(7 * i * i + 3 * i + 1) % 97 for i in range(37)]
WAYS = {
    "full prefill": [37],
    "chunks within and across blocks": [1, 3, 4, 5, 8, 9, 7],
    "chunks of one": [1] * 37,
    "token by token": [1] + ["decode"] * 36,
    "prefill, then decode": [20] + ["decode"] * 17,
}

# float32: u = 2^-24. Measured with these shapes: at most 2.3e-6 of the largest logit; real faults give 1e-2 and more.
FLOAT32_ERROR = 5e-6
# bfloat16: u = 2^-9. A layer rounds some 14 times and multiplies with 7 rounded matrices; an error of about u / 2 each,
# at random, is sqrt(2 · 21) · 2^-10 = 0.6 % of the spread after two layers, and the sharp attention of these models
# magnifies it about threefold. Measured: 1.3 to 2.0 %, and 1.4 to 2.2 % for transformers' own bfloat16.
BFLOAT16_ERROR = 0.03
BFLOAT16_OVER_TRANSFORMERS = 1.25


@pytest.fixture(scope="module", params=SHAPES, ids=lambda name: name.replace(" ", "_"))
def checkpoint(request, tmp_path_factory):
    """(config, weights, transformers' logits [T, vocab] in float32, and in bfloat16) of one shape."""
    theirs = transformers_model(seed=len(request.param), **SHAPES[request.param])
    folder = tmp_path_factory.mktemp("tiny")
    theirs.save_pretrained(folder)
    with torch.inference_mode():
        expected = theirs(torch.tensor([PROMPT])).logits[0]
        rounded = theirs.to(torch.bfloat16)(torch.tensor([PROMPT])).logits[0]
    return *read_folder(folder), expected, rounded


@pytest.mark.parametrize("way", WAYS)
def test_float32_logits_equal_transformers(checkpoint, way):
    """Whatever the chunks."""
    config, weights, expected, _ = checkpoint
    logits = logits_by_chunks(build_llama(config, weights, torch.float32), PROMPT, WAYS[way])
    assert largest_error(logits, expected) < FLOAT32_ERROR


@pytest.mark.parametrize("way", ["full prefill", "prefill, then decode"])
def test_bfloat16_logits_are_near_transformers_float32(checkpoint, way):
    config, weights, expected, rounded = checkpoint
    logits = logits_by_chunks(build_llama(config, weights, torch.bfloat16), PROMPT, WAYS[way])
    assert logits.dtype == torch.bfloat16
    error = error_of_spread(logits, expected)
    assert error < BFLOAT16_ERROR
    assert error < BFLOAT16_OVER_TRANSFORMERS * error_of_spread(rounded, expected)


@pytest.mark.parametrize("block_size", [1, 8, 16])
def test_block_size_changes_nothing(checkpoint, block_size):
    config, weights, expected, _ = checkpoint
    model = build_llama(config, weights, torch.float32)
    logits = logits_by_chunks(model, PROMPT, WAYS["prefill, then decode"], block_size)
    assert largest_error(logits, expected) < FLOAT32_ERROR


def test_later_tokens_do_not_reach_earlier_logits(checkpoint):
    config, weights, _, _ = checkpoint
    model = build_llama(config, weights, torch.float32)
    changed = PROMPT[:20] + [5] * 17
    assert torch.equal(logits_by_chunks(model, PROMPT, [37])[:20], logits_by_chunks(model, changed, [37])[:20])


def test_the_number_of_parameters_is_that_of_torch(checkpoint):
    config, weights, _, _ = checkpoint
    model = build_llama(config, weights, torch.float32)
    assert config.num_parameters == sum(p.numel() for p in model.parameters())
    assert config.num_layer_parameters == sum(p.numel() for p in model.layers.parameters())
