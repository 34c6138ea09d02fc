"""How long a study will take: an assumption before anything ran, corrected by every point that is finished.

The assumption is deliberately plain, and it is printed: so many prompt tokens per second, so many output tokens per
second for one request, shared above a few requests. A contender's own points then say by how much it is off.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log

from wholecurve.studies.serving.load.kinds import Load, OpenLoad
from wholecurve.studies.serving.load.turns import Session

PROMPT_TOKENS_PER_S = 2000.0
OUTPUT_TOKENS_PER_S = 40.0  # of one request
MOST_OUTPUT_TOKENS_PER_S = 320.0  # of all together
START_S = 20.0  # of one server, until it answers
ASSUMED = (
    f"assumed before the first point: {PROMPT_TOKENS_PER_S:,.0f} prompt tok/s, {OUTPUT_TOKENS_PER_S:.0f} output tok/s "
    f"per request and {MOST_OUTPUT_TOKENS_PER_S:.0f} in all, {START_S:.0f} s per server start"
)


@dataclass(frozen=True)
class Work:
    """What a point asks for: tokens, seconds that sessions wait by themselves, and how many run beside each other."""

    prompt_tokens: int
    output_tokens: int
    delay_s: float
    beside: float  # requests in flight, as far as the load says
    arrivals_s: float  # of an open load: from the first arrival to the last one


def work_of(sessions: Sequence[Session], load: Load) -> Work:
    """The work of one point; a prompt's shared tokens count, because a server may not have cached them."""
    turns = [turn for session in sessions for turn in session.turns]
    prompt = sum(_prompt_tokens(turn.prompt) for turn in turns)
    output = sum(turn.output_tokens for turn in turns)
    delay = sum(turn.delay_s for turn in turns)
    if not isinstance(load, OpenLoad):
        return Work(prompt, output, delay, load.concurrency, 0.0)
    if load.arrivals == "recorded":
        arrivals = max((session.start_s or 0.0 for session in sessions), default=0.0) / load.rate_per_s
    else:
        arrivals = len(sessions) / load.rate_per_s
    return Work(prompt, output, delay, len(sessions), arrivals)


def assumed_s(work: Work) -> float:
    """Seconds of a point under the assumption."""
    beside = max(work.beside, 1.0)
    busy = work.prompt_tokens / PROMPT_TOKENS_PER_S
    busy += work.output_tokens / min(OUTPUT_TOKENS_PER_S * beside, MOST_OUTPUT_TOKENS_PER_S)
    return max(busy + work.delay_s / beside, work.arrivals_s)


def _prompt_tokens(prompt: object) -> int:
    if isinstance(prompt, list) and (not prompt or isinstance(prompt[0], int)):
        return len(prompt)
    return len(str(prompt)) // 4  # English text has about four letters in a token


@dataclass
class Estimate:
    """Seconds that are left, by contender. `ratios` are measured over assumed seconds of the points that are done."""

    ratios: dict[str, list[float]] = field(default_factory=dict)
    starts_s: list[float] = field(default_factory=list)

    def finished(self, contender: str, assumed: float, took_s: float) -> None:
        """One point took `took_s` where `assumed` was expected."""
        if assumed > 0 and took_s > 0:
            self.ratios.setdefault(contender, []).append(took_s / assumed)

    def factor(self, contender: str) -> float:
        """By how much the assumption is off for this contender; for one without points, as for all the others."""
        known = self.ratios.get(contender) or [ratio for found in self.ratios.values() for ratio in found]
        return exp(sum(map(log, known)) / len(known)) if known else 1.0

    def start_s(self) -> float:
        """Seconds of one start of a server."""
        return sum(self.starts_s) / len(self.starts_s) if self.starts_s else START_S

    def left_s(self, points: Sequence[tuple[str, float]], starts: int) -> float:
        """Seconds for these (contender, assumed seconds) and so many server starts."""
        return sum(assumed * self.factor(name) for name, assumed in points) + starts * self.start_s()


def in_words(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 05 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
