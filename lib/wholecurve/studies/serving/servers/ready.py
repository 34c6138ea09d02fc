"""From a process that was started to a server that answers: health, a first token, and its prefix cache as asked."""

import random
import time
from collections.abc import Callable
from dataclasses import replace

from wholecurve.errors import UserError
from wholecurve.studies.serving.servers.counters import read_counters
from wholecurve.studies.serving.servers.pages import NoAnswer, Pages

_LOOK_S = 0.1
_PROBE_TOKENS = 288  # more than two blocks of every cache that is known here
_LOWEST_ID, _HIGHEST_ID = 40, 240  # ordinary tokens: special ones come before them or at the end


def wait_ready(pages: Pages, health_path: str, death: Callable[[], str | None], within_s: float) -> None:
    """Return when the server says that it is healthy. `death` gives the reason once its process has ended.

    UserError when it dies before, or is not healthy within `within_s` seconds.
    """
    until, last = time.monotonic() + within_s, "no answer"
    quick = replace(pages, timeout_s=5.0)
    while time.monotonic() < until:
        if reason := death():
            raise UserError(f"its server {reason}")
        try:
            quick.get_text(health_path)
        except NoAnswer as error:
            last = str(error)
            time.sleep(_LOOK_S)
        else:
            return
    raise UserError(f"its server was not ready within {within_s:.0f} s ({last})")


def first_token(pages: Pages, model: str, death: Callable[[], str | None]) -> None:
    """Have it answer one token; UserError when it does not."""
    # greedily: transformers takes the first request's way of sampling for all that follow
    body = {"model": model, "prompt": "a", "max_tokens": 1, "temperature": 0}
    try:
        answer = pages.post_json(f"{pages.api}/completions", body)
    except NoAnswer as error:
        time.sleep(_LOOK_S)  # a process that died is seen to be dead a moment later
        reason = death()
        raise UserError(f"its server {reason}" if reason else f"no first token: {error}") from None
    if not isinstance(answer, dict) or not answer.get("choices"):
        raise UserError(f"no first token: the answer has no choices ({str(answer)[:200]})")


def cached_tokens_of_repeat(pages: Pages, model: str, longest: int, vocab_size: int) -> tuple[int, str] | None:
    """Send one prompt of random token ids twice: how many of its tokens the prefix cache gave, and who says so.

    Counters are asked first, then the answer's usage; None where the server has neither. `longest`: tokens that a
    prompt and its answer may have.
    """
    ids = range(min(_LOWEST_ID, vocab_size // 2), min(_HIGHEST_ID, vocab_size))
    prompt = random.SystemRandom().choices(ids, k=min(_PROBE_TOKENS, longest - 1))
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    before = read_counters(pages)
    answer = [pages.post_json(f"{pages.api}/completions", body) for _ in range(2)][1]
    after = read_counters(pages)
    if before is not None and after is not None and (hits := after.since(before).prefix_hit_tokens) is not None:
        return hits, f"one prompt sent twice, {after.source}"
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    if details.get("cached_tokens") is not None:
        return details["cached_tokens"], "one prompt sent twice, usage"
    return None


def probe_prefix_cache(
    pages: Pages, model: str, longest: int, vocab_size: int, wanted: bool
) -> tuple[bool, str] | None:
    """Whether the prefix cache is on, as seen, and who says so; None where nothing tells.

    UserError when it is not as it was asked for.
    """
    seen = cached_tokens_of_repeat(pages, model, longest, vocab_size)
    if seen is None:
        return None
    cached, source = seen
    if wanted and not cached and longest <= _PROBE_TOKENS:
        return None  # shorter than a block may be, and only whole ones are cached
    if wanted != (cached > 0):
        state = "on" if wanted else "off"
        raise UserError(
            f"the study asked for the prefix cache to be {state}; of a prompt sent twice, {cached} tokens were cached"
        )
    return cached > 0, source
