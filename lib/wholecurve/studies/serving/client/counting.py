"""How many tokens each chunk held, from the best source that there is.

Best first: counts in every chunk, one count at the end, the text tokenised, the number of chunks. A count that cannot
be true is not used, and `token_source` says so. Whatever the source, the sum over the chunks is what was counted.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wholecurve.studies.serving.client.chunks import Usage

USAGE_PER_CHUNK = "usage per chunk"
USAGE = "usage"
TOKENIZER = "tokenizer"
CHUNKS = "chunks"


@dataclass(slots=True)
class Received:
    """What counting needs to know of one chunk, in characters."""

    content_length: int
    reasoning_length: int = 0
    completion_tokens: int | None = None  # of the answer so far, where the chunk says so


@dataclass(frozen=True)
class Counted:
    """Tokens per chunk, where they come from, and how many of them were thoughts (None: nobody told)."""

    arrival_tokens: list[int]
    token_source: str | None
    reasoning_tokens: int | None = None


def count(chunks: Sequence[Received], usage: Usage | None, tokenize: Callable[[], int] | None = None) -> Counted:
    """Tokens of each chunk of one answer.

    usage: the last counts that came. tokenize: tokens of the whole text, where there is a tokenizer; it is only
    called when the server's own counts are not there or cannot be true.
    """
    if not any(chunk.content_length for chunk in chunks):
        return Counted([0] * len(chunks), None)
    total = usage.completion_tokens if usage else None
    per_chunk = _per_chunk(chunks, total)
    if per_chunk is not None:
        return _with_reasoning(per_chunk, USAGE_PER_CHUNK, chunks, usage)
    doubt = ""
    if total is not None:
        if not _contradicts(total, chunks):
            return _with_reasoning(_over_content(total, chunks), USAGE, chunks, usage)
        doubt, usage = f" (usage says {total})", None
    tokenized = tokenize() if tokenize else 0
    if tokenized:
        return _with_reasoning(_over_content(tokenized, chunks), TOKENIZER + doubt, chunks, usage)
    return _with_reasoning([int(chunk.content_length > 0) for chunk in chunks], CHUNKS + doubt, chunks, usage)


def allot(total: int, lengths: Sequence[int]) -> list[int]:
    """`total` tokens over chunks of content by their lengths, with largest remainders; the sum is `total`.

    One each where there are as many tokens as chunks. With more, no chunk has none. With fewer, some have none, but
    the first and the last have one if there are two. A single token came with the first chunk.
    """
    number = len(lengths)
    if total == number:
        return [1] * number
    if total == 1:
        return [1] + [0] * (number - 1)
    whole = sum(lengths)
    shares = [total * length // whole for length in lengths]
    remainders = [total * length % whole for length in lengths]
    for index in sorted(range(number), key=remainders.__getitem__, reverse=True)[: total - sum(shares)]:
        shares[index] += 1
    must = range(number) if total > number else {0, number - 1}
    lacking = [index for index in must if shares[index] == 0] if total else []
    givers = [(-share, index) for index, share in enumerate(shares) if share > (index in must)]
    heapq.heapify(givers)
    for index in lacking:
        share, giver = heapq.heappop(givers)
        shares[index], shares[giver] = 1, -share - 1
        if shares[giver] > (giver in must):
            heapq.heappush(givers, (share + 1, giver))
    return shares


def _over_content(total: int, chunks: Sequence[Received]) -> list[int]:
    places = [index for index, chunk in enumerate(chunks) if chunk.content_length]
    tokens = [0] * len(chunks)
    for index, share in zip(places, allot(total, [chunks[index].content_length for index in places])):
        tokens[index] = share
    return tokens


def _contradicts(total: int, chunks: Sequence[Received]) -> bool:
    """True for a count that the chunks refute.

    A server may cut the text of a token in two (a stop string that it held back, the call of a tool), but not the
    text of all of them in more.
    """
    return 2 * total < sum(chunk.content_length > 0 for chunk in chunks)


def _per_chunk(chunks: Sequence[Received], total: int | None) -> list[int] | None:
    """Tokens from counts that each chunk of content carries; None where they are missing or contradict themselves.

    A token whose text comes later (half a character, or none at all) counts with the next content, or, after the
    last, with the last.
    """
    tokens, counted, last_content = [0] * len(chunks), 0, -1
    highest = 0
    for index, chunk in enumerate(chunks):
        if chunk.completion_tokens is not None:
            if chunk.completion_tokens < highest:
                return None
            highest = chunk.completion_tokens
        if chunk.content_length:
            if chunk.completion_tokens is None:
                return None
            tokens[index], counted, last_content = highest - counted, highest, index
    if total is not None and total < highest:
        return None
    tokens[last_content] += max(highest, total or 0) - counted
    # Counts that are the same in all chunks tell nothing about one of them.
    with_tokens, with_content = sum(n > 0 for n in tokens), sum(chunk.content_length > 0 for chunk in chunks)
    return tokens if 2 * with_tokens >= with_content and tokens[last_content] and _first_has(tokens, chunks) else None


def _first_has(tokens: list[int], chunks: Sequence[Received]) -> bool:
    return next(n for n, chunk in zip(tokens, chunks) if chunk.content_length) > 0


def _with_reasoning(tokens: list[int], source: str, chunks: Sequence[Received], usage: Usage | None) -> Counted:
    """Thoughts by the server's count, else those of the chunks that carried them."""
    seen = sum(
        round(n * chunk.reasoning_length / chunk.content_length)
        for n, chunk in zip(tokens, chunks)
        if chunk.reasoning_length
    )
    told = usage.reasoning_tokens if usage else None
    if any(chunk.reasoning_length for chunk in chunks):
        return Counted(tokens, source, told if told and told <= sum(tokens) else seen)
    return Counted(tokens, source, told)
