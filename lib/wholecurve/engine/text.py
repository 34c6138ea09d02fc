"""Text of an answer while its tokens come: whole characters, and nothing beyond a stop string."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

UNKNOWN = "\ufffd"  # what a decoder writes for bytes that are no character, or not yet
CHARACTER_TOKENS = 3  # an unfinished character has at most 3 bytes, and a token at least one
WAITING_TOKENS = 16  # without an end of the unknown, the window is cut where that changes nothing
WINDOW_TOKENS = 64  # and from here on anywhere
CONTEXT_TOKENS = 6  # of a prompt: enough for a decoder to see that its text does not begin here


@dataclass(frozen=True)
class TextDelta:
    """New text. stopped: the stop string that ended the answer. num_tokens: pushed tokens up to the one that completed
    it, all of them otherwise.
    """

    text: str
    stopped: str | None = None
    num_tokens: int = 0


class TextStream:
    """Turns the tokens of one answer into text, at a cost per token that does not grow with the answer.

    Bytes of an unfinished character and text that may become a stop string wait for what follows. Whatever way the
    tokens are cut into pushes, the text is the same: it ends with the stop string that is complete first and, of
    several complete at once, with the longest.
    """

    def __init__(
        self,
        tokenizer,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
        prompt_ids: Sequence[int] = (),
    ):
        """tokenizer: of transformers, or anything with its `decode`. include_stop: the text keeps the stop string.
        min_tokens: no stop string ends within the text of so many first tokens. prompt_ids: what the answer follows on,
        where it is the same text going on and not a turn of its own.
        """
        self._pieces = PieceDecoder(tokenizer, skip_special_tokens, prompt_ids)
        self._finder = StopFinder(stop, include_stop)
        self._min_tokens, self._num_tokens = min_tokens, 0

    def push(self, token_ids: Iterable[int]) -> TextDelta:
        """The text that these tokens make certain. After a stop string there is none."""
        texts, taken = [], 0
        for token in token_ids:
            if self._finder.stopped is not None:
                break
            taken += 1
            self._num_tokens += 1
            piece = self._pieces.push(token)
            texts.append(self._finder.push(piece, self._num_tokens > self._min_tokens) if piece else "")
        return TextDelta("".join(texts), self._finder.stopped, taken)

    def finish(self) -> TextDelta:
        """What still waited, when no more tokens come."""
        if self._finder.stopped is not None:
            return TextDelta("", self._finder.stopped)
        text = self._finder.push(self._pieces.flush(), self._num_tokens > self._min_tokens)
        return TextDelta(text + self._finder.flush(), self._finder.stopped)


def stream_text(tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """Text of a stream of tokens, piece by piece; special tokens are left out, split characters wait for their rest."""
    stream = TextStream(tokenizer)
    for token in tokens:
        if text := stream.push([token]).text:
            yield text
    if text := stream.finish().text:
        yield text


class PieceDecoder:
    """Text of one token after the other, from a decoder that only knows whole lists of tokens.

    It decodes a window: some tokens whose text has been given out, since a decoder may treat the first ones in another
    way (it drops their leading space), and those that follow. The text of the former is cut off.
    """

    def __init__(self, tokenizer, skip_special_tokens: bool, prompt_ids: Sequence[int] = ()):
        self._decode = decoder_of(tokenizer, skip_special_tokens)
        self._skipped = special_ids(tokenizer) if skip_special_tokens else frozenset()
        self._window = [token for token in prompt_ids[-CONTEXT_TOKENS:] if token not in self._skipped]
        self._before = len(self._window)  # tokens of the window that come first
        self._text_before = self._decode(self._window) if self._window else ""
        self._given = 0  # characters of the later tokens' text that have been given out

    def push(self, token: int) -> str:
        """Text that becomes certain with a token."""
        if token in self._skipped:
            return ""
        self._window.append(token)
        text = self._text()
        certain = text
        for _ in range(CHARACTER_TOKENS):
            certain = certain.removesuffix(UNKNOWN)
        piece = certain[self._given :]
        if certain == text and text:
            self._advance()
        else:
            self._given = max(self._given, len(certain))
            if len(self._window) - self._before > WAITING_TOKENS:
                piece += self._cut(text)
        return piece

    def flush(self) -> str:
        """Text that was not certain, when no more tokens come."""
        piece = self._text()[self._given :]
        self._advance()
        return piece

    def _text(self) -> str:
        """Text of the later tokens in the window."""
        whole = self._decode(self._window)
        if whole.startswith(self._text_before):
            return whole[len(self._text_before) :]
        return self._decode(self._window[self._before :])

    def _advance(self) -> None:
        """All text has been given out: of the window only the later tokens stay, as the ones before what follows."""
        self._window = self._window[self._before :]
        self._before, self._given = len(self._window), 0
        self._text_before = self._decode(self._window) if self._window else ""

    def _cut(self, text: str) -> str:
        """Shorten a window in which no end of the unknown comes, where its two parts give the text of the whole.
        Returns text that is given out by that.
        """
        length = len(self._window)
        for place in range(length - CHARACTER_TOKENS, length):
            first, rest = self._decode(self._window[self._before : place]), self._decode(self._window[place:])
            if first + rest == text:
                break
        else:
            if length - self._before < WINDOW_TOKENS:
                return ""
            first, place = text, length
        piece, given = first[self._given :], max(0, self._given - len(first))
        self._window, self._before, self._text_before, self._given = self._window[place:], 0, "", given
        return piece


class StopFinder:
    """Finds the first of several strings in a text that comes in pieces. stopped: the one that was found."""

    def __init__(self, stop: Sequence[str], include_stop: bool):
        self._stop, self._include_stop = tuple(stop), include_stop
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""  # the end of the text so far, which a stop string may begin with
        self.stopped: str | None = None

    def push(self, piece: str, may_stop: bool = True) -> str:
        """Text that is certain to be before any stop string. may_stop: whether one may end within this piece."""
        if not self._stop:
            return piece
        text, held = self._held + piece, len(self._held)
        if may_stop and (found := self._first_end(text, held)):
            end, self.stopped = found
            self._held = ""
            return text[: end if self._include_stop else end - len(self.stopped)]
        keep = self._suffix_that_may_begin(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Text that was held back, when no more comes."""
        text, self._held = self._held, ""
        return text

    def _first_end(self, text: str, held: int) -> tuple[int, str] | None:
        """(end, string) of the occurrence that ends first, and after the held text."""
        found = []
        for string in self._stop:
            start = text.find(string, max(0, held - len(string) + 1))
            if start >= 0:
                found.append((start + len(string), -len(string), string))
        return (min(found)[0], min(found)[2]) if found else None

    def _suffix_that_may_begin(self, text: str) -> int:
        """Length of the longest end of a text with which a stop string begins."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            end = text[-length:]
            if any(string.startswith(end) for string in self._stop):
                return length
        return 0


def decoder_of(tokenizer, skip_special_tokens: bool) -> Callable[[list[int]], str]:
    """Token ids to text. The library behind a fast tokenizer is called directly: it is several times as quick and does
    not tidy up spaces, which no stream could do.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decode = (backend or tokenizer).decode
    return lambda token_ids: decode(token_ids, skip_special_tokens=skip_special_tokens)


def special_ids(tokenizer) -> frozenset[int]:
    """Token ids that `skip_special_tokens` leaves out, as far as the tokenizer tells."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(token for token, what in added.items() if what.special)
