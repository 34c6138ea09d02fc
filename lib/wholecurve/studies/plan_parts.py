"""The parts of a plan: contenders, workloads, agreement and tuning, each validated by itself."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from wholecurve.studies.contenders.options import parse_options

Positive = Annotated[int, Field(ge=1)]
Range = Annotated[list[Positive], Field(min_length=2, max_length=2)]


class Strict(BaseModel):
    """Unknown fields are errors, and nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ContenderPlan(Strict):
    """One engine with its configuration. `control_of` names the contender that this one repeats (A/A control).

    `settings` are the engine's own; see `contenders/options.py`.
    """

    name: Annotated[str, Field(min_length=1, pattern=r"^[^/:]+$")]
    engine: Literal["wholecurve", "transformers", "openvino", "vllm", "llama.cpp"]
    control_of: str | None = None
    settings: dict[str, Any] = {}

    @model_validator(mode="after")
    def _known_settings(self) -> "ContenderPlan":
        parse_options(self.engine, self.settings)
        return self


class DecodePlan(Strict):
    """Closed loop at each concurrency; lengths are drawn uniformly from [low, high] by the seed."""

    concurrency: Annotated[list[Positive], Field(min_length=1)]
    requests_per_slot: Annotated[int, Field(ge=2)] = 4
    prompt_tokens: Range
    output_tokens: Range


class BatchPlan(Strict):
    """A race: `concurrency` requests of fixed lengths start together, on an idle engine.

    At low concurrency one batch is over quickly, so batches follow one another until `min_requests` have run.
    """

    concurrency: Annotated[list[Positive], Field(min_length=1)]
    prompt_tokens: Positive
    output_tokens: Annotated[int, Field(ge=2)]
    min_requests: Positive = 1

    def batches(self, concurrency: int) -> int:
        """How many batches one point at this concurrency has."""
        return -(-self.min_requests // concurrency)


class PrefillPlan(Strict):
    """One prompt of `step_tokens` new tokens at a time, in one step, on an empty cache."""

    step_tokens: Annotated[list[Positive], Field(min_length=1)]
    requests: Positive = 3


class TuningPlan(Strict):
    """A first, small measurement that gives each contender its settings; the study then uses them.

    `candidates` are lists of settings by contender, each laid over that contender's own; these alone always take part
    as the first candidate. Every candidate is measured at all `concurrency` (batches of the plan's `batch`) and
    `step_tokens` (prefill), `rounds` times in a fresh process. The winner has the highest geometric mean of throughput
    over levels and rounds. `budget` is the most settings that a contender may try, its own included; a control takes
    the settings of the contender that it repeats.
    """

    candidates: dict[str, Annotated[list[dict[str, Any]], Field(min_length=1)]]
    concurrency: list[Positive] = []
    step_tokens: list[Positive] = []
    budget: Annotated[int, Field(ge=2)] = 6
    rounds: Positive = 1


class AgreementPlan(Strict):
    """Greedy answers of every contender, scored by the float32 reference before anything is timed."""

    tokens: Positive = 24
    # Largest distance, in logits, that a chosen token may have to the reference's best one. Correct bfloat16 engines
    # stay below 0.1 on SmolLM2-135M; one wrong constant (rotary base, a swapped head) is off by whole logits.
    max_gap: Annotated[float, Field(gt=0)] = 0.5
    min_best_share: Annotated[float, Field(gt=0, le=1)] = 0.9
