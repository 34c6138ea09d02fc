"""Tables of a run as frames of text: for the terminal and for notebooks."""

import pandas as pd

from wholecurve.curves import Comparison, multiplier_text
from wholecurve.curves.multipliers import BETWEEN_REASONS
from wholecurve.runs import RunFolder
from wholecurve.runs.bounds import run_bounds


def spread_text(values: pd.Series, digits: int = 1) -> str:
    """'41.9 (41.2–42.3)': median and range over repeats; one value alone stands without a range."""
    known = values.dropna()
    if known.empty:
        return "–"
    middle = f"{known.median():,.{digits}f}"
    if len(known) == 1:
        return middle
    return f"{middle} ({known.min():,.{digits}f}–{known.max():,.{digits}f})"


def _share(value: float, bound: float | None) -> str:
    return "–" if bound is None or pd.isna(value) else f"{100 * value / bound:.0f} %"


def ceilings_table(run: RunFolder) -> pd.DataFrame:
    """The measured ceilings of a run and the bounds that follow from them, one row each."""
    ceilings = run.read("ceilings")
    threads = f"{ceilings['threads']} threads"
    decode, prefill = run_bounds(run, "decode"), run_bounds(run, "prefill")
    rows = [
        ("memory read", f"{ceilings['read_bytes_per_s'] / 1e9:.1f} GB/s", f"measured, {threads}"),
        (f"{ceilings['dtype']} GEMM", f"{ceilings['gemm_flops_per_s'] / 1e9:.0f} GFLOP/s", f"measured, {threads}"),
    ]
    if len(decode):
        one, many = decode.iloc[0], decode.iloc[-1]
        speed, throughput = (
            f"{one.decode_speed_tok_per_s:.0f} tok/s/user",
            f"{many.output_throughput_tok_per_s:,.0f} tok/s",
        )
        rows.append((f"decode speed at concurrency {one.load:.0f}", f"at most {speed}", "bound"))
        rows.append((f"output throughput at concurrency {many.load:.0f}", f"at most {throughput}", "bound"))
    if len(prefill):
        best = prefill["input_throughput_tok_per_s"].max()
        rows.append(("prefill throughput", f"at most {best:,.0f} tok/s", "bound"))
    return pd.DataFrame(rows, columns=["what", "value", "kind"])


def agreement_table(run: RunFolder) -> pd.DataFrame:
    """How each contender's greedy tokens stand to the float32 reference's choice."""
    rows = [
        {
            "contender": name,
            "tokens": found["tokens"],
            "reference's best": f"{found['best_share']:.1%}",
            "largest gap (logits)": f"{found['max_gap']:.3f}",
        }
        for name, found in run.read("agreement").items()
        if found.get("checked", True)
    ]
    return pd.DataFrame(rows)


def latency_table(points: pd.DataFrame) -> pd.DataFrame:
    """One row per contender and concurrency: latency percentiles in ms, medians over repeats."""
    columns = {
        "ttft_p50_ms": "TTFT p50 (ms)",
        "ttft_p90_ms": "TTFT p90 (ms)",
        "tpot_p50_ms": "TPOT p50 (ms)",
        "tpot_p90_ms": "TPOT p90 (ms)",
        "e2e_p50_ms": "E2E p50 (ms)",
    }
    rows = []
    for (name, load), group in points.groupby(["contender", "load"], sort=False):
        row = {"contender": name, "concurrency": int(load)}
        for column, label in columns.items():
            known = pd.to_numeric(group[column]).dropna()
            row[label] = f"{known.median():,.1f}" if len(known) else "–"
        row["requests"] = int(group["n_completed"].sum())
        row["failed"] = int(group["n_failed"].sum())
        rows.append(row)
    return by_contender(rows, "concurrency")


