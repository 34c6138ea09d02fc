"""The laboratory: `check` a kernel or a variant of it, `profile` it, `compare` variants with it.

    from wholecurve.profiling.laboratory import check, compare, profile

A variant is a function with the operation's arguments (those of `kernels.load_subject(name).operation`, without
`form`) that returns either its outputs or (list of Launch, outputs) as a `kernel.launches` does; with launches it can
also be counted and compiled. Everything runs without a GPU; where there is one, `target="gpu"` measures on it.
"""

import pandas as pd
import torch

from wholecurve import kernels
from wholecurve.errors import UserError
from wholecurve.kernels.launch import run_all
from wholecurve.profiling.checks import check_case
from wholecurve.profiling.compile import TARGETS
from wholecurve.profiling.counting import count
from wholecurve.profiling.devices import bound, read_device
from wholecurve.profiling.rows import COLUMNS, INTEGERS
from wholecurve.profiling.static import static_rows

STATIC_TARGETS = ("sm_90", "sm_100")
CHECK_COLUMNS = ("case", "form", "gate", "worst", "loads", "loads by formula", "stores", "stores by formula")


def subject_of(kernel):
    """The Subject of a name; UserError names the kernels that exist."""
    try:
        return kernels.load_subject(kernel)
    except ValueError as error:
        raise UserError(str(error)) from None


def bench_cases(subject, case=None):
    """The bench cases by name, or the one that is asked for; UserError names those that exist.

    A kernel whose production cases are too large for a CPU has smaller ones in `spec.CPU_BENCH`: a CPU runs those.
    """
    cases, small = dict(subject.spec.BENCH), getattr(subject.spec, "CPU_BENCH", {})
    if case is None:
        return cases
    if case not in cases | small:
        raise UserError(f"{subject.name} has no case {case!r}; it has {', '.join(cases | small)}")
    return {case: (cases | small)[case]}


def check(kernel, variant=None, *, cases=None, forms=None, device="cpu", seed=0):
    """The gate and the count: one row per test case and form (`CHECK_COLUMNS`).

    Inputs are random between guard bands and outputs are poisoned. `gate` is "ok" or says what is wrong and where the
    worst element is; `worst` is the largest error as a share of what is allowed. For launches that are interpreted,
    bytes asked of memory stand beside the formula's. cases: dicts like those of `spec.TESTS`, None for all of them.
    """
    subject = subject_of(kernel)
    available = subject.available_forms(device)
    rows = []
    for case in cases if cases is not None else subject.spec.TESTS:
        for form in ["variant"] if variant is not None else forms or available:
            rows.append(check_row(subject, case, form, variant, device, seed))
    return pd.DataFrame(rows, columns=list(CHECK_COLUMNS))


def check_row(subject, case, form, variant, device, seed):
    """One row of `check`."""
    try:
        finding = check_case(subject, case, form, device=device, seed=seed, variant=variant)
        verdict, worst = "; ".join(finding.problems) or "ok", finding.worst_ratio
    except Exception as error:  # of a variant that does not even run: its row says so
        verdict, worst = f"{type(error).__name__}: {error}", None
    row = {"case": describe(case), "form": form, "gate": verdict, "worst": worst}
    if device == "cpu" and (form == "interpret" or (variant is not None and verdict == "ok")):
        row |= counted(subject, case, variant)
    return row


def counted(subject, case, variant=None):
    """Bytes that the interpreted launches load and store, beside the formula; {} for a variant without launches."""
    arguments = subject.arguments(case)
    answer = subject.launches(arguments) if variant is None else variant(**arguments)
    if not (isinstance(answer, tuple) and answer and isinstance(answer[0], list)):
        return {}
    with count() as counts:
        run_all(answer[0], interpreted=True)
    cost = subject.cost(case)
    return {
        "loads": counts.load_bytes,
        "loads by formula": cost.load_bytes,
        "stores": counts.store_bytes,
        "stores by formula": cost.store_bytes,
    }


def predict(kernel, devices=("h200-sxm", "b200-sxm"), *, case=None):
    """Bytes, FLOPs, intensity and the bound per device of every bench case, from the formula alone.

    One row per case: `bytes_min`, `bytes_model`, `flops`, `flop_per_byte`, and per device the bound in µs with what
    limits it ("55.9 µs, memory").
    """
    subject = subject_of(kernel)
    held = [read_device(name) for name in devices]
    rows = []
    for name, one in bench_cases(subject, case).items():
        cost = subject.cost(one)
        row = {"case": name, "bytes_min": cost.bytes_min, "bytes_model": cost.bytes_model, "flops": cost.flops}
        row["flop_per_byte"] = cost.intensity
        for device in held:
            limit = bound(cost, device)
            row[f"bound, {device.name}"] = (
                None if limit is None else f"{limit.us:.3g} µs, {limit.limit.quantity.partition('_')[0]}"
            )
        rows.append(row)
    return pd.DataFrame(rows)


