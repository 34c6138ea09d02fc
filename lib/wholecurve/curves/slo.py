"""A promise about latency, which requests keep it, and goodput: what the keeping ones alone amount to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from wholecurve.errors import UserError
from wholecurve.trace import RequestTrace


@dataclass(frozen=True)
class Slo:
    """Limits in ms, inclusive, that one request must keep all of; ``share`` of the requests must do so.

    A limit that is None does not count. TTFT and E2E run from when the request was scheduled. A request of one token or
    one chunk has no TPOT and cannot break that limit.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    share: float = 0.9

    def __post_init__(self) -> None:
        limits = {name: getattr(self, name) for name in ("ttft_ms", "tpot_ms", "e2e_ms")}
        if all(limit is None for limit in limits.values()):
            raise UserError("slo: no limit is stated; at least one of ttft_ms, tpot_ms and e2e_ms is needed")
        for name, limit in limits.items():
            if limit is not None and not 0 < limit < math.inf:
                raise UserError(f"slo.{name} is {limit}; a finite number of milliseconds above 0 is needed")
        if not 0 < self.share <= 1:
            raise UserError(f"slo.share is {self.share}; a share above 0 and at most 1 is needed, 0.9 for 90 %")

    @classmethod
    def from_document(cls, document: Mapping) -> "Slo":
        """From the `slo` of a plan; UserError names a field that does not exist."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(document) - known):
            raise UserError(f"slo.{unknown[0]}: there is no such field; there is {', '.join(sorted(known))}")
        return cls(**{name: value for name, value in document.items() if name != "share" or value is not None})

    def text(self) -> str:
        """The promise in words: TTFT ≤ 200 ms and TPOT ≤ 50 ms for 90 % of requests."""
        limits = (("TTFT", self.ttft_ms), ("TPOT", self.tpot_ms), ("E2E", self.e2e_ms))
        stated = " and ".join(f"{name} ≤ {limit:g} ms" for name, limit in limits if limit is not None)
        return f"{stated} for {100 * self.share:g} % of requests"

    def kept_by(self, request: RequestTrace) -> bool | None:
        """Whether a request kept every limit. A failed one did not, however fast it failed.

        None where it cannot be known: the client cancelled it before any limit was broken.
        """
        if request.completed:
            times = ((request.ttft_s, self.ttft_ms), (request.tpot_s, self.tpot_ms), (request.e2e_s, self.e2e_ms))
            return all(s is None or limit is None or _ms(s) <= limit for s, limit in times)
        if request.outcome != "cancelled" or self._broken_before(request):
            return False
        return None

    def _broken_before(self, request: RequestTrace) -> bool:
        """Whether a cancelled request had used up its time to the first token, or to the end, when it was stopped."""
        waited = _ms(request.end_s - request.scheduled_s)
        first = request.first_token_s
        to_first = waited if first is None else _ms(first - request.scheduled_s)
        return any(
            limit is not None and time > limit for time, limit in ((to_first, self.ttft_ms), (waited, self.e2e_ms))
        )


@dataclass(frozen=True)
class Kept:
    """The requests of a point, divided by an SLO. The share's denominator holds every failure."""

    kept: list[RequestTrace]
    broken: list[RequestTrace]
    unknown: list[RequestTrace]  # cancelled by the client before a limit was broken

    @property
    def share(self) -> float | None:
        """Requests that kept the SLO over those of which it is known; None where it is known of none."""
        known = len(self.kept) + len(self.broken)
        return len(self.kept) / known if known else None


def divide(requests: Sequence[RequestTrace], slo: Slo) -> Kept:
    """Every request in one of three lists: it kept the SLO, it did not, or that cannot be known."""
    lists: dict[bool | None, list[RequestTrace]] = {True: [], False: [], None: []}
    for request in requests:
        lists[slo.kept_by(request)].append(request)
    return Kept(lists[True], lists[False], lists[None])


def _ms(seconds: float) -> float:
    # Times are recorded to the microsecond; the noise of their subtraction must not break a limit that was kept.
    return round(1e3 * seconds, 3)
