"""One run on a GPU machine: kernels and engine checked and timed, the ceilings measured, one folder to commit.

    python -m wholecurve.profiling.gpu_day --out data/kernels/NAME

Needs torch, triton, numpy, pandas and ml_dtypes, nothing else, and no network. It is built to fit a budget of
minutes: kernels are compiled first on all cores without the GPU, then ceilings, checks of kernels and engine, steps of
a model (`gpu_day_engine.py`), production cases of kernels and tuning configurations follow in that order, and what the
budget did not reach is named in `not_run.json`. Rows are written as they are made, so a killed run keeps them and the
same command goes on after them. `--rehearse` runs the same steps on a CPU with the interpreter, on the smallest cases:
it measures nothing worth keeping.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import time
from pathlib import Path

import pandas as pd
import torch
import triton

from wholecurve import kernels
from wholecurve.files import write_json, write_text
from wholecurve.profiling.checks import check_case
from wholecurve.profiling.compile import compile_launch
from wholecurve.profiling.devices import Device
from wholecurve.profiling.laboratory import describe, frame
from wholecurve.profiling.measured import cpu_device, cpu_rows, fits_cpu, gpu_rows
from wholecurve.profiling.rows import HARNESS
from wholecurve.runs.provenance import collect, package_versions

BUDGET_SECONDS = 460
CHECKS, ROWS = "checks.jsonl", "rows.jsonl"


class Day:
    """The state of one run. folder: where everything is written. names: of kernels. engine: whether its cells are run.
    deadline: of `time.monotonic`.
    """

    def __init__(self, folder, budget, names, rehearse, engine=True):
        self.folder, self.names, self.rehearse, self.engine = Path(folder), names, rehearse, engine
        self.started, self.deadline = time.monotonic(), time.monotonic() + budget
        self.folder.mkdir(parents=True, exist_ok=True)
        self.not_run = []

    def late(self, what):
        """Whether the budget is used up; then `what` is noted as not run."""
        if time.monotonic() < self.deadline:
            return False
        self.not_run.append(what)
        return True

    def say(self, text):
        """One line of progress with the seconds since the start."""
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)

    def lines(self, name):
        """The rows that a file of the folder has already."""
        path = self.folder / name
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def append(self, name, rows):
        """Add rows to a file of the folder, which is whole whatever kills the run."""
        kept = self.lines(name)
        text = "".join(json.dumps(row) + "\n" for row in (*kept, *rows))
        write_text(self.folder / name, text)


def run(day):
    """All steps; see the top of this file."""
    provenance = collect() | {"packages": package_versions(["torch", "triton", "numpy", "pandas", "ml_dtypes"])}
    write_json(day.folder / "provenance.json", provenance | {"harness": HARNESS, "rehearsal": day.rehearse})
    precompile(day)
    device = ceilings(day)
    check_all(day)
    if day.engine:
        # here, so that with --no-engine the kernels have their day whatever the engine needs
        from wholecurve.profiling import gpu_day_engine

        gpu_day_engine.check_engine(day)
        gpu_day_engine.time_engine(day, device)
    profile_all(day, device, with_configs=False)
    profile_all(day, device, with_configs=True)
    write_table(day)
    write_json(day.folder / "not_run.json", {"budget_used_up_before": day.not_run})
    day.say(f"done: {len(day.lines(CHECKS))} checks, {len(day.lines(ROWS))} rows, {len(day.not_run)} parts not run")


def precompile(day):
    """Fill Triton's cache on disk with every launch of this run, on all cores, before the GPU is used."""
    target = "sm_90" if day.rehearse else "sm_{}{}".format(*torch.cuda.get_device_capability())
    jobs = [
        (name, index, config, target)
        for name in day.names
        for subject in [kernels.load_subject(name)]
        for index in range(len(cases_of(subject, day.rehearse)))
        for config in [None, *([] if day.rehearse else subject.spec.CONFIGS)]
    ]
    steps = step_jobs(target, day.rehearse) if day.engine else []
    failed = []
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        pending = {pool.submit(*job): ["step", *job[1:]] for job in steps}
        pending |= {pool.submit(compile_case, *job, day.rehearse): job for job in jobs}
        for done in concurrent.futures.as_completed(pending):
            if done.exception() is not None:
                failed.append({"job": pending[done], "error": str(done.exception())[:500]})
            if day.late("the rest of the compilation ahead"):
                pool.shutdown(cancel_futures=True)
                break
    write_json(day.folder / "compiled_ahead.json", {"target": target, "jobs": len(jobs) + len(steps), "failed": failed})
    day.say(f"compiled {len(jobs)} cases and {len(steps)} steps ahead for {target}, {len(failed)} failed")


def step_jobs(target, rehearse):
    """(function, its arguments) for each step of the engine to compile in a worker process."""
    from wholecurve.profiling import gpu_day_engine

    return [(gpu_day_engine.compile_step, name, target, rehearse) for name in gpu_day_engine.compile_jobs()]


def compile_case(name, index, config, target, rehearse):
    """Compile the launches of one case in a worker process."""
    torch.set_num_threads(1)
    subject = kernels.load_subject(name)
    cases = cases_of(subject, rehearse)
    arguments = subject.arguments(cases[index], "meta")
    launches, _ = subject.launches(arguments, None if config is None else subject.spec.CONFIGS[config])
    for launch in launches:
        compile_launch(launch, target)


def cases_of(subject, rehearse):
    """Test cases, then bench cases; a rehearsal takes one of each that is small."""
    spec = subject.spec
    if rehearse:
        return [largest_test(spec), *small_bench(subject).values()]
    return [*spec.TESTS, *spec.BENCH.values()]