def profile(kernel, case=None, *, targets=STATIC_TARGETS, device=None, seconds=1.0, threads=None, config=None):
    """Rows of `rows.COLUMNS` for the bench cases of a kernel (or one of them) on each target.

    targets: compile targets ("sm_90", "sm_100", "sm_80", "sm_120", "gfx942": static rows), "cpu" (measured here with
    `threads` or torch's own number of them, cases that fit) and "gpu" (measured on this process's GPU). device: name
    of a device of `data/devices` or a device file for the bounds of static rows. What was left out is in
    `.attrs["left_out"]`.
    """
    return frame(*rows_on(subject_of(kernel), case, targets, device, {}, seconds, threads, config))


def compare(kernel, variants, case=None, *, tests=None, targets=STATIC_TARGETS, device=None, seconds=1.0):
    """The kernel and variants of it (functions by name) side by side: gate first, then what `profile` gives for each.

    A variant that does not pass the gate on the test cases (`tests`, None for those of the kernel) gets one row per
    target that says so, and no numbers. On "cpu" and "gpu" all forms are timed in turns.
    """
    subject = subject_of(kernel)
    red = {name: first_problem(subject, variant, tests) for name, variant in variants.items()}
    good = {name: variant for name, variant in variants.items() if not red[name]}
    rows, left_out = rows_on(subject, case, targets, device, good, seconds)
    for target in as_list(targets):
        for label, problem in red.items():
            if problem:
                rows.append({"kernel": kernel, "form": label, "target": target, "note": f"gate is red: {problem}"})
    return frame(rows, left_out)


def rows_on(subject, case, targets, device, variants, seconds, threads=None, config=None):
    """(rows, what was left out) of a kernel and of variants that passed the gate, target by target."""
    rows, left_out = [], []
    cases = bench_cases(subject, case)
    held = read_device(device) if device is not None else None
    for target in as_list(targets):
        if target in TARGETS:
            for name, one in cases.items():
                rows += static_rows(subject, name, one, target, device=held, config=config)
                for label, variant in variants.items():
                    rows += static_rows(subject, name, one, target, device=held, variant=variant, form=label)
        elif target == "cpu":
            found, skipped = on_cpu(subject, case, variants, seconds, threads)
            rows, left_out = rows + found, left_out + skipped
        elif target == "gpu":
            rows += on_gpu(subject, cases, variants)
        else:
            raise UserError(f"no target {target!r}; there are {', '.join(TARGETS)}, cpu and gpu")
    return rows, left_out


def as_list(targets):
    """Targets as a list; one may be given as a word."""
    return [targets] if isinstance(targets, str) else list(targets)


def first_problem(subject, variant, tests=None):
    """The first thing that the gate finds wrong with a variant on the test cases, "" for nothing."""
    for case in subject.spec.TESTS if tests is None else tests:
        row = check_row(subject, case, "variant", variant, "cpu", 0)
        if row["gate"] != "ok":
            return f"{row['case']}: {row['gate']}"
    return ""


def on_cpu(subject, case, variants, seconds, threads=None):
    """(rows, what was left out) of the cases that fit a CPU, on this number of threads."""
    from wholecurve.profiling.measured import cpu_device, cpu_rows, fits_cpu

    cases = bench_cases(subject, case)
    if case is None:
        cases = getattr(subject.spec, "CPU_BENCH", cases)
    fitting = {name: case for name, case in cases.items() if fits_cpu(subject, case)}
    left_out = [f"{subject.name} {name}: too large to check and time on a CPU" for name in cases if name not in fitting]
    if not fitting:
        return [], left_out
    before, rows = torch.get_num_threads(), []
    torch.set_num_threads(threads or before)
    try:
        device = cpu_device(threads=threads or before)
        for name, case in fitting.items():
            rows += cpu_rows(subject, name, case, device, variants=variants, seconds=seconds)
    finally:
        torch.set_num_threads(before)
    return rows, left_out


def on_gpu(subject, cases, variants):
    """Rows measured on the GPU of this process; UserError where there is none."""
    if not torch.cuda.is_available():
        raise UserError("target gpu: torch sees no CUDA device here; use sm_90, sm_100 or cpu")
    from wholecurve.profiling.gpu import this_gpu
    from wholecurve.profiling.measured import gpu_rows

    device, rows = this_gpu(), []
    for name, case in cases.items():
        rows += gpu_rows(subject, name, case, device, variants=variants)
    return rows


def frame(rows, left_out):
    """Rows as a frame of COLUMNS; raw samples and what was left out are in its `attrs`."""
    made = pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(INTEGERS, "Int64"))
    made.attrs["left_out"] = left_out
    made.attrs["samples_us"] = [row.get("samples_us", []) for row in rows]
    return made


def describe(case):
    """A test case in one line: "num_tokens 3, hidden 2049"."""
    return ", ".join(f"{name} {value}" for name, value in case.items())
