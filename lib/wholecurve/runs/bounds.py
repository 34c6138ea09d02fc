"""The upper bounds of a run: its model's cost formulas at the ceilings that were measured in the same run."""

import pandas as pd

from wholecurve.models.bounds import Ceilings, decode_bound, prefill_bound
from wholecurve.models.config import ModelConfig
from wholecurve.runs.folder import RunFolder

_ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}
BOUND_LABEL = "bound from measured ceilings"


def run_bounds(run: RunFolder, workload: str) -> pd.DataFrame:
    """One row per load level of `workload` ("decode", "batch", "prefill" or "serving"): `load`, `label` and the bound.

    Empty when the run has no ceilings or not this workload, and for servers under any load but a closed loop of
    requests without a prefix cache whose lengths are drawn uniformly: what else they save or wait for has no formula.
    """
    plan = run.plan["plan"]
    closed = _closed_loop(plan) if workload == "serving" else plan.get(workload)
    if not run.has("ceilings") or not closed or not (run.read("model").get("config")):
        return pd.DataFrame()
    measured = run.read("ceilings")
    ceilings = Ceilings(measured["read_bytes_per_s"], measured["gemm_flops_per_s"])
    fields = run.read("model")["config"]
    config = ModelConfig(**{**fields, "eos_token_ids": tuple(fields["eos_token_ids"])})
    itemsize, rows = _ITEMSIZE[plan["dtype"]], []
    if workload in ("decode", "serving"):
        prompt, output = (sum(closed[name]) / 2 for name in ("prompt_tokens", "output_tokens"))
        for load in sorted(closed["concurrency"]):
            rows.append({"load": load, **decode_bound(config, ceilings, itemsize, load, prompt, output)})
    elif workload == "batch":
        prompt, output = plan["batch"]["prompt_tokens"], plan["batch"]["output_tokens"]
        for load in sorted(plan["batch"]["concurrency"]):
            speed = decode_bound(config, ceilings, itemsize, load, prompt, output)["decode_speed_tok_per_s"]
            # While all decode there is no prefill: every step gives each request a token.
            rows.append({"load": load, "decode_speed_tok_per_s": speed, "output_throughput_tok_per_s": load * speed})
    else:
        for load in sorted(plan["prefill"]["step_tokens"]):
            rows.append({"load": load, **prefill_bound(config, ceilings, itemsize, load)})
    return pd.DataFrame(rows).assign(label=BOUND_LABEL)


def _closed_loop(plan: dict) -> dict | None:
    """Lengths and levels of a serving plan in the words of a decode plan; None where it is another kind of load."""
    workload, load = plan.get("workload") or {}, plan.get("load") or {}
    lengths = [workload.get(name) for name in ("prompt_tokens", "output_tokens")]
    is_uniform = workload.get("kind") == "lengths" and all(isinstance(amount, list) for amount in lengths)
    if not (is_uniform and load.get("closed") and plan.get("prefix_cache") == "off"):
        return None
    return {"prompt_tokens": lengths[0], "output_tokens": lengths[1], "concurrency": load["closed"]["concurrency"]}


BOUNDED = {
    "decode": ("output_throughput_tok_per_s", "decode_speed_tok_per_s"),
    "serving": ("output_throughput_tok_per_s", "decode_speed_tok_per_s"),
    "batch": ("output_throughput_tok_per_s", "decode_speed_tok_per_s"),
    "prefill": ("input_throughput_tok_per_s",),
}


def above_bound(run: RunFolder) -> list[str]:
    """Measurements above what the ceilings allow: each one is an error, of the ceilings or of the measurement."""
    points, found = run.points(), []
    for workload, columns in BOUNDED.items():
        bounds = run_bounds(run, workload)
        if bounds.empty:
            continue
        rows = points[points["workload"] == workload]
        for column in columns:
            share = rows[column] / rows["load"].map(bounds.set_index("load")[column])
            for row, value in zip(rows[share > 1].itertuples(), share[share > 1]):
                where = f"{row.contender}, {workload} {row.load:g}, repeat {row.repeat}"
                found.append(f"{where}: {column} is {value:.0%} of its bound")
    return found
