"""Small synthetic runs for the tests of the card: folders as a study writes them, whose points follow from traces."""

from pathlib import Path

import numpy as np

from wholecurve.curves.metrics import reduce_prefill, reduce_trace
from wholecurve.curves.serving_metrics import reduce_serving
from wholecurve.curves.slo import Slo
from wholecurve.runs import RunFolder
from wholecurve.runs.folder import rounded
from wholecurve.studies.plan import Plan
from wholecurve.studies.protocol import schedule
from wholecurve.studies.serving.plan import ServingPlan
from wholecurve.studies.serving.schedule import schedule as serving_schedule
from wholecurve.trace import RequestTrace

SPEED = {"wholecurve": 1.0, "wholecurve again": 1.0, "transformers": 0.6, "vllm": 0.8}
ENGINES = {
    "name": "small",
    "model": "smollm2-135m-instruct",
    "repeats": 3,
    "seed": 7,
    "contenders": [
        {"name": "wholecurve", "engine": "wholecurve"},
        {"name": "transformers", "engine": "transformers"},
        {"name": "wholecurve again", "engine": "wholecurve", "control_of": "wholecurve"},
    ],
    "decode": {"concurrency": [1, 2, 4], "requests_per_slot": 10, "prompt_tokens": [8, 16], "output_tokens": [6, 12]},
    "prefill": {"step_tokens": [32, 64], "requests": 2},
}
SERVERS = {
    "name": "served",
    "dtype": "bfloat16",
    "kind": "serving",
    "model": "smollm2-135m-instruct",
    "repeats": 3,
    "seed": 7,
    "contenders": [
        {"name": "wholecurve", "server": "wholecurve"},
        {"name": "vllm", "server": "vllm", "usd_per_hour": 2.0},
        {"name": "wholecurve again", "server": "wholecurve", "control_of": "wholecurve"},
    ],
    "workload": {"kind": "lengths", "prompt_tokens": [8, 16], "output_tokens": [6, 12]},
    "load": {"closed": {"concurrency": [2, 4]}},
    "requests": {"per_slot": 10, "at_least": 30},
    "slo": {"ttft_ms": 500, "tpot_ms": 100},
}
MODEL = {
    "name": "smollm2-135m-instruct",
    "config": {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_layers": 30, "num_heads": 9,
        "num_kv_heads": 3, "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e5, "max_position": 8192,
        "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_ids": [2],
    },
}  # fmt: skip
PROVENANCE = {
    "started": "2026-11-30T04:56:28+00:00",
    "hardware": {"cpu": "Test CPU", "cores": 2, "cpu_features": ["avx2"], "memory_bytes": 2**34, "gpus": []},
    "python": "3.11.7",
    "packages": {"wholecurve": "0.1.0", "torch": "2.13.0"},
    "git": {"commit": "0123456789abcdef0123", "dirty": False},
    "command": ["wholecurve", "study", "small.yaml"],
    "environment": {"OMP_NUM_THREADS": "2"},
}
AGREED = {"tokens": 192, "best_share": 0.98, "max_gap": 0.05, "mean_gap": 0.001}
LAG = {
    "send_late_p50_ms": 0.05, "send_late_p99_ms": None, "send_late_max_ms": 0.4, "loop_delay_p50_ms": 0.1,
    "loop_delay_p99_ms": 0.6, "loop_delay_max_ms": 2.0, "cpu_s": 0.1, "wall_s": 3.0, "processes": 1,
    "clock_uncertainty_ms": 0.0,
}  # fmt: skip


def ceilings_round(when="before the first point", read=4e10):
    """One measurement of the ceilings, with its raw trials."""
    rates = {"read_bytes_per_s": read, "gemm_flops_per_s": 9e11}
    return {"when": when, "source": "measured (cpu)", "dtype": "bfloat16", "threads": 2, **rates, "trials": {"n": 7}}


