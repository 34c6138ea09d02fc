"""What all contenders of a serving study share: the plan, the model, the prompts of each point, and server starts."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from wholecurve.curves.slo import Slo
from wholecurve.files import slug
from wholecurve.studies.serving.client.credentials import api_key_from
from wholecurve.studies.serving.demand import OPEN_SEQUENCES, Demand, demand, within
from wholecurve.studies.serving.live import LiveServer
from wholecurve.studies.serving.load.kinds import ClosedLoad, Load, OpenLoad
from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.studies.serving.plan import ServingPlan
from wholecurve.studies.serving.plan_parts import RequestsPlan, ServingContender
from wholecurve.studies.serving.schedule import ServingPoint
from wholecurve.studies.serving.workloads.build import prepare, warm_up
from wholecurve.studies.serving.workloads.prepared import Prepared

if TYPE_CHECKING:
    from wholecurve.models.resolve import ModelFiles

_KEPT = 2  # prepared points in memory: contenders alternate within one level


@dataclass(frozen=True)
class ModelFacts:
    """What prompts need to know of a model of any architecture, from its config.json; None where it does not say."""

    vocab_size: int | None
    max_tokens: int | None  # of a request, prompt and output together
    cached_elements: int | None = None  # keys and values of one token, all layers; more than a sliding window keeps

    @classmethod
    def of(cls, config: dict) -> "ModelFacts":
        """From a config.json; models that also see keep what concerns text in a part of it."""
        text = config.get("text_config") or config
        heads = text.get("num_attention_heads")
        head = text.get("head_dim") or (text["hidden_size"] // heads if heads and "hidden_size" in text else None)
        kv = (text.get("num_hidden_layers"), text.get("num_key_value_heads") or heads, head)
        per_token = 2 * kv[0] * kv[1] * kv[2] if all(kv) else None
        return cls(text.get("vocab_size"), text.get("max_position_embeddings"), per_token)


@dataclass
class Bench:
    """``files`` is None where the plan names no model, and so are its facts. ``logs`` is where servers write."""

    plan: ServingPlan
    files: "ModelFiles | None"
    model: ModelFacts
    threads: int
    logs: Path
    _prepared: dict[tuple, Prepared] = field(default_factory=dict, repr=False)

    def prepared(self, point: ServingPoint, requests: RequestsPlan | None = None) -> Prepared:
        """The sessions of a point, the same ones for every contender; UserError where they do not fit the model."""
        requests = requests or self.plan.requests
        key = (point.load_kind, point.load, point.prompts_of, requests)
        if key not in self._prepared:
            while len(self._prepared) >= _KEPT:
                self._prepared.pop(next(iter(self._prepared)))
            self._prepared[key] = prepare(
                self.plan.workload,
                seed=self.plan.seed,
                load=point.load,
                repeat=point.prompts_of,
                count=requests.count(point.load_kind, point.load),
                limit_tokens=self.model.max_tokens,
                **self._words,
            )
        return self._prepared[key]

    def load(self, point: ServingPoint) -> Load:
        """The load of a point; the arrivals of an open one are drawn anew for each repeat."""
        seed = self.plan.seed * 100_003 + point.prompts_of
        if self.plan.load is not None and self.plan.load.kind == point.load_kind:
            return self.plan.load.at(point.load, seed)
        return OpenLoad(point.load, seed=seed) if point.load_kind == "request_rate" else ClosedLoad(int(point.load))

    def warm_up(self, point: ServingPoint, sessions: list[Session]) -> tuple[list[Session], ClosedLoad]:
        """What is sent before a point and discarded: single requests, as long as the point's first turns typically are.

        With a warm prefix cache, the first prompt of each session follows, for one token.
        """
        plan, firsts = self.plan, [session.turns[0] for session in sessions]
        count = plan.warm_up.count(point.load_kind, point.load)
        made = warm_up(
            plan.workload,
            count=count,
            prompt_tokens=round(median(turn.prompt_tokens or len(str(turn.prompt)) // 4 for turn in firsts)),
            output_tokens=round(median(turn.output_tokens for turn in firsts)),
            seed=plan.seed,
            load=point.load,
            repeat=point.prompts_of,
            **self._words,
        )
        if plan.prefix_cache == "warm":
            made += [Session(f"first-{turn.turn_id}", (_for_one_token(turn),)) for turn in firsts]
        return made, ClosedLoad(count if point.load_kind == "request_rate" else max(int(point.load), 1))

    @cached_property
    def _words(self) -> dict[str, Any]:
        """What prompts are made of: the size of the vocabulary, and the tokenizer where the model has one."""
        return {"vocab_size": self.model.vocab_size, "tokenizer": self.tokenizer}

    @cached_property
    def tokenizer(self) -> Any | None:
        """The model's tokenizer; None without a model, or with one that has none."""
        if self.files is None or not (self.files.hf_folder() / "tokenizer.json").exists():
            return None
        from wholecurve.models.tokenizer import load_tokenizer

        return load_tokenizer(self.files.hf_folder())

    @property
    def slo(self) -> Slo | None:
        return Slo.from_document(self.plan.slo.model_dump()) if self.plan.slo else None

    @cached_property
    def levels(self) -> list[ServingPoint]:
        """Each level of the race and the ends of the search, in every repeat: what is to be known before it starts.

        All repeats, because each has prompts of its own, and the longest one of them all has to fit.
        """
        plan = self.plan
        levels = [(plan.load.kind, level) for level in plan.load.levels] if plan.load else []
        if plan.maximum_load is not None:
            levels += [(plan.maximum_kind, plan.maximum_load.low), (plan.maximum_kind, plan.maximum_load.high)]
        names, repeats = dict.fromkeys(levels), range(1, plan.repeats + 1)
        return [ServingPoint(0, "", plan.workload_name, *level, repeat) for level in names for repeat in repeats]

    @cached_property
    def demand_of_the_load(self) -> Demand:
        """What the largest level asks for, and the longest request of all."""
        found = [demand(self._in_flight(point), self.prepared(point).sessions) for point in self.levels]
        most = Demand(*(max(getattr(one, name) for one in found) for name in Demand.__dataclass_fields__))
        return within(most, self._longest_tokens, self.model.max_tokens)

    @property
    def _longest_tokens(self) -> int:
        """The longest request that tuning and search may draw, whose prompts are others than the race's."""
        plan = self.plan
        if plan.tuning is None and plan.maximum_load is None:
            return 0
        # How far sessions of agents grow, only the model's window bounds.
        bound = self.model.max_tokens if plan.workload.kind == "agents" else plan.workload.longest_tokens
        return bound or 0

    @cached_property
    def demand(self) -> Demand:
        """What every server is given: the plan's capacity, else what the largest level asks for."""
        most, capacity = self.demand_of_the_load, self.plan.capacity
        return replace(
            most,
            sequences=capacity.sequences or most.sequences,
            cache_tokens=capacity.cache_tokens or most.cache_tokens,
        )

    @property
    def cache_bytes(self) -> int:
        """Memory of the key-value cache of one server; 0 where the model does not tell its shape."""
        element_bytes = 4 if self.plan.dtype == "float32" else 2
        return self.demand.cache_tokens * (self.model.cached_elements or 0) * element_bytes

    def _in_flight(self, point: ServingPoint) -> int:
        load = self.load(point)
        return load.concurrency if isinstance(load, ClosedLoad) else load.most_in_flight or OPEN_SEQUENCES

    def start(self, contender: ServingContender) -> LiveServer:
        """The contender's server, not started yet: it starts when the block that it opens begins."""
        from wholecurve.studies.serving.servers import SERVERS, ManagedServer, Needs, parse_server_options

        recipe = SERVERS[contender.server]
        needs = Needs(
            sequence_tokens=self.demand.sequence_tokens,
            max_sequences=self.demand.sequences,
            cache_tokens=self.demand.cache_tokens,
            dtype=self.plan.dtype,
            threads=self.threads,
            prefix_cache=self.plan.prefix_cache != "off",
            max_step_tokens=self.plan.capacity.step_tokens,
        )
        options = parse_server_options(contender.server, contender.options)
        log = self.logs / f"{slug(contender.name)}.log"
        api_key = api_key_from(contender.api_key_env) if contender.api_key_env else None
        server = ManagedServer(recipe, self.files, options, log, needs, label=contender.name, api_key=api_key)
        tokenizer = str(self.files.hf_folder()) if self.tokenizer is not None else None
        return LiveServer(contender, server, self.plan.api, timeout_s=self.plan.client.timeout_s, tokenizer=tokenizer)


def _for_one_token(turn: Turn) -> Turn:
    return replace(turn, turn_id=f"first-{turn.turn_id}", output_tokens=1, after=(), delay_s=0.0)