def decode_table(points: pd.DataFrame, bounds: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per contender and concurrency: medians and ranges over repeats, share of the bound.

    `points` are decode rows of the tidy frame. Speed in tok/s/user, throughput in tok/s of the whole contender.
    """
    limit = bounds.set_index("load")["output_throughput_tok_per_s"] if bounds is not None and len(bounds) else {}
    rows = []
    for (name, load), group in points.groupby(["contender", "load"], sort=False):
        throughput = group["output_throughput_tok_per_s"]
        rows.append(
            {
                "contender": name,
                "concurrency": int(load),
                "decode speed (tok/s/user)": spread_text(group["decode_speed_tok_per_s"]),
                "throughput (tok/s)": spread_text(throughput),
                "of bound": _share(throughput.median(), limit.get(load)),
                "TTFT p50 (ms)": spread_text(group["ttft_p50_ms"], 0),
                "occupancy": spread_text(group["occupancy"], 2),
                "window": "/".join(sorted(group["window"].unique())),
                "n": len(group),
            }
        )
    return by_contender(rows, "concurrency")


def batch_table(points: pd.DataFrame, bounds: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per contender and concurrency of a race: medians and ranges over repeats, share of the bound.

    Decode throughput is over the time in which all requests decode; end to end includes their prefill.
    """
    limit = bounds.set_index("load")["output_throughput_tok_per_s"] if bounds is not None and len(bounds) else {}
    rows = []
    for (name, load), group in points.groupby(["contender", "load"], sort=False):
        throughput = group["output_throughput_tok_per_s"]
        rows.append(
            {
                "contender": name,
                "concurrency": int(load),
                "decode throughput (tok/s)": spread_text(throughput),
                "of bound": _share(throughput.median(), limit.get(load)),
                "decode speed (tok/s/user)": spread_text(group["decode_speed_tok_per_s"]),
                "end to end (tok/s)": spread_text(group["output_throughput_full_tok_per_s"]),
                "TTFT p50 (ms)": spread_text(group["ttft_p50_ms"], 0),
                "n": len(group),
            }
        )
    return by_contender(rows, "concurrency")


def memory_table(points: pd.DataFrame) -> pd.DataFrame:
    """One row per contender: resident memory after loading and at its highest, in MiB; empty where none was recorded.

    Resident memory counts weights, caches and code alike, and files that are mapped.
    """
    if "peak_rss_bytes" not in points or points["peak_rss_bytes"].isna().all():
        return pd.DataFrame()
    rows = []
    for name, group in points.groupby("contender", sort=False):
        highest = group.loc[group["peak_rss_bytes"].idxmax()]
        rows.append(
            {
                "contender": name,
                "loaded (MiB)": spread_text(group.drop_duplicates("repeat")["loaded_rss_bytes"] / 2**20, 0),
                "highest (MiB)": f"{highest['peak_rss_bytes'] / 2**20:,.0f}",
                "at": f"{highest['workload']} {highest['load']:g}",
            }
        )
    return pd.DataFrame(rows)


def tuning_table(run: RunFolder) -> pd.DataFrame:
    """One row per contender that was tuned: what it runs with, of how many settings, and what that gained."""
    rows = []
    for name, found in run.read("tuning")["contenders"].items():
        candidates = found["candidates"]
        best, own = candidates[found["winner"]], candidates[0]["score_tok_per_s"]
        gain = f"{best['score_tok_per_s'] / own:.3f}×" if own else "its own do not run"
        rows.append(
            {
                "contender": name,
                "runs with": ", ".join(f"{key} {value}" for key, value in best["settings"].items()) or "its defaults",
                "over its own settings": gain,
                "tried": len(candidates),
                "refused": sum(candidate["refused"] is not None for candidate in candidates),
            }
        )
    return pd.DataFrame(rows)


def prefill_table(points: pd.DataFrame, bounds: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per contender and step size; throughput in non-cached input tokens per second."""
    limit = bounds.set_index("load")["input_throughput_tok_per_s"] if bounds is not None and len(bounds) else {}
    rows = []
    for (name, load), group in points.groupby(["contender", "load"], sort=False):
        throughput = group["input_throughput_tok_per_s"]
        rows.append(
            {
                "contender": name,
                "tokens per step": int(load),
                "input throughput (tok/s)": spread_text(throughput, 0),
                "of bound": _share(throughput.median(), limit.get(load)),
                "TTFT p50 (ms)": spread_text(group["ttft_p50_ms"], 0),
                "cached tokens": int(group["cached_input_tokens"].sum()),
                "n": len(group),
            }
        )
    return by_contender(rows, "tokens per step")


def by_contender(rows: list[dict], load: str) -> pd.DataFrame:
    """Rows of a table as a frame, sorted by contender and by the column of the load."""
    return pd.DataFrame(rows).sort_values(["contender", load], ignore_index=True)


def multiplier_table(comparison: Comparison) -> pd.DataFrame:
    """One row per load of B: the direct ratios and both matched multipliers side by side, each with its interval.

    'at' is the matched load of A; * marks a matched multiplier that shows no difference (its interval or bracket has 1
    inside); the last column is the verdict of the direct throughput ratio alone.
    """
    rows = []
    for direct in comparison.direct[~comparison.direct["stated"]].itertuples():
        row = {
            "load": f"{direct.load_b if pd.notna(direct.load_b) else direct.load_a:g}",
            "direct, throughput": multiplier_text(direct.ratio, direct.low, direct.high, direct.n),
        }
        if comparison.a.has_speed:
            row["direct, speed"] = multiplier_text(direct.speed_ratio, direct.speed_low, direct.speed_high, direct.n)
            for label, frame in (
                ("same speed", comparison.same_speed),
                ("same throughput", comparison.same_throughput),
            ):
                found = frame[(frame["load_b"] == direct.load_b) & ~frame["stated"]]
                row[label] = _matched_text(next(found.itertuples(), None))
        row["direct throughput says"] = direct.verdict
        rows.append(row)
    return pd.DataFrame(rows)


def _matched_text(row) -> str:
    if row is None or pd.isna(row.estimate):
        return "not measured"
    text = multiplier_text(row.estimate, row.low, row.high, row.n)
    return f"{text} at {row.load_a:.3g}{' *' if row.verdict == 'no difference shown' else ''}"


def refusals(comparison: Comparison) -> list[str]:
    """'same speed at load 1, 4: reason' for every reading that was refused; readings with one reason share a line."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for label, frame in (
        ("direct", comparison.direct),
        ("same speed", comparison.same_speed),
        ("same throughput", comparison.same_throughput),
    ):
        for row in frame[frame["refused"].notna()].itertuples():
            load = row.load_b if pd.notna(row.load_b) else row.load_a
            for reason in row.refused.split(BETWEEN_REASONS):
                # "103.1 tok/s/user is above …" differs from row to row only in its target.
                target, is_, rest = reason.partition(" is ")
                common = f"is {rest}" if is_ and target[:1].isdigit() else reason
                where = "a stated target" if pd.isna(load) else f"{load:g}"
                grouped.setdefault((label, common), []).append(where)
    return [
        f"{label} at load {', '.join(loads)}: {'the target ' if reason.startswith('is ') else ''}{reason}"
        for (label, reason), loads in grouped.items()
    ]


def noise_sentence(control: Comparison) -> str:
    """What an A/A control says about noise: the range of its ratios and how many intervals miss 1 all the same."""
    frames = [(control.direct, "ratio"), (control.same_speed, "estimate"), (control.same_throughput, "estimate")]
    ratios = pd.concat([frame[column] for frame, column in frames]).dropna()
    intervals = pd.concat([frame[["low", "high"]] for frame, _ in frames]).dropna()
    if ratios.empty:
        return "control: nothing could be read"
    missed = int(((intervals["low"] > 1) | (intervals["high"] < 1)).sum())
    return (
        f"control: the same engine differs from itself by {ratios.min():.2f}× to {ratios.max():.2f}×; {missed} of "
        f"{len(intervals)} intervals miss 1 (1 in 20 is expected). Believe no smaller difference."
    )
