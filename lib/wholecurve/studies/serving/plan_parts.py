"""The parts of a serving plan: contenders, loads, how many requests, objectives, the search and the tuning."""

import math
import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from wholecurve.studies.plan_parts import Positive, Strict
from wholecurve.studies.serving.load.kinds import ClosedLoad, Load, OpenLoad

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_URL = re.compile(r"https?://[^/\s]+(/\S*)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A server that the study neither starts nor stops.
RUNNING = "running"


class ServingContender(Strict):
    """One server with its configuration. `control_of` names the contender that this one repeats (A/A control).

    `settings` are the server's own. A `running` server is reached at `url` (with its path, as `/v1`) and needs
    `device_kind`: what it runs on cannot be seen from here. `model` is what that server calls the model; it may be left
    out where it has one alone. `profile` says what kind of server it is, and `api_key_env` names the environment
    variable that holds its key.
    """

    name: Annotated[str, Field(min_length=1, pattern=r"^[^/:]+$")]
    server: str
    settings: dict[str, Any] = Field(default_factory=dict)
    control_of: str | None = None
    url: str | None = None
    profile: str | None = None
    api_key_env: str | None = None
    model: str | None = None
    devices: Positive = 1
    device_kind: Annotated[str, Field(min_length=1)] | None = None
    usd_per_hour: PositiveFloat | None = None

    @model_validator(mode="after")
    def _reachable(self) -> "ServingContender":
        if self.server == RUNNING:
            if self.url is None:
                raise ValueError(f"url: {self.name!r} is a running server, so its address is needed")
            if not _URL.fullmatch(self.url):
                raise ValueError(f"url: {self.url!r} is no address of an API; http://127.0.0.1:8000/v1 is one")
            # What stands there may be the key itself, so it is not repeated.
            if self.api_key_env is not None and not _VARIABLE.fullmatch(self.api_key_env):
                raise ValueError(
                    "api_key_env: it must be the name of an environment variable; a key never goes into a plan"
                )
            if self.device_kind is None:
                raise ValueError(
                    f"device_kind: say what the running server {self.name!r} runs on: cpu, the name of its GPU, "
                    "or unknown"
                )
            if self.settings:
                raise ValueError(f"settings: {self.name!r} runs already, so the study cannot set anything")
        else:
            for field in ("url", "api_key_env", "model", "profile"):
                if getattr(self, field) is not None:
                    raise ValueError(
                        f"{field}: only a contender with server: {RUNNING} has one; {self.name!r} is started here"
                    )
        return self

    @property
    def options(self) -> dict[str, Any]:
        """What its recipe is given: its settings, or where a running server is."""
        if self.server != RUNNING:
            return self.settings
        given = {"url": self.url, "model": self.model, "profile": self.profile}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def runs_on(self) -> str:
        """What its devices are; servers that the study starts run on this machine's CPU unless the plan says else."""
        return self.device_kind or "cpu"

    @property
    def counted_per(self) -> str:
        """What throughput is divided by, as a point row says it: "cpu", "gpu", or "server" where it is unknown."""
        return {"cpu": "cpu", "unknown": "server"}.get(self.runs_on, "gpu")

    @property
    def source(self) -> str:
        """Where its numbers come from, as a point row says it."""
        device = {"server": "device unstated"}.get(self.counted_per, self.counted_per)
        return f"measured ({device})"


class ClosedPlan(Strict):
    """`concurrency` sessions always in flight; the first ones start evenly over `ramp_s`."""

    concurrency: Annotated[list[Positive], Field(min_length=1)]
    ramp_s: Seconds = 0.0


class OpenPlan(Strict):
    """Sessions start by the clock, whatever the server does; see `OpenLoad` for the kinds of arrivals."""

    rate_per_s: Annotated[list[PositiveFloat], Field(min_length=1)]
    arrivals: Literal["poisson", "constant", "bursts", "recorded"] = "poisson"
    burstiness: PositiveFloat = 1.0
    ramp_s: Seconds = 0.0
    most_in_flight: Positive | None = None

    @model_validator(mode="after")
    def _burstiness_is_used(self) -> "OpenPlan":
        if self.burstiness != 1.0 and self.arrivals != "bursts":
            raise ValueError(f"burstiness: {self.burstiness:g} means nothing for arrivals {self.arrivals!r}")
        return self


class LoadPlan(Strict):
    """Exactly one kind of load: `closed` counts requests in flight, `sessions` counts sessions, `open` has a clock."""

    closed: ClosedPlan | None = None
    sessions: ClosedPlan | None = None
    open: OpenPlan | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "LoadPlan":
        given = [name for name in ("closed", "sessions", "open") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of closed, sessions, open is needed; there is: {', '.join(given) or 'none'}")
        levels = self.levels
        if doubled := [level for level in levels if levels.count(level) > 1]:
            raise ValueError(f"{given[0]}: the load level {doubled[0]:g} is listed twice")
        return self

    @property
    def kind(self) -> str:
        """What a level counts, as a point row says it: "concurrency", "sessions" or "request_rate"."""
        return "concurrency" if self.closed else "sessions" if self.sessions else "request_rate"

    @property
    def levels(self) -> list[float]:
        return list(self.open.rate_per_s if self.open else (self.closed or self.sessions).concurrency)

    def at(self, level: float, seed: int) -> Load:
        """The load of one level; `seed` draws the arrivals of an open one."""
        if self.open is None:
            return ClosedLoad(int(level), (self.closed or self.sessions).ramp_s)
        plan = self.open
        return OpenLoad(level, plan.arrivals, plan.burstiness, plan.ramp_s, seed, plan.most_in_flight)


class RequestsPlan(Strict):
    """How many sessions a point has (a request alone is a session of one turn).

    Closed loads: `per_slot` times the concurrency, within [`at_least`, `at_most`]. Open loads: what arrives in
    `seconds`, or `at_least`. With `seconds` no session starts after it, and what runs is finished; a closed load
    then needs `at_most`, the number that is made ready.
    """

    per_slot: Annotated[int, Field(ge=2)] = 4
    at_least: Positive = 30  # p90 needs as many
    at_most: Positive | None = None
    seconds: PositiveFloat | None = None

    @model_validator(mode="after")
    def _range(self) -> "RequestsPlan":
        if self.at_most is not None and self.at_most < self.at_least and self.seconds is None:
            raise ValueError(f"at_most: {self.at_most} is below at_least, {self.at_least}")
        return self

    def count(self, load_kind: str, level: float) -> int:
        """Sessions of one point at this level."""
        if load_kind == "request_rate":
            wanted = max(self.at_least, math.ceil(level * self.seconds)) if self.seconds else self.at_least
            return min(wanted, self.at_most) if self.at_most is not None else wanted
        if self.seconds is not None and self.at_most is not None:
            return self.at_most
        wanted = max(self.per_slot * int(level), self.at_least)
        return min(wanted, self.at_most) if self.at_most is not None else wanted


class WarmUpPlan(Strict):
    """Sent before a point and discarded: `per_slot` sessions for each in flight, `at_least` under an open load."""

    per_slot: Positive = 1
    at_least: Positive = 4

    def count(self, load_kind: str, level: float) -> int:
        """Sessions of one warm-up; never fewer than are in flight in the point."""
        return self.at_least if load_kind == "request_rate" else max(self.per_slot * int(level), self.at_least)


class SloPlan(Strict):
    """Limits that a request must keep, and the share of all requests, failed ones included, that must keep them."""

    ttft_ms: PositiveFloat | None = None
    tpot_ms: PositiveFloat | None = None
    e2e_ms: PositiveFloat | None = None
    share: Annotated[float, Field(gt=0, le=1)] = 0.9

    @model_validator(mode="after")
    def _some_limit(self) -> "SloPlan":
        if self.ttft_ms is None and self.tpot_ms is None and self.e2e_ms is None:
            raise ValueError("at least one of ttft_ms, tpot_ms, e2e_ms is needed")
        return self


class MaximumLoadPlan(Strict):
    """Bisection between `low` and `high` for the largest load at which the objectives are kept.

    At most `steps` loads are probed. `by` rate ends earlier when the two sides are within `tolerance` of each other,
    `by` concurrency when they are neighbours.
    """

    by: Literal["concurrency", "rate"]
    low: PositiveFloat
    high: PositiveFloat
    steps: Annotated[int, Field(ge=2)] = 8
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.05

    @model_validator(mode="after")
    def _range(self) -> "MaximumLoadPlan":
        if self.low >= self.high:
            raise ValueError(f"low: {self.low:g} is not below high, {self.high:g}")
        if self.by == "concurrency" and (self.low % 1 or self.high % 1):
            raise ValueError(f"low, high: concurrency is counted in whole numbers, not {self.low:g} and {self.high:g}")
        return self


class GridPlan(Strict):
    """Every combination of the listed options is a candidate; the best `finalists` take part in the race."""

    grid: Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)]
    finalists: Positive = 1

    @property
    def size(self) -> int:
        return math.prod(len(values) for values in self.grid.values())


class ServingTuningPlan(Strict):
    """A first, small measurement at `levels` of the plan's load that chooses the settings of the race.

    `budget` is the most settings that a contender may try, its own included.
    """

    contenders: Annotated[dict[str, GridPlan], Field(min_length=1)]
    levels: Annotated[list[PositiveFloat], Field(min_length=1)]
    requests: RequestsPlan = RequestsPlan(per_slot=2, at_least=8)
    budget: Annotated[int, Field(ge=2)] = 12


class CapacityPlan(Strict):
    """What every server that the study starts is given; what is not said comes from the workload and the loads."""

    sequences: Positive | None = None  # requests at once
    cache_tokens: Positive | None = None
    step_tokens: Positive = 2048  # token budget of one step


class ClientPlan(Strict):
    """The one client of all contenders."""

    processes: Positive = 1
    timeout_s: PositiveFloat = 600.0
