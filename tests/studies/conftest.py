"""A tiny random model on disk and a plan that measures it in seconds."""

import pytest
import yaml


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """Hugging Face folder of a random two-layer Llama without a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture
def plan_document(tiny_folder):
    """A plan of two contenders of our engine, as a dictionary to change."""
    return {
        "name": "tiny",
        "model": str(tiny_folder),
        "dtype": "float32",
        "threads": 1,
        "seed": 3,
        "repeats": 2,
        "contenders": [
            {"name": "ours", "engine": "wholecurve"},
            {"name": "ours again", "engine": "wholecurve", "control_of": "ours"},
        ],
        "decode": {
            "concurrency": [1, 2, 4], "requests_per_slot": 3, "prompt_tokens": [5, 9], "output_tokens": [4, 8],
        },
        "prefill": {"step_tokens": [16, 32], "requests": 2},
        "agreement": {"tokens": 4},
    }  # fmt: skip


@pytest.fixture
def write_plan(tmp_path):
    """Write a plan document to a file and return its path."""

    def write(document, name="plan.yaml"):
        path = tmp_path / name
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return path

    return write
