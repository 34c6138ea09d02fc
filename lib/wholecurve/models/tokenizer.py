"""Tokenizers: transformers does the work, this file finds the right one and says what is missing."""

from pathlib import Path

from wholecurve.errors import UserError


def save_tokenizer_of_gguf(gguf_path: Path, folder: Path) -> None:
    """Convert the tokenizer inside a GGUF file to tokenizer.json and its configuration in `folder`."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(gguf_path.parent), gguf_file=gguf_path.name)
    except (ValueError, KeyError, OSError, NotImplementedError) as error:
        raise UserError(f"{gguf_path}: its tokenizer cannot be read ({error})") from None
    tokenizer.save_pretrained(folder)


def load_tokenizer(folder: Path):
    """The tokenizer of a Hugging Face folder, never from a network."""
    from transformers import AutoTokenizer

    if not (folder / "tokenizer.json").exists() and not (folder / "tokenizer_config.json").exists():
        raise UserError(f"{folder}: no tokenizer.json")
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (ValueError, OSError) as error:
        raise UserError(f"{folder}: its tokenizer cannot be read ({error})") from None


def chat_prompt_ids(tokenizer, text: str) -> list[int]:
    """Token ids of one user message through the chat template, ready for the answer; plain text without a template."""
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return tokenizer.encode(prompt, add_special_tokens=False)
    return tokenizer.encode(text)
