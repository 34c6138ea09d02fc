"""Tokenizers: loading and the chat template."""

import pytest

from wholecurve.errors import UserError
from wholecurve.models.tokenizer import chat_prompt_ids, load_tokenizer, save_tokenizer_of_gguf


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(UserError, match="no tokenizer") as error:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_broken_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match="its tokenizer cannot be read") as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


def test_a_gguf_without_a_tokenizer(tmp_path):
    from tiny_checkpoints import transformers_model, write_tiny_gguf

    path = write_tiny_gguf(tmp_path / "tiny.gguf", transformers_model())
    with pytest.raises(UserError, match="its tokenizer cannot be read") as error:
        save_tokenizer_of_gguf(path, tmp_path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.real_model
def test_the_tokenizer_of_smollm2(real_model_files):
    """Converted from the GGUF; the template ends with the opening of the answer."""
    tokenizer = load_tokenizer(real_model_files.hf_folder())
    ids = chat_prompt_ids(tokenizer, "Hello, 漢字!")
    assert tokenizer.decode(ids).endswith("<|im_start|>user\nHello, 漢字!<|im_end|>\n<|im_start|>assistant\n")
    assert ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>") == 1


def test_without_a_template_the_text_is_the_prompt():
    class Plain:
        chat_template = None

        def encode(self, text):
            return list(text.encode())

    assert chat_prompt_ids(Plain(), "hi") == [104, 105]
