"""Tables of servers under load as frames of text: medians and ranges over repeats; what is not there is a dash."""

from collections.abc import Mapping

import pandas as pd

from wholecurve.figures.series import load_noun
from wholecurve.figures.tables import by_contender, spread_text

_DASH = "–"


def serving_table(points: pd.DataFrame) -> pd.DataFrame:
    """One row per contender and load: speed, throughput of the whole contender, and what says whether to believe it."""
    return _table(
        points,
        lambda group: {
            "decode speed (tok/s/user)": _spread(group, "decode_speed_tok_per_s"),
            "throughput (tok/s)": _spread(group, "output_throughput_tok_per_s"),
            "occupancy": _spread(group, "occupancy", 2),
            "in flight": _spread(group, "achieved_concurrency"),
            "window": "/".join(sorted(group["window"].unique())),
            "n": len(group),
        },
    )


def waiting_table(points: pd.DataFrame) -> pd.DataFrame:
    """One row per contender and load: TTFT and completion in seconds, TPOT in ms, medians over repeats; how many."""
    return _table(
        points,
        lambda group: {
            "TTFT p50 (s)": _median(group, "ttft_p50_ms", 1e-3, 2),
            "TTFT p90 (s)": _median(group, "ttft_p90_ms", 1e-3, 2),
            "TPOT p50 (ms)": _median(group, "tpot_p50_ms"),
            "TPOT p90 (ms)": _median(group, "tpot_p90_ms"),
            "E2E p50 (s)": _median(group, "e2e_p50_ms", 1e-3, 2),
            "E2E p90 (s)": _median(group, "e2e_p90_ms", 1e-3, 2),
            "requests": int(group["n_completed"].sum()),
            "failed": int(group["n_failed"].sum()),
        },
    )


def interactivity_table(points: pd.DataFrame) -> pd.DataFrame:
    """One row per contender and load: p90 speed in both definitions, in tok/s/user, of the slow side.

    1/p90(TPOT) is how fast tokens follow one another once they come; 1/p90(E2E/n) also holds the wait for the first.
    """
    return _table(
        points,
        lambda group: {
            "1/p90(TPOT)": _spread(group, "decode_speed_p90_tok_per_s"),
            "1/p90(E2E/n)": _spread(group, "e2e_speed_p90_tok_per_s"),
            "median 1/TPOT": _spread(group, "decode_speed_tok_per_s"),
            "TTFT p90 (s)": _median(group, "ttft_p90_ms", 1e-3, 2),
            "requests": int(group["n_completed"].sum()),
        },
    )


def session_table(points: pd.DataFrame) -> pd.DataFrame:
    """One row per contender and load: sessions, what they sent, and how much of it a cache gave, by both witnesses."""
    return _table(
        points,
        lambda group: {
            "sessions kept in flight": _spread(group, "achieved_sessions"),
            "requests in flight": _spread(group, "achieved_concurrency"),
            "sessions completed": f"{int(group['sessions_completed'].sum())} of {int(group['n_sessions'].sum())}",
            "input tokens a request": _median(group, "mean_input_tokens", digits=0),
            "output tokens a request": _median(group, "mean_output_tokens", digits=0),
            "from cache (usage)": _share(group, "cache_hit_rate"),
            "from cache (server)": _share(group, "server_cache_hit_rate"),
        },
    )


def objectives_table(points: pd.DataFrame) -> pd.DataFrame:
    """One row per contender and load: the share of requests within the objectives, and goodput; empty without any."""
    if "slo_share" not in points or points["slo_share"].isna().all():
        return pd.DataFrame()
    return _table(
        points,
        lambda group: {
            "within the objectives": _share(group, "slo_share"),
            "goodput (requests/s)": _spread(group, "goodput_per_s", 2),
            "goodput (tok/s)": _spread(group, "goodput_tok_per_s"),
            "throughput (tok/s)": _spread(group, "output_throughput_tok_per_s"),
            "kept in": f"{int(group['slo_met'].fillna(False).astype(bool).sum())} of {len(group)} runs",
        },
    )


def outcome_table(points: pd.DataFrame) -> pd.DataFrame:
    """One row per contender: how its requests of all loads and repeats ended, and replies shorter than asked for."""
    rows = []
    for name, group in points.groupby("contender", sort=False):
        counts: dict[str, int] = {}
        for outcomes in group["outcomes"]:
            _add(counts, outcomes)
        failed = {outcome: n for outcome, n in counts.items() if outcome != "completed"}
        rows.append(
            {
                "contender": name,
                "requests": sum(counts.values()),
                "completed": counts.get("completed", 0),
                "did not complete": ", ".join(f"{n} {outcome}" for outcome, n in failed.items()) or "none",
                "short replies": int(group["n_short"].sum()),
                "tokens counted by": ", ".join(_add_all(group["token_sources"])) or _DASH,
            }
        )
    return pd.DataFrame(rows)


def flags_table(points: pd.DataFrame) -> pd.DataFrame:
    """One row per contender and flag of its points: at which loads, in how many points, and the first text."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for row in points.sort_values("load", kind="stable").itertuples():
        for flag in row.flags:
            name, _, text = flag.partition(": ")
            found.setdefault((row.contender, name), []).append((row.load, text))
    rows = [
        {
            "contender": contender,
            "flag": name,
            "loads": ", ".join(f"{load:g}" for load in dict.fromkeys(load for load, _ in where)),
            "points": len(where),
            "as": where[0][1],
        }
        for (contender, name), where in found.items()
    ]
    columns = ["contender", "flag", "loads", "points", "as"]
    return pd.DataFrame(rows, columns=columns).sort_values(["contender", "flag"], ignore_index=True)


def _table(points: pd.DataFrame, cells) -> pd.DataFrame:
    noun = load_noun(points)
    rows = [
        {"contender": name, noun: load, **cells(group)}
        for (name, load), group in points.groupby(["contender", "load"], sort=False)
    ]
    frame = by_contender(rows, noun)
    return frame.assign(**{noun: [f"{load:g}" for load in frame[noun]]})


def _numbers(group: pd.DataFrame, column: str) -> pd.Series:
    return pd.to_numeric(group[column], errors="coerce") if column in group else pd.Series(dtype=float)


def _spread(group: pd.DataFrame, column: str, digits: int = 1) -> str:
    return spread_text(_numbers(group, column), digits)


def _median(group: pd.DataFrame, column: str, factor: float = 1.0, digits: int = 1) -> str:
    known = _numbers(group, column).dropna()
    return f"{factor * known.median():,.{digits}f}" if len(known) else _DASH


def _share(group: pd.DataFrame, column: str) -> str:
    known = _numbers(group, column).dropna()
    return f"{100 * known.median():.1f} %" if len(known) else _DASH


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, n in more.items():
        counts[name] = counts.get(name, 0) + n


def _add_all(mappings: pd.Series) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in mappings:
        _add(counts, one)
    return counts