def loop_traces(name, load, repeat, served=False, requests=None):
    """A closed loop; a first token takes longer than a further one, lengths are the same for every contender."""
    lengths = np.random.default_rng([7, load, repeat])
    noise = 0.01 * np.cos(2.1 * repeat + 0.7 * len(name) + load)
    gap = 0.02 * (1 + load / 8) / SPEED[name] * np.exp(noise)
    free, traces = [0.0] * load, []
    for i in range(requests or 10 * load):
        slot = int(np.argmin(free))
        prompt, output = int(lengths.integers(8, 17)), int(lengths.integers(6, 13))
        arrivals = [free[slot] + (1.5 + j) * gap for j in range(output)]
        told = {
            "outcome": "completed", "finish_reason": "length", "wanted_tokens": output, "token_source": "usage",
            "session": f"s{i}",
        } if served else {}  # fmt: skip
        trace = RequestTrace(f"r{i:04d}", prompt, 0, free[slot], free[slot] + 1e-4, arrivals, [1] * output, **told)
        trace.finished_s = free[slot] = arrivals[-1] + 1e-5
        traces.append(rounded(trace))
    return traces


def prefill_traces(name, load, repeat):
    """Two prompts, one after the other."""
    took = load / 3000 / SPEED[name] * (1 + 0.002 * repeat)
    starts = [0.0, took + 0.01]
    return [
        rounded(RequestTrace(f"r{i:04d}", load, 0, at, at, [at + took], [1], at + took)) for i, at in enumerate(starts)
    ]


def described(engine):
    """What a contender reports of itself."""
    return {
        "engine": engine, "version": "1.2.3", "dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "threads": 2,
        "max_sequences": 8, "prefix_cache": False, "idle": {"cpu_share": 0.0, "stopped": False},
    }  # fmt: skip


def engines_run(path: Path, **changes) -> RunFolder:
    """A complete run of engines in their own processes; ``changes`` go into its plan."""
    plan = Plan.model_validate({**ENGINES, **changes})
    run = RunFolder.create(path, plan.document(), PROVENANCE)
    first, last = ceilings_round(), ceilings_round("after the last point")
    best = {name: first[name] for name in ("source", "dtype", "threads", "read_bytes_per_s", "gemm_flops_per_s")}
    run.write("ceilings", {**best, "rounds": [first, last]})
    run.write("model", MODEL)
    run.write("agreement", {contender.name: AGREED for contender in plan.contenders})
    engines = {contender.name: contender.engine for contender in plan.contenders}
    for point in schedule(plan):
        about = {
            "order": point.order, "contender": point.contender, "workload": point.workload, "load": point.load,
            "repeat": point.repeat, "source": "measured (cpu)", "worker_started": f"2026-11-30T0{point.repeat}:00:00",
            "settings": described(engines[point.contender]),
        }  # fmt: skip
        if point.workload == "decode":
            traces = loop_traces(point.contender, point.load, point.repeat)
            row = reduce_trace(traces, point.load)
        else:
            traces = prefill_traces(point.contender, point.load, point.repeat)
            row = reduce_prefill(traces, point.load)
        run.write_point(point.point_id, {**about, **row}, traces)
    return run


def serving_run(path: Path, **changes) -> RunFolder:
    """A complete run of servers under a closed loop; ``changes`` go into its plan."""
    plan = ServingPlan.model_validate({**SERVERS, **changes})
    run = RunFolder.create(path, plan.document(), PROVENANCE)
    run.write("model", MODEL)
    run.write("agreement", {contender.name: AGREED for contender in plan.contenders})
    servers = {contender.name: contender.server for contender in plan.contenders}
    place = {name: i for i, name in enumerate(servers)}
    slo = Slo.from_document(plan.slo.model_dump()) if plan.slo else None
    for point in serving_schedule(plan, list(servers)):
        count = plan.requests.count("concurrency", point.load)
        traces = loop_traces(point.contender, int(point.load), point.repeat, served=True, requests=count)
        row = reduce_serving(traces, point.load_kind, point.load, slo=slo, lag=LAG)
        settings = {**described(servers[point.contender]), "command": "serve --model m", "sources": {"dtype": "log"}}
        about = {
            "order": point.order, "contender": point.contender, "workload": point.workload, "load": point.load,
            "repeat": point.repeat, "source": "measured (cpu)", "settings": settings, "n_warm_up": int(point.load),
            "n_warm_up_failed": 0, "prefix_cache": plan.prefix_cache, "server_cache_hit_rate": 0.0, "counters": None,
            "gave_up": None, "restarts": 0, "server_started": f"2026-11-30T0{point.repeat}:0{place[point.contender]}",
        }  # fmt: skip
        run.write_point(point.point_id, {**row, **about}, traces)
    return run
