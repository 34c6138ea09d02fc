"""Tables behind the figures of a step taken apart, as frames of text."""

import pandas as pd

from wholecurve.figures.step_parts import NAMES, STEP, chosen, kinds_on, on_threads
from wholecurve.figures.ticks import format_rate

UNITS = {"byte/s": (1e9, "GB/s read"), "FLOP/s": (1e9, "GFLOP/s")}
ORDER = ("embedding", "norm", "qkv", "attention", "output", "gate_up", "down", "head", "waiting", "outside", STEP)
MISSING = "–"
TIMED = "native with timers"


def ceiling_table(ceilings: list[dict]) -> pd.DataFrame:
    """One row per thread count and kind of ceiling: its measurements before and after the cells, and which is used.

    ``ceilings`` are the `ceiling_rows` of a record. The best of all kinds and measurements is what bounds are made of.
    """
    frame = pd.DataFrame(ceilings)
    if frame.empty:
        return pd.DataFrame({"measured": ["no ceilings were measured"]})
    rows = []
    for (threads, unit), group in frame.groupby(["threads", "unit"], sort=False):
        scale, name = UNITS[unit]
        for kind, part in group.groupby("kind", sort=False):
            by_time = {when: part.loc[part["when"] == when, "value"].max() for when in ("before", "after")}
            shown = {when: MISSING if pd.isna(value) else f"{value / scale:.1f}" for when, value in by_time.items()}
            used = "used" if part["value"].max() == group["value"].max() else ""
            rows.append({"threads": threads, "what": name, "kind": kind, **shown, "bounds": used})
    return pd.DataFrame(rows)


def step_table(rows: pd.DataFrame, threads: int) -> pd.DataFrame:
    """One row per load: whole steps of both forms, their ratio, and the sum of the bounds of the parts."""
    found = []
    for kind in kinds_on(rows, threads):
        steps = chosen(rows, kind, threads)
        steps = steps[steps["part"] == STEP]
        for load, group in steps.groupby("new_tokens"):
            forms = group.set_index("form")
            native, torch = (forms.loc[form] if form in forms.index else None for form in ("native", "torch"))
            found.append(
                {
                    "step": kind,
                    "new tokens": load,
                    "native ms": spread(native),
                    "torch ms": spread(torch),
                    "torch / native": MISSING if torch is None else f"{torch.median_ms / native.median_ms:.2f}×",
                    "bound ms": number(native.bound_ms),
                    "of bound": share(native.attained),
                    "torch of bound": MISSING if torch is None else share(torch.attained),
                    "n": int(native.n_samples),
                }
            )
    return pd.DataFrame(found)


def part_table(rows: pd.DataFrame, kind: str, threads: int, column: str = "median_ms") -> pd.DataFrame:
    """Parts of the native step by load. ``column``: "median_ms" or "bound_ms" in ms, "attained" in percent of the
    ceiling, or "share" of the sum of all parts' times in percent.
    """
    native = chosen(rows, kind, threads)
    native = native[native["form"] == "native"]
    value = "median_ms" if column == "share" else column
    table = native.pivot(index="part", columns="new_tokens", values=value).astype(float)
    table = table.reindex([part for part in ORDER if part in table.index])
    if column == "share":
        table = table.drop(index=STEP)
        table = table / table.sum()
    write = share if column in ("share", "attained") else number
    written = table.dropna(how="all").map(write)
    written.index = [NAMES.get(part, part) for part in written.index]
    return written.rename_axis(index=f"{column.removesuffix('_ms')}, {on_threads(threads)}", columns=None)


def overhead_table(rows: pd.DataFrame, threads: int) -> pd.DataFrame:
    """One row per load: what is neither product nor attention in ms, its share of the parts, and what timers add."""
    found = []
    for kind in kinds_on(rows, threads):
        part = chosen(rows, kind, threads)
        native = part[part["form"] == "native"]
        times = native.pivot(index="part", columns="new_tokens", values="median_ms").astype(float)
        for load in times.columns:
            time = times[load]
            small = {"norms, embedding": time["norm"] + time["embedding"]}
            small |= {name: time[name] for name in ("waiting", "outside")}
            timers = part.loc[(part["form"] == TIMED) & (part["new_tokens"] == load), "median_ms"].iloc[0]
            found.append(
                {"step": kind, "new tokens": load}
                | {f"{name} ms": number(value) for name, value in small.items()}
                | {"of the parts": f"{sum(small.values()) / time.drop(STEP).sum():.1%}"}
                | {"timers add": f"{timers / time[STEP] - 1:+.1%}"}
            )
    return pd.DataFrame(found)


def thread_table(rows: pd.DataFrame, few: int, many: int) -> pd.DataFrame:
    """One row per load: the native step on a few and on many threads, how much faster it is, and what bounds allow."""
    found = []
    for kind in [kind for kind in kinds_on(rows, few) if kind in kinds_on(rows, many)]:
        steps = []
        for threads in (few, many):
            part = chosen(rows, kind, threads)
            steps.append(part[(part["form"] == "native") & (part["part"] == STEP)].set_index("new_tokens"))
        for load in steps[0].index.intersection(steps[1].index):
            one, all_of_them = steps[0].loc[load], steps[1].loc[load]
            known = pd.notna(one["bound_ms"]) and pd.notna(all_of_them["bound_ms"])
            found.append(
                {
                    "step": kind,
                    "new tokens": load,
                    f"ms, {on_threads(few)}": number(one["median_ms"]),
                    f"ms, {on_threads(many)}": number(all_of_them["median_ms"]),
                    "faster": f"{one['median_ms'] / all_of_them['median_ms']:.2f}×",
                    "by the bounds": f"{one['bound_ms'] / all_of_them['bound_ms']:.2f}×" if known else MISSING,
                }
            )
    return pd.DataFrame(found)


def error_table(rows: pd.DataFrame) -> pd.DataFrame:
    """What was found above a measured ceiling, or could not be measured; one line that says so where nothing was."""
    notes = rows[rows["note"].notna()]
    if notes.empty:
        return pd.DataFrame({"note": ["no part above a measured ceiling, and no cell without a number"]})
    return notes[["kind", "threads", "new_tokens", "form", "part", "note"]].reset_index(drop=True)


def spread(row) -> str:
    """Such as "6.31 (6.28–6.40)"."""
    if row is None:
        return MISSING
    return f"{number(row.median_ms)} ({number(row.p10_ms)}–{number(row.p90_ms)})"


def number(milliseconds: float) -> str:
    """Three digits of a time."""
    if pd.isna(milliseconds):
        return MISSING
    return format_rate(float(f"{milliseconds:.3g}"))


def share(value: float) -> str:
    """Percent."""
    return MISSING if pd.isna(value) else f"{value:.0%}"