def largest_test(spec):
    """The test case that moves the most bytes: a rehearsal checks one with some work in it."""
    return max(spec.TESTS, key=lambda case: spec.cost(**case).bytes_min)


def small_bench(subject):
    """The bench case with the fewest bytes, where it fits a CPU."""
    name = min(subject.spec.BENCH, key=lambda name: subject.cost(subject.spec.BENCH[name]).bytes_min)
    case = subject.spec.BENCH[name]
    return {name: case} if fits_cpu(subject, case) else {}


def ceilings(day):
    """The Device with its measured ceilings, recorded in `device.json`."""
    if day.rehearse:
        device, samples = cpu_device(), {}
    else:
        from wholecurve.profiling.gpu import measure_gpu_ceilings, this_gpu

        known = this_gpu()
        measured, samples = measure_gpu_ceilings(known)
        device = Device(known.name, known.target, known.cache_bytes, (*known.ceilings, *measured))
    listed = [
        {"quantity": one.quantity, "value": one.value, "class": one.kind, "source": one.source}
        for one in device.ceilings
    ]
    document = {"name": device.name, "target": device.target, "cache_bytes": device.cache_bytes, "ceilings": listed}
    write_json(day.folder / "device.json", document | {"samples_per_s": samples})
    day.say(f"ceilings of {device.name} recorded")
    return device


def check_all(day):
    """The gate on every test case of every kernel, compiled for this GPU."""
    where, form = ("cpu", "interpret") if day.rehearse else ("cuda", "triton")
    have = {(row["kernel"], row["case"]) for row in day.lines(CHECKS)}
    for name in day.names:
        subject, rows = kernels.load_subject(name), []
        cases = [largest_test(subject.spec)] if day.rehearse else subject.spec.TESTS
        for case in cases:
            if (name, describe(case)) in have:
                continue
            if day.late(f"checks of {name}"):
                break
            rows.append({"kernel": name, "case": describe(case), "form": form, **checked(subject, case, form, where)})
        day.append(CHECKS, rows)
        bad = [row for row in rows if row["problem"]]
        day.say(f"{name}: {len(rows)} cases checked, {len(bad)} wrong")


def checked(subject, case, form, where):
    """What the gate says of one case; an exception is a problem like any other."""
    try:
        finding = check_case(subject, case, form, device=where)
    except Exception as error:  # one broken kernel must not end the day
        return {"problem": f"{type(error).__name__}: {str(error)[:300]}", "worst": None}
    worst = finding.worst_ratio if finding.worst_ratio < float("inf") else None
    return {"problem": "; ".join(finding.problems), "worst": worst}


def profile_all(day, device, with_configs):
    """Measured rows of every bench case: the kernel's own choice and baselines, or the tuning configurations."""
    stage = "configurations" if with_configs else "own choice"
    have = {(row["kernel"], row["case"], row["stage"]) for row in day.lines(ROWS)}
    if day.rehearse and with_configs:
        return
    for name in day.names:
        subject = kernels.load_subject(name)
        for label, case in (small_bench(subject) if day.rehearse else subject.spec.BENCH).items():
            if (name, label, stage) in have or (with_configs and not subject.spec.CONFIGS):
                continue
            if day.late(f"{stage} of {name}, {label}"):
                continue
            rows = profiled(subject, label, case, device, with_configs, day.rehearse)
            day.append(ROWS, [row | {"stage": stage} for row in rows])
            times = [f"{row['form']} {row['median_us']:.1f} µs" for row in rows if row.get("median_us")]
            day.say(f"{name} {label}: {', '.join(times) or rows[0]['note']}")


def profiled(subject, label, case, device, with_configs, rehearse):
    """Rows of one case; a failure is a row that says so."""
    versions = f"torch {torch.__version__}, triton {triton.__version__}"
    try:
        if rehearse:
            return cpu_rows(subject, label, case, device, seconds=0.1)
        configs = list(subject.spec.CONFIGS) if with_configs else None
        return gpu_rows(subject, label, case, device, configs=configs, versions=versions)
    except Exception as error:  # out of memory, for instance: the day goes on
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        note = f"{type(error).__name__}: {str(error)[:300]}"
        return [{"kernel": subject.name, "case": label, "form": "triton", "median_us": None, "note": note}]


def write_table(day):
    """`rows.csv`: the measured rows without their raw samples, which stay in `rows.jsonl`."""
    table = frame(day.lines(ROWS), [])
    write_text(day.folder / "rows.csv", table.to_csv(index=False, lineterminator="\n"))
    checks = pd.DataFrame(day.lines(CHECKS), columns=["kernel", "case", "form", "problem", "worst"])
    wrong = checks[checks["problem"] != ""]
    day.say(f"{len(checks) - len(wrong)} of {len(checks)} checks passed")


def main():
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="folder to write, for instance data/kernels/h200-2026-01-31")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, help="seconds after which nothing new begins")
    parser.add_argument("--kernels", nargs="*", default=list(kernels.KERNELS), help="only these")
    parser.add_argument("--no-engine", action="store_true", help="kernels alone, without the engine and its steps")
    parser.add_argument("--rehearse", action="store_true", help="the same steps on a CPU, on the smallest cases")
    options = parser.parse_args()
    unknown = sorted(set(options.kernels) - set(kernels.KERNELS))
    if unknown:
        parser.error(f"no kernel {', '.join(unknown)}; there are {', '.join(kernels.KERNELS)}")
    if not options.rehearse and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here; --rehearse runs the same steps on a CPU")
    run(Day(options.out, options.budget, options.kernels, options.rehearse, not options.no_engine))


if __name__ == "__main__":
    main()
