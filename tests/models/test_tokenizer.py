"""Tokenizers: loading, the chat template, and text that comes in pieces."""

import pytest

from wholecurve.errors import UserError
from wholecurve.models.tokenizer import (
    chat_prompt_ids,
    load_tokenizer,
    save_tokenizer_of_gguf,
    stream_text,
)


class Bytes:
    """A tokenizer whose tokens are bytes; 0 is special."""

    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return bytes(i for i in ids if i).decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", ["plain", "naïve – 漢字 🙂!", "🙂", ""])
def test_streamed_pieces_are_the_text_and_never_a_half_character(text):
    pieces = list(stream_text(Bytes(), text.encode()))
    assert "".join(pieces) == text and not any("�" in piece for piece in pieces)


def test_special_tokens_are_left_out_and_an_unfinished_character_is_shown_at_the_end():
    assert "".join(stream_text(Bytes(), [0, 104, 0, 105, 0])) == "hi"
    assert "".join(stream_text(Bytes(), [104, *"🙂".encode()[:2]])) == "h�"


def test_pieces_come_as_soon_as_they_are_whole():
    taken = []

    def tokens():
        for token in "aé".encode():
            taken.append(token)
            yield token

    pieces = stream_text(Bytes(), tokens())
    assert next(pieces) == "a" and len(taken) == 1
    assert next(pieces) == "é" and len(taken) == 3


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
    assert "".join(stream_text(tokenizer, ids)).count("漢字") == 1


def test_without_a_template_the_text_is_the_prompt():
    class Plain:
        chat_template = None

        def encode(self, text):
            return list(text.encode())

    assert chat_prompt_ids(Plain(), "hi") == [104, 105]
