"""Counting by tokenising, for servers that report no usage."""

from pathlib import Path

from wholecurve.errors import UserError


class TextCounter:
    """Tokens of a text by the tokenizer of a model's folder."""

    def __init__(self, folder: str):
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise UserError(f"{path}: missing; a tokenizer is a folder with a tokenizer.json")
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises Exception itself
            raise UserError(f"{path}: not a tokenizer ({error})") from None

    def __call__(self, text: str) -> int:
        """Number of tokens, without those that a model puts around a text."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)
