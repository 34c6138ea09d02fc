"""A small serving run on disk, made from traces whose times follow from the load, without a server or a clock."""

import numpy as np

from wholecurve.curves import Slo, reduce_serving
from wholecurve.runs import RunFolder
from wholecurve.runs.folder import rounded
from wholecurve.trace import RequestTrace

MACHINE = {"cpu": "test", "cores": 2, "memory_bytes": None, "gpus": []}
SLO = {"ttft_ms": 500, "tpot_ms": 40, "e2e_ms": None, "share": 0.9}
# Milliseconds of a step: a part that every step costs, and one per request in flight. They cross between 4 and 8.
STEPS = {"wholecurve": (5.0, 2.0), "vLLM": (15.0, 0.5), "wholecurve again": (5.0, 2.0)}


def loop(name, load, repeat, requests=32, tokens=8, fails=0, session_turns=1):
    """A closed loop; the first ``fails`` requests after the first wave are refused."""
    base, per = STEPS[name]
    step = (base + per * load) / 1000 * (1 + 0.01 * repeat)
    random = np.random.default_rng([int(load), repeat])
    slots, traces, number = [0.0] * int(load), [], 0
    while number < requests:
        slot = int(np.argmin(slots))
        at = slots[slot]
        for turn in range(session_turns):
            known = {"session": f"s{number}", "wanted_tokens": tokens, "token_source": "usage"}
            if load <= number < load + fails:
                known |= {"finished_s": at + 0.001, "error": "HTTP 503", "outcome": "refused"}
                traces.append(RequestTrace(f"r{number}t{turn}", 64, 0, at, at, **known))
                at += 0.001
                break
            arrivals = at + 3 * step + np.cumsum(step * (1 + 0.02 * random.standard_normal(tokens)))
            known |= {"arrivals_s": arrivals.tolist(), "arrival_tokens": [1] * tokens, "outcome": "completed"}
            traces.append(RequestTrace(f"r{number}t{turn}", 64, 0, at, at, finished_s=float(arrivals[-1]), **known))
            at = float(arrivals[-1])
        slots[slot], number = at, number + 1
    return [rounded(trace) for trace in traces]


def serving_run(path, loads=(1, 4, 16), repeats=3, kind="concurrency", usd=None, tuned=(), fails=None, requests=32):
    """A run of three servers; ``tuned`` has (name, settings tried), ``fails`` the failures by (name, load)."""
    workload = "agents" if kind == "sessions" else "serving"
    control = {"wholecurve again": "wholecurve"}
    contenders = [
        {"name": name, "server": name.split()[0], "control_of": control.get(name), "usd_per_hour": usd, "devices": 1}
        for name in STEPS
    ]
    plan = {
        "name": "mini",
        "kind": "serving",
        "model": "tiny",
        "dtype": "bfloat16",
        "slo": SLO,
        "contenders": contenders,
    }
    about = {"started": "2026-01-01T00:00:00+00:00", "hardware": MACHINE}
    run = RunFolder.create(path, {"plan": plan, "harness_version": 1, "plan_hash": "0" * 64}, about)
    order, tried = 0, dict(tuned)
    for repeat in range(1, repeats + 1):
        for load in loads:
            for name in STEPS:
                failing = (fails or {}).get((name, load), 0)
                traces = loop(name, load, repeat, max(requests, 2 * load), 8, failing, 3 if kind == "sessions" else 1)
                row = {
                    "order": order, "workload": workload, "load": load, "repeat": repeat, "source": "measured (cpu)",
                    "contender": f"{name} (finalist 1 of {tried[name]})" if name in tried else name,
                    **reduce_serving(traces, kind, load, slo=Slo.from_document(SLO)),
                    "settings": {"version": "1"}, "server_started": "now", "server_cache_hit_rate": None,
                }  # fmt: skip
                run.write_point(f"{workload}-{name.replace(' ', '-')}-{load}-r{repeat}", row, traces)
                order += 1
    return run
