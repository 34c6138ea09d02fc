"""What a single token looks like, for logprobs."""

import re
from functools import lru_cache

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


@lru_cache(1)
def _byte_of_character() -> dict[str, int]:
    """The alphabet of byte-level tokenizers: printable bytes stand for themselves, the others for characters from 256
    on, in order (Radford et al. 2019, `bytes_to_unicode` of GPT-2).
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class TokenTexts:
    """Text and bytes of tokens. Bytes of neighbours, put together, are the text, also where a character is split."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_vocab()
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._is_byte_level = "ByteLevel" in type(getattr(backend, "decoder", None)).__name__
        self._known: dict[int, tuple[str, list[int]]] = {}

    def __call__(self, token_id: int) -> tuple[str, list[int]]:
        """(text, bytes) of a token; the text has U+FFFD for a part of a character."""
        found = self._known.get(token_id)
        if found is None:
            content = self._bytes(token_id)
            found = self._known[token_id] = content.decode(errors="replace"), list(content)
        return found

    def _bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:  # the model's vocabulary is padded beyond the tokenizer's
            return b""
        if token in self._added:
            return token.encode()
        if self._is_byte_level:
            alphabet = _byte_of_character()
            if all(character in alphabet for character in token):
                return bytes(alphabet[character] for character in token)
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        # sentencepiece writes a space as U+2581, and decoding a single token would drop it
        return token.replace("▁", " ").encode()
