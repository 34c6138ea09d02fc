"""Tables for notebooks: what a kernel must do, whether it does, what the compiler made of it, how long it took."""

import pandas as pd

from wholecurve.profiling import recorded
from wholecurve.profiling.devices import bound, read_device

DEVICES = ("h200-sxm", "b200-sxm")
SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def prediction_table(kernel, devices=DEVICES):
    """Bytes, FLOPs and the bound on each device for every bench case, from the formula alone."""
    from wholecurve.kernels import load_spec

    spec, held = load_spec(kernel), [read_device(name) for name in devices]
    rows = []
    for name, case in spec.BENCH.items():
        cost = spec.cost(**case)
        row = {
            "case": name,
            "compulsory": f"{scaled(cost.bytes_min)}B",
            "asked by the kernel": f"{scaled(cost.bytes_model)}B",
            "FLOPs": scaled(cost.flops),
            "FLOP/B": f"{cost.intensity:.3g}",
        }
        for device in held:
            limit = bound(cost, device)
            what = "" if limit is None else limit.limit.quantity.partition("_")[0]
            row[f"at least, {device.name}"] = "–" if limit is None else f"{limit.us:.3g} µs ({what})"
        rows.append(row)
    return pd.DataFrame(rows)


def gate_table(*kernels):
    """The gate on every test case: cases, how many passed, and what is wrong with the first that did not."""
    from wholecurve.profiling.laboratory import check

    rows = []
    for kernel in kernels:
        found = check(kernel)
        for form, part in found.groupby("form", sort=False):
            wrong = part.loc[part["gate"] != "ok", "gate"]
            verdict = "all right" if wrong.empty else wrong.iloc[0]
            rows.append((kernel, form, len(part), int((part["gate"] == "ok").sum()), verdict))
    return pd.DataFrame(rows, columns=["kernel", "form", "cases", "passed", "verdict"])


def count_table(kernel, cases=4):
    """Bytes that the interpreted kernel asked for beside the formula, for the test cases with the most of them."""
    from wholecurve.kernels import load_spec
    from wholecurve.profiling.laboratory import check

    spec = load_spec(kernel)
    largest = sorted(spec.TESTS, key=lambda case: -spec.cost(**case).bytes_min)[:cases]
    found = check(kernel, cases=largest, forms=["interpret"])
    numbers = found[["loads", "loads by formula", "stores", "stores by formula"]].astype("int64")
    same = (numbers["loads"] == numbers["loads by formula"]) & (numbers["stores"] == numbers["stores by formula"])
    return pd.concat(
        [found["case"], numbers.map("{:,}".format), same.map({True: "yes", False: "NO"}).rename("equal")], axis=1
    )


def static_table(kernel, targets=("sm_90", "sm_100")):
    """What the compiler made of each launch of the bench cases, from the committed table."""
    rows = recorded.static_rows(kernel)
    rows = rows[rows["target"].isin(targets)]
    return pd.DataFrame(
        {
            "case": rows["case"],
            "launch": rows["launch"],
            "target": rows["target"],
            "registers": rows["registers"],
            "spill bytes": rows["spill_bytes"],
            "shared KiB": (rows["shared_bytes"].astype(float) / 1024).map("{:.1f}".format),
            "occupancy": written(rows["occupancy"], "{:.0%}"),
            "matrix": written(rows["matrix"]),
            "copies": written(rows["copies"]),
        }
    ).reset_index(drop=True)


def cpu_table(kernel):
    """Times of the CPU form and of plain torch, taken in turns on one machine; the ratio is to the unfused form."""
    found = time_table(recorded.cpu_rows(kernel))
    return nothing(f"{kernel} was not timed on a CPU") if found is None else found


def gpu_table(kernel):
    """Times that were recorded on a GPU; one row that says so where there are none."""
    found = time_table(recorded.gpu_rows(kernel))
    return nothing(f"no GPU has run {kernel} yet; the bounds above are no measurements") if found is None else found


def nothing(sentence):
    """A table of one row that says what is not there."""
    return pd.DataFrame({"recorded": [sentence]})


def time_table(rows):
    """Median, p10 to p90, bound, and how many times faster than the form called "eager" each form is; None for no rows.

    A form is set against the eager one of the same case, device and number of threads, which took turns with it.
    """
    timed = rows[rows["median_us"].notna()]
    if timed.empty:
        return None
    turns = list(zip(timed["case"], timed["device"], timed["threads"].astype(object).fillna(0)))
    eager = {turn: us for turn, form, us in zip(turns, timed["form"], timed["median_us"]) if form == "eager"}
    over = [eager[turn] / us if turn in eager else None for turn, us in zip(turns, timed["median_us"])]
    return pd.DataFrame(
        {
            "case": timed["case"],
            "form": timed["form"],
            "device": timed["device"],
            "threads": written(timed["threads"]),
            "median µs": timed["median_us"].map("{:.1f}".format),
            "p10–p90 µs": timed["p10_us"].map("{:.1f}".format) + "–" + timed["p90_us"].map("{:.1f}".format),
            "bound µs": written(timed["bound_us"], "{:.3g}"),
            "× eager": written(pd.Series(over, index=timed.index), "{:.2f}"),
            "cache": timed["cache"],
        }
    ).reset_index(drop=True)


def written(column, form="{}"):
    """A column as text, with a dash where there is nothing."""
    return column.astype(object).map(lambda value: "–" if pd.isna(value) or value == "" else form.format(value))


def scaled(amount):
    """A number with a decimal prefix: "268 M", "4.2 G"."""
    for size, letter in SCALES:
        if amount >= size:
            return f"{amount / size:.3g} {letter}"
    return f"{amount:.3g} "
