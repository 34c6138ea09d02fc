"""What must be alike before a ratio speaks of two engines: model, precision, hardware, workload and definitions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd

from wholecurve.curves.curve import Curve
from wholecurve.curves.gates.findings import Finding, values_text
from wholecurve.errors import UserError

UNSTATED_WORKLOAD = "decode"
# Mean lengths this far apart are another workload; jittered lengths and early stops stay within it.
LENGTHS_DIFFER = 0.1
_STATED = ("model", "precision", "hardware")
_DEFINITIONS = {"speed_from": "decode speed is computed from", "window": "throughput is over"}
_PRECISIONS = {"bf16": "bfloat16", "f16": "float16", "fp16": "float16", "half": "float16", "f32": "float32"}
_PRECISIONS |= {"fp32": "float32", "float8": "fp8", "float8_e4m3fn": "fp8"}
# These measure the same rate, with and without ramp and drain; the decode phase leaves prefill out.
_WHOLE_RUN = {"steady": "the run", "full": "the run", "arrivals": "the run"}


@dataclass(frozen=True)
class Difference:
    """A condition in which two curves differ, and what each of them has."""

    condition: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.condition} ({self.a} against {self.b})"


def differences(a: Curve, b: Curve) -> list[Difference]:
    """Conditions that both sides state and that differ. What a side does not state is not a difference."""
    found = []
    for condition in _STATED:
        of_a, of_b = (_stated(curve, condition) for curve in (a, b))
        if of_a and of_b and _same_words(condition, of_a) != _same_words(condition, of_b):
            found.append(Difference(condition, values_text(of_a), values_text(of_b)))
    found += _workload(a, b)
    for column, words in _DEFINITIONS.items():
        of_a, of_b = (
            {_WHOLE_RUN.get(v, v) for v in _stated(curve, column)} if curve.has_speed else set() for curve in (a, b)
        )
        if of_a and of_b and of_a != of_b:
            found.append(Difference(f"definition: {words}", values_text(of_a), values_text(of_b)))
    return found


def check_alike(a: Curve, b: Curve, across: bool) -> list[Finding]:
    """Refuse (UserError) curves under different conditions, or with ``across`` say in what they differ.

    Different denominators are refused always: a ratio of numbers per different things means nothing. What a side
    does not state is a finding of its own.
    """
    _check_denominators(a, b)
    found = differences(a, b)
    if found and not across:
        raise UserError(
            f"{a.name} and {b.name} differ in {', '.join(map(str, found))}: a ratio between them says nothing about "
            "the engines alone; give --across to have it all the same"
        )
    findings = [Finding("conditions-differ", f"A ({a.name}) and B ({b.name}) differ in {d}") for d in found]
    return findings + _unstated(a, b)


def check_frontiers(a: Sequence[Curve], b: Sequence[Curve], across: bool) -> list[Finding]:
    """The same for two sets of configurations: what any curve of A and any of B differ in, said once."""
    found = {}
    for curve_a, curve_b in product(a, b):
        for finding in check_alike(curve_a, curve_b, across):
            found.setdefault(finding.text, finding)
    return list(found.values())


def _check_denominators(a: Curve, b: Curve) -> None:
    kinds = [_stated(curve, "device_kind") for curve in (a, b)]
    if kinds[0] and kinds[1] and kinds[0] != kinds[1]:
        per = {"gpu": "per GPU", "cpu": "per CPU machine", "server": "per server, of unknown size"}
        texts = [values_text(per.get(kind, kind) for kind in found) for found in kinds]
        raise UserError(
            f"{a.name} is {texts[0]}, {b.name} is {texts[1]}: throughput on different denominators has no ratio; where "
            "a file does not say how many GPUs served, give --gpus-a or --gpus-b"
        )


def _workload(a: Curve, b: Curve) -> list[Difference]:
    if a.workload != b.workload and UNSTATED_WORKLOAD not in (a.workload, b.workload):
        return [Difference("workload", a.workload, b.workload)]
    for column, words in (("mean_input_tokens", "input"), ("mean_output_tokens", "output")):
        means = [
            pd.to_numeric(curve.points[column], errors="coerce").mean() if column in curve.points else None
            for curve in (a, b)
        ]
        if all(pd.notna(mean) for mean in means) and abs(means[0] / means[1] - 1) > LENGTHS_DIFFER:
            return [Difference("workload", *(f"{mean:.0f} {words} tokens a request" for mean in means))]
    return []


def _unstated(a: Curve, b: Curve) -> list[Finding]:
    found = []
    for side, curve in (("A", a), ("B", b)):
        missing = [condition for condition in _STATED if not _stated(curve, condition)]
        if missing:
            found.append(
                Finding(
                    "conditions-unstated",
                    f"{side} ({curve.name}) does not state {', '.join(missing)}: whether both sides are alike in it "
                    "was not checked",
                )
            )
    return found


def _stated(curve: Curve, column: str) -> set[str]:
    if column not in curve.points:
        return set()
    return {str(value) for value in curve.points[column].dropna().unique() if str(value).strip()}


def _same_words(condition: str, values: set[str]) -> set[str]:
    """The values without what is only spelling: upper case, the owner of a model, the two names of a precision."""
    lower = {value.strip().lower() for value in values}
    if condition == "model":
        return {value.rsplit("/", 1)[-1] for value in lower}
    return {_PRECISIONS.get(value, value) for value in lower} if condition == "precision" else lower
