"""Traces of a server under load, built by hand: every time follows from arithmetic that fits on a line."""

from wholecurve.trace import RequestTrace


def reply(name="r0", at=0.0, first=0.5, gap=0.1, tokens=11, *, sent=None, chunk=1, prompt=8, cached=0, **fields):
    """Scheduled at ``at``, first chunk ``first`` seconds later, then a chunk of ``chunk`` tokens every ``gap``."""
    counts = [chunk] * (tokens // chunk)
    arrivals = [at + first + gap * i for i in range(len(counts))]
    known = {
        "arrivals_s": arrivals, "arrival_tokens": counts, "outcome": "completed", "wanted_tokens": tokens,
        "finished_s": arrivals[-1] if arrivals else at + first, "token_source": "usage",
    }  # fmt: skip
    return RequestTrace(name, prompt, cached, at, at if sent is None else sent, **(known | fields))


def failed(name="f0", at=0.0, after=0.01, outcome="refused", error="HTTP 503", **fields):
    """Without a token, over ``after`` seconds from when it was scheduled."""
    return reply(name, at, tokens=0, finished_s=at + after, outcome=outcome, error=error, **fields)


def closed_loop(slots=4, per_slot=5, first=0.5, gap=0.1, tokens=11, **fields):
    """``slots`` requests always in flight, staggered by a tenth of a request's length."""
    length = first + gap * (tokens - 1)
    return [
        reply(f"s{s}n{n}", s * length / 10 + n * length, first, gap, tokens, **fields)
        for s in range(slots)
        for n in range(per_slot)
    ]


def session(name, at, turns=3, pause=1.0, first=0.5, gap=0.1, tokens=11, **fields):
    """Turns one after another, each ``pause`` seconds after the end of the one before."""
    length = first + gap * (tokens - 1)
    return [
        reply(f"{name}t{i}", at + i * (length + pause), first, gap, tokens, session=name, **fields)
        for i in range(turns)
    ]


def session_loop(slots=2, per_slot=3, turns=3, pause=1.0, **fields):
    """``slots`` sessions always in flight, staggered by a second; one of 3 turns with pauses of 1 s takes 6.5 s."""
    length = turns * 1.5 + (turns - 1) * pause
    return [
        request
        for s in range(slots)
        for n in range(per_slot)
        for request in session(f"s{s}n{n}", s * 1.0 + n * length, turns, pause, **fields)
    ]
