"""The plan of a study: what is compared, at which load levels, how often. Written first, hashed, never mixed."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from wholecurve.studies.contender_names import check_contenders
from wholecurve.studies.contenders.options import parse_options
from wholecurve.studies.plan_file import read_document, validated
from wholecurve.studies.plan_parts import (
    AgreementPlan,
    BatchPlan,
    ContenderPlan,
    DecodePlan,
    Positive,
    PrefillPlan,
    Strict,
    TuningPlan,
)

# Goes up whenever what is measured, or how, changes: points of different versions are not comparable.
HARNESS_VERSION = 1


class Plan(Strict):
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
    batch: BatchPlan | None = None
    tuning: TuningPlan | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Plan":
        check_contenders(self.contenders, "engine")
        if self.decode is None and self.prefill is None and self.batch is None:
            raise ValueError("decode, prefill, batch: at least one of them must be there")
        for where, values in self._level_lists():
            if len(set(values)) != len(values):
                raise ValueError(f"{where}: a load level is listed twice")
        self._check_batch()
        self._check_tuning()
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
        if self.batch:
            lists.append(("batch.concurrency", self.batch.concurrency))
        if self.tuning:
            lists.append(("tuning.concurrency", self.tuning.concurrency))
            lists.append(("tuning.step_tokens", self.tuning.step_tokens))
        return lists

    def _check_batch(self) -> None:
        if self.batch is None:
            return
        # With so few steps the first request may end before the last prompt is through, and nothing is measured.
        steps = -(-max(self.batch.concurrency) * self.batch.prompt_tokens // self.max_step_tokens)
        if self.batch.output_tokens <= 2 * steps:
            raise ValueError(
                f"batch.output_tokens: {self.batch.output_tokens} is too few: the prompts of "
                f"{max(self.batch.concurrency)} requests take {steps} steps, so more than {2 * steps} are needed "
                "for all of them to decode together"
            )

    def _check_tuning(self) -> None:
        tuning = self.tuning
        if tuning is None:
            return
        if tuning.concurrency and self.batch is None:
            raise ValueError("tuning.concurrency: it measures batches, and the plan has no batch")
        if tuning.step_tokens and self.prefill is None:
            raise ValueError("tuning.step_tokens: it measures prefill steps, and the plan has no prefill")
        if not tuning.concurrency and not tuning.step_tokens:
            raise ValueError("tuning: at least one load level is needed in concurrency or step_tokens")
        # What every contender gets (token budget, cache, sequences) comes from the race; tuning must fit into it.
        for where, value, most in (
            ("concurrency", max(tuning.concurrency, default=0), max(self.batch.concurrency) if self.batch else 0),
            ("step_tokens", max(tuning.step_tokens, default=0), max(self.prefill.step_tokens) if self.prefill else 0),
        ):
            if value > most:
                raise ValueError(f"tuning.{where}: {value} is above the race's largest level {most}")
        contenders = {contender.name: contender for contender in self.contenders}
        for name, candidates in tuning.candidates.items():
            if name not in contenders or contenders[name].control_of is not None:
                raise ValueError(f"tuning.candidates: {name!r} is no contender of its own; there is: {self._tunable()}")
            if len(candidates) + 1 > tuning.budget:
                raise ValueError(
                    f"tuning.candidates.{name}: {len(candidates)} candidates and its own settings are more than the "
                    f"budget of {tuning.budget} that every contender has"
                )
            for i, candidate in enumerate(candidates):
                try:
                    parse_options(contenders[name].engine, {**contenders[name].settings, **candidate})
                except ValueError as error:
                    raise ValueError(f"tuning.candidates.{name}.{i}: {error}") from None

    def _tunable(self) -> str:
        return ", ".join(contender.name for contender in self.contenders if contender.control_of is None)

    @property
    def max_step_tokens(self) -> int:
        """Token budget of a step that every contender gets: the largest prefill step, 2,048 without one."""
        return max(self.prefill.step_tokens) if self.prefill else 2048

    @property
    def max_concurrency(self) -> int:
        levels = [plan.concurrency for plan in (self.decode, self.batch) if plan]
        return max(map(max, levels), default=1)

    @property
    def sequence_tokens(self) -> int:
        """Longest request that runs beside others, in whole cache blocks of any contender."""
        decode = self.decode.prompt_tokens[1] + self.decode.output_tokens[1] if self.decode else 0
        batch = self.batch.prompt_tokens + self.batch.output_tokens if self.batch else 0
        return max(decode, batch) + 64

    @property
    def cache_tokens(self) -> int:
        """Tokens of key-value cache that every contender gets: all sequences at their longest, in whole blocks."""
        together = self.max_concurrency * self.sequence_tokens if self.decode or self.batch else 0
        return max(together, 2 * self.max_step_tokens, 4096)

    def document(self) -> dict:
        """What is stored with the run: the plan, its hash and the harness version.

        A field that came later and is not used does not enter: the hash of an older plan stays what it was.
        """
        plan = self.model_dump(mode="json")
        for field in ("batch", "tuning"):
            if plan[field] is None:
                del plan[field]
        for contender in plan["contenders"]:
            if not contender["settings"]:
                del contender["settings"]
        text = json.dumps({"plan": plan, "harness_version": HARNESS_VERSION}, sort_keys=True)
        return {
            "plan": plan,
            "harness_version": HARNESS_VERSION,
            "plan_hash": hashlib.sha256(text.encode()).hexdigest(),
        }


def read_plan(path: Path) -> Plan:
    """Read and validate a YAML plan; UserError names the file, the field and what is wrong with it.

    `dtype: auto` becomes the type that this machine's CPU multiplies natively, before the plan is hashed.
    """
    return validated(Plan, read_document(path), path)
