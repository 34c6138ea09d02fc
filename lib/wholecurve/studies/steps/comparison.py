"""Two step studies side by side: the direct multipliers at equal load."""

import dataclasses

import pandas as pd

from wholecurve.curves.compare import Comparison, compare
from wholecurve.curves.curve import Curve
from wholecurve.errors import UserError
from wholecurve.studies.steps.record import StepRecord

# what makes two studies the same workload; the rest is what is compared
SAME = {"decode": ("kind", "model", "cached_tokens"), "prefill": ("kind", "model", "cached_tokens", "chunk_tokens")}


def step_points(record: StepRecord) -> pd.DataFrame:
    """The cells of a record that have a number, as points of a curve."""
    rows = [row for row in record.rows() if row["step_median_ms"] is not None]
    if not rows:
        raise UserError(f"{record.folder}: no cell has a number yet")
    frame = pd.DataFrame(rows)
    decode = record.plan["kind"] == "decode"
    return frame.assign(
        workload=f"{record.plan['kind']} step",
        load_kind="concurrency" if decode else "step_tokens",
        load=frame["requests"] if decode else frame["new_tokens"],
        devices=1,
        device_kind=frame["source"].str.extract(r"\((\w+)\)", expand=False),
        precision=frame["dtype"],
        hardware=frame["device"],
    )


def compare_steps(a: StepRecord, b: StepRecord) -> Comparison:
    """Study A over study B; only `direct` is read, since steps have no scheduler that would make loads comparable.

    UserError for studies of other workloads, or without a load in common.
    """
    plan_a, plan_b = a.plan, b.plan
    for record in (a, b):
        if record.plan["kind"] not in SAME:
            raise UserError(f"{record.folder}: a study of {record.plan['kind']}; decode and prefill steps are compared")
    for name in SAME[plan_a["kind"]]:
        if plan_a[name] != plan_b.get(name):
            raise UserError(
                f"{a.folder} has {name} {plan_a[name]}, {b.folder} has {plan_b.get(name)}; "
                "only steps of one workload can be compared"
            )
    curves, workload = [], f"{plan_a['kind']} step"
    for record in (a, b):
        curves.append(Curve.from_points(step_points(record), workload=workload))
    if not set(curves[0].points["load"]) & set(curves[1].points["load"]):
        raise UserError(f"{a.folder} and {b.folder} have no load in common")
    compared = compare(*curves)
    return dataclasses.replace(compared, warnings=[*differences(a, b), *compared.warnings])


def differences(a: StepRecord, b: StepRecord) -> list[str]:
    """What else than the contender differs between two studies, as sentences."""
    found, machines = [], [record.read("provenance")["hardware"]["fingerprint"] for record in (a, b)]
    if machines[0] != machines[1]:
        found.append(f"other machine: A ran on {machines[0]}, B on {machines[1]}")
    for name in ("device", "dtype", "threads", "contexts"):
        if a.plan[name] != b.plan[name]:
            found.append(f"other {name}: A {a.plan[name]}, B {b.plan[name]}")
    return found
