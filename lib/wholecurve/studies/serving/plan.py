"""The plan of a serving study: which servers, under which loads, how often. Written first, hashed, never mixed."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from wholecurve.studies.contender_names import check_contenders
from wholecurve.studies.plan_file import read_document, validated
from wholecurve.studies.plan_parts import AgreementPlan, Positive, Strict
from wholecurve.studies.serving.plan_parts import (
    RUNNING,
    CapacityPlan,
    ClientPlan,
    LoadPlan,
    MaximumLoadPlan,
    RequestsPlan,
    ServingContender,
    ServingTuningPlan,
    SloPlan,
    WarmUpPlan,
)
from wholecurve.studies.serving.server_settings import check_profile, check_settings, require_server
from wholecurve.studies.serving.workloads.plan_parts import WorkloadPlan

# Goes up whenever what is measured, or how, changes: points of different versions are not comparable.
SERVING_HARNESS_VERSION = 1


class ServingPlan(Strict):
    """A whole serving study.

    `prefix_cache` is the state that every server is asked for: "off", "cold" (on, filled by the point's own requests
    alone) or "warm" (on, and the first prompts of a point are sent once before it). `servers` "together" keeps the
    servers of a repeat up side by side, so that contenders alternate point by point; "one at a time" needs less memory
    and alternates whole curves. `model` and `dtype` are needed where a server is started; `model` beside running
    servers is the same checkpoint on this machine, for prompts of exact length and for the check of their answers.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    kind: Literal["serving"]
    model: str | None = None
    dtype: Literal["float32", "bfloat16"] | None = None
    threads: Positive | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    repeats: Positive = 3
    api: Literal["completions", "chat"] = "completions"
    contenders: Annotated[list[ServingContender], Field(min_length=1)]
    servers: Literal["together", "one at a time"] = "together"
    workload: WorkloadPlan
    load: LoadPlan | None = None
    requests: RequestsPlan = RequestsPlan()
    warm_up: WarmUpPlan = WarmUpPlan()
    prefix_cache: Literal["off", "cold", "warm"] = "off"
    slo: SloPlan | None = None
    maximum_load: MaximumLoadPlan | None = None
    tuning: ServingTuningPlan | None = None
    agreement: AgreementPlan | None = AgreementPlan()
    capacity: CapacityPlan = CapacityPlan()
    client: ClientPlan = ClientPlan()

    @field_validator("prefix_cache", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: Any) -> Any:
        # YAML 1.1 reads the bare word off as false.
        return "off" if value is False else value

    @model_validator(mode="after")
    def _consistent(self) -> "ServingPlan":
        check_contenders(self.contenders, "server")
        for place, contender in enumerate(self.contenders):
            self._check_contender(f"contenders.{place}", contender)
        if self.load is None and self.maximum_load is None:
            raise ValueError("load, maximum_load: at least one of them must be there")
        if self.maximum_load is not None and self.slo is None:
            raise ValueError("maximum_load: it looks for the largest load that keeps the objectives, so slo is needed")
        self._check_load()
        self._check_tuning()
        return self

    def _check_contender(self, where: str, contender: ServingContender) -> None:
        require_server(f"{where}.server", contender.server)
        if contender.server != RUNNING and self.model is None:
            raise ValueError(f"model: {contender.name!r} is started here, so the model that it loads is needed")
        if contender.server != RUNNING and self.dtype is None:
            raise ValueError(f"dtype: {contender.name!r} is started here; write auto, bfloat16 or float32")
        if contender.profile is not None:
            check_profile(f"{where}.profile", contender.profile)
        check_settings(f"{where}.settings", contender.server, contender.options)

    def _check_load(self) -> None:
        requests, recorded = self.requests, self.load is not None and self.load.open is not None
        recorded = recorded and self.load.open.arrivals == "recorded"
        if recorded and self.workload.kind != "trace":
            raise ValueError(
                f"load.open.arrivals: only a trace has recorded arrivals; the workload's kind is {self.workload.kind}"
            )
        kinds = {self.load.kind} if self.load else set()
        if self.maximum_load is not None:
            kinds.add(self.maximum_kind)
        if requests.seconds is not None and requests.at_most is None and kinds - {"request_rate"}:
            raise ValueError(
                "requests.at_most: with seconds, a closed load needs it: it is the number of sessions made ready"
            )
        if self.load and self.load.kind == "concurrency" and self.workload.kind == "agents":
            raise ValueError(
                "load.closed: a session of agents has a changing number of requests in flight; use load.sessions"
            )
        for level in [*(self.load.levels if self.load and self.load.kind != "request_rate" else []), *self._high()]:
            if requests.count("concurrency", level) < 2 * level:
                raise ValueError(
                    f"requests.at_most: {requests.at_most} sessions are fewer than two for each of the {level:g} in "
                    "flight, so nothing is measured between the first wave and the last; raise it or drop the level"
                )

    def _high(self) -> list[float]:
        return [self.maximum_load.high] if self.maximum_load and self.maximum_load.by == "concurrency" else []

    def _check_tuning(self) -> None:
        if self.tuning is None:
            return
        if self.load is None:
            raise ValueError("tuning: it measures at levels of the plan's load, and the plan has no load")
        if unknown := [level for level in self.tuning.levels if level not in self.load.levels]:
            raise ValueError(
                f"tuning.levels: {unknown[0]:g} is no level of the load; there is: "
                + ", ".join(f"{level:g}" for level in self.load.levels)
            )
        contenders = {contender.name: contender for contender in self.contenders}
        for name, plan in self.tuning.contenders.items():
            where = f"tuning.contenders.{name}"
            contender = contenders.get(name)
            if contender is None or contender.control_of is not None or contender.server == RUNNING:
                can = [c.name for c in self.contenders if c.control_of is None and c.server != RUNNING]
                raise ValueError(f"{where}: it must name a contender that is started here; there is: {', '.join(can)}")
            if plan.size + 1 > self.tuning.budget:
                raise ValueError(
                    f"{where}.grid: {plan.size} combinations and its own settings are more than the budget of "
                    f"{self.tuning.budget} that every contender has"
                )
            if plan.finalists > plan.size + 1:
                raise ValueError(f"{where}.finalists: {plan.finalists} of {plan.size + 1} settings cannot be chosen")
            for option, values in plan.grid.items():
                for value in values:
                    check_settings(f"{where}.grid", contender.server, {**contender.settings, option: value})

    @property
    def maximum_kind(self) -> str | None:
        """What the probes of the search count; None without a search."""
        if self.maximum_load is None:
            return None
        if self.maximum_load.by == "rate":
            return "request_rate"
        return "sessions" if self.workload.kind == "agents" or (self.load and self.load.sessions) else "concurrency"

    @property
    def workload_name(self) -> str:
        """The `workload` of its point rows: "agents" for sessions of agents, else "serving"."""
        return "agents" if self.workload.kind == "agents" else "serving"

    def document(self) -> dict:
        """What is stored with the run: the plan, its hash, the harness version, and the hash of a recorded workload.

        The hash covers the contents of the trace file that the workload replays, not only its name.
        """
        plan = self.model_dump(mode="json")
        inputs = {}
        if (path := getattr(self.workload, "path", None)) is not None and Path(path).is_file():
            inputs[str(path)] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        stored = {"plan": plan, "harness_version": SERVING_HARNESS_VERSION, "inputs": inputs}
        text = json.dumps(stored, sort_keys=True)
        return {**stored, "plan_hash": hashlib.sha256(text.encode()).hexdigest()}


def read_serving_plan(path: Path) -> ServingPlan:
    """Read and validate a YAML plan; UserError names the file, the field and what is wrong with it."""
    return validated(ServingPlan, read_document(path), path)
