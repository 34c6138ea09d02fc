"""SmolLM2-135M against transformers. Slow (about 25 s): both sides dequantise 98 MB of Q4_1 weights once."""

import pytest
import torch
from tiny_checkpoints import error_of_spread, largest_error, logits_by_chunks

from wholecurve.models.folder import read_folder
from wholecurve.models.gguf_file import read_gguf
from wholecurve.models.llama import build_llama

pytestmark = pytest.mark.real_model

PROMPTS = {
    "random ids": [(7919 * i * i + 104729 * i + 17) % 49152 for i in range(40)],
    # the 40 first tokens of a sentence about a ferryman on a rising river
    "english": [
        504, 4626, 761, 719, 7551, 327, 1296, 2009, 645, 260, 1573, 31936, 1483, 5087, 6454, 288, 1188, 601, 1699, 28,
        284, 14938, 281, 260, 6560, 4484, 338, 260, 1838, 9741, 736, 2042, 1690, 1056, 288, 260, 10393, 1163, 1092, 260,
    ],
}  # fmt: skip

# Bits are the same today (measured: 0.0). Another CPU sums in another order; the bfloat16 error below, scaled from
# u = 2^-9 to u = 2^-24, says 1.2e-6.
FLOAT32_ERROR = 1e-5
# Measured on 40 tokens, root mean square error over spread: 2.9 % (english) and 6.3 % (random ids), which is 1.0 to 1.2
# times what transformers' own bfloat16 gives (30 layers of 21 roundings of u / 2: sqrt(630) · 2^-10 = 2.5 %).
BFLOAT16_ERROR = 0.1
BFLOAT16_OVER_TRANSFORMERS = 1.5


@pytest.fixture(scope="module")
def transformers_logits(real_model_files):
    """Prompt name -> transformers' logits [40, 49152] from its own reading of the GGUF, in float32 and in bfloat16."""
    import transformers.modeling_utils
    from transformers import AutoModelForCausalLM

    path = real_model_files.gguf
    with pytest.MonkeyPatch.context() as patch:
        # it asks for accelerate, which only its placement on several devices uses
        patch.setattr(transformers.modeling_utils, "is_accelerate_available", lambda *_: True)
        model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    with torch.inference_mode():
        wide = {name: model(torch.tensor([ids])).logits[0] for name, ids in PROMPTS.items()}
        model.to(torch.bfloat16)
        return wide, {name: model(torch.tensor([ids])).logits[0] for name, ids in PROMPTS.items()}


@pytest.fixture(scope="module")
def models(real_weights):
    return {dtype: build_llama(*real_weights, dtype) for dtype in (torch.float32, torch.bfloat16)}


@pytest.mark.parametrize("chunks", [[40], [17, 16] + ["decode"] * 7], ids=["full", "chunks_and_decode"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_float32_logits_equal_transformers(models, transformers_logits, prompt, chunks):
    expected = transformers_logits[0][prompt]
    logits = logits_by_chunks(models[torch.float32], PROMPTS[prompt], chunks, block_size=16)
    assert largest_error(logits, expected) < FLOAT32_ERROR


@pytest.mark.parametrize("prompt", PROMPTS)
def test_bfloat16_logits_are_near_transformers_float32(models, transformers_logits, prompt):
    expected, theirs = (logits[prompt] for logits in transformers_logits)
    logits = logits_by_chunks(models[torch.bfloat16], PROMPTS[prompt], [40], block_size=16)
    error = error_of_spread(logits, expected)
    assert error < BFLOAT16_ERROR
    assert error < BFLOAT16_OVER_TRANSFORMERS * error_of_spread(theirs, expected)


def test_the_parameters_are_those_of_the_model_card(models, real_weights):
    config, _ = real_weights
    assert config.num_parameters == 134_515_008
    assert config.num_parameters == sum(p.numel() for p in models[torch.float32].parameters())


def test_derived_forms_hold_the_same_weights(real_model_files, real_weights):
    """The F16 folder and the F16 GGUF are equal to each other bit for bit, and are the source rounded once."""
    config, source = real_weights
    folder_config, in_folder = read_folder(real_model_files.hf_folder())
    gguf_config, in_gguf = read_gguf(real_model_files.f16_gguf())
    assert config == folder_config == gguf_config
    assert in_folder.keys() == in_gguf.keys() == source.keys()
    for name, weight in source.items():
        assert torch.equal(in_folder[name], weight.half()), name
        assert torch.equal(in_gguf[name], in_folder[name].float()), name
