"""The plan of a study: what is compared, at which load levels, how often. Written first, hashed, never mixed."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wholecurve.errors import UserError
from wholecurve.files import slug
from wholecurve.runs.provenance import hardware

# Goes up whenever what is measured, or how, changes: points of different versions are not comparable.
HARNESS_VERSION = 1

Positive = Annotated[int, Field(ge=1)]
Range = Annotated[list[Positive], Field(min_length=2, max_length=2)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ContenderPlan(_Strict):
    """One engine with its configuration. `control_of` names the contender that this one repeats (A/A control)."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[^/:]+$")]
    engine: Literal["wholecurve", "transformers", "openvino"]
    control_of: str | None = None


class DecodePlan(_Strict):
    """Closed loop at each concurrency; lengths are drawn uniformly from [low, high] by the seed."""

    concurrency: Annotated[list[Positive], Field(min_length=1)]
    requests_per_slot: Annotated[int, Field(ge=2)] = 4
    prompt_tokens: Range
    output_tokens: Range


class PrefillPlan(_Strict):
    """One prompt of `step_tokens` new tokens at a time, in one step, on an empty cache."""

    step_tokens: Annotated[list[Positive], Field(min_length=1)]
    requests: Positive = 3


class AgreementPlan(_Strict):
    """Greedy answers of every contender, scored by the float32 reference before anything is timed."""

    tokens: Positive = 24
    # Largest distance, in logits, that a chosen token may have to the reference's best one. Correct bfloat16 engines
    # stay below 0.1 on SmolLM2-135M; one wrong constant (rotary base, a swapped head) is off by whole logits.
    max_gap: Annotated[float, Field(gt=0)] = 0.5
    min_best_share: Annotated[float, Field(gt=0, le=1)] = 0.9


class Plan(_Strict):
    """A whole study."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    model: str
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    threads: Positive | None = None
    seed: int = 0
    repeats: Positive = 3
    contenders: Annotated[list[ContenderPlan], Field(min_length=1)]
    decode: DecodePlan | None = None
    prefill: PrefillPlan | None = None
    agreement: AgreementPlan = AgreementPlan()

    @model_validator(mode="after")
    def _consistent(self) -> "Plan":
        names = [contender.name for contender in self.contenders]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"contenders: the name {doubled[0]!r} is used twice")
        # Points are files named by the contender: two names that become one file would pass for each other's points.
        slugs = [slug(name) for name in names]
        for name, as_file in zip(names, slugs):
            if not as_file or slugs.count(as_file) > 1:
                raise ValueError(f"contenders: the name {name!r} is not distinct from the others as a file name")
        engines = {contender.name: contender.engine for contender in self.contenders}
        for contender in self.contenders:
            if contender.control_of is not None and engines.get(contender.control_of) != contender.engine:
                raise ValueError(
                    f"contenders: control_of {contender.control_of!r} of {contender.name!r} must name another "
                    f"contender with the same engine"
                )
            if contender.control_of == contender.name:
                raise ValueError(f"contenders: {contender.name!r} cannot be its own control")
        if self.decode is None and self.prefill is None:
            raise ValueError("decode, prefill: at least one of them must be there")
        for where, values in self._level_lists():
            if len(set(values)) != len(values):
                raise ValueError(f"{where}: a load level is listed twice")
        for where in ("prompt_tokens", "output_tokens"):
            low, high = getattr(self.decode, where) if self.decode else (1, 1)
            if low > high:
                raise ValueError(f"decode.{where}: the range [{low}, {high}] runs backwards")
        return self

    def _level_lists(self) -> list[tuple[str, list[int]]]:
        lists = []
        if self.decode:
            lists.append(("decode.concurrency", self.decode.concurrency))
        if self.prefill:
            lists.append(("prefill.step_tokens", self.prefill.step_tokens))
        return lists

    @property
    def max_step_tokens(self) -> int:
        """Token budget of a step that every contender gets: the largest prefill step, 2,048 without one."""
        return max(self.prefill.step_tokens) if self.prefill else 2048

    @property
    def max_concurrency(self) -> int:
        return max(self.decode.concurrency) if self.decode else 1

    @property
    def cache_tokens(self) -> int:
        """Tokens of key-value cache that every contender gets: all sequences at their longest, in whole blocks."""
        decode = self.decode.prompt_tokens[1] + self.decode.output_tokens[1] + 64 if self.decode else 0
        return max(self.max_concurrency * decode, 2 * self.max_step_tokens, 4096)

    def document(self) -> dict:
        """What is stored with the run: the plan, its hash and the harness version."""
        plan = self.model_dump(mode="json")
        text = json.dumps({"plan": plan, "harness_version": HARNESS_VERSION}, sort_keys=True)
        return {
            "plan": plan,
            "harness_version": HARNESS_VERSION,
            "plan_hash": hashlib.sha256(text.encode()).hexdigest(),
        }


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "unknown field"
    elif first["type"] != "missing" and where:
        message += f" (it is {first['input']!r})"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where + ': ' if where else ''}{message}{more}"


def native_dtype(cpu_features: list[str]) -> str:
    """ "bfloat16" where the CPU multiplies it natively, else "float32": emulated bfloat16 is slower than float32."""
    return "bfloat16" if {"avx512_bf16", "amx_bf16"} & set(cpu_features) else "float32"


def read_plan(path: Path) -> Plan:
    """Read and validate a YAML plan; UserError names the file, the field and what is wrong with it.

    `dtype: auto` becomes the type that this machine's CPU multiplies natively, before the plan is hashed.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such plan file") from None
    except (yaml.YAMLError, UnicodeDecodeError, IsADirectoryError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not a YAML file ({reason})") from None
    if isinstance(document, dict) and document.get("dtype") == "auto":
        document["dtype"] = native_dtype(hardware()["cpu_features"])
    if not isinstance(document, dict):
        raise UserError(f"{path}: a plan is a mapping of fields, this file holds {type(document).__name__}")
    try:
        return Plan.model_validate(document)
    except ValidationError as error:
        raise UserError(f"{path}: {_first_error(error)}") from None
