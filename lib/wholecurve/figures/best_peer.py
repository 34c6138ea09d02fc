"""One contender against whichever other one is the best at each load level: a composite, and labelled so."""

import math
from collections.abc import Sequence

import pandas as pd

from wholecurve.curves.uncertainty import t_interval

THROUGHPUT = {"prefill": "input_throughput_tok_per_s"}
_DECODED = "output_throughput_tok_per_s"


def best_peer_table(
    points: pd.DataFrame, ours: str, controls: Sequence[str] = (), confidence: float = 0.95
) -> pd.DataFrame:
    """One row per workload and load: the best other contender by median throughput, and the ratio over it.

    points: rows of a run. `ours`: the contender that is compared; controls are no peers. The ratio is that of the
    medians over repeats; its interval is a t interval over paired log ratios, absent below three repeats; `repeats
    above 1` counts those in which `ours` was faster. As the peer may change from row to row, it is a composite.
    """
    rows = []
    peers = points[~points["contender"].isin([ours, *controls])]
    for (workload, load), group in points.groupby(["workload", "load"], sort=True):
        column = THROUGHPUT.get(workload, _DECODED)
        mine = group[group["contender"] == ours].set_index("repeat")[column].dropna()
        others = peers[(peers["workload"] == workload) & (peers["load"] == load)]
        medians = others.groupby("contender", sort=False)[column].median().dropna()
        if mine.empty or medians.empty:
            continue
        best = medians.idxmax()
        theirs = others[others["contender"] == best].set_index("repeat")[column].dropna()
        both = sorted(set(mine.index) & set(theirs.index))
        logs = [math.log(mine[repeat] / theirs[repeat]) for repeat in both]
        ratio = mine.median() / medians[best]
        low, high = t_interval(logs, ratio, confidence)
        rows.append(
            {
                "workload": workload,
                "load": int(load),
                f"{ours} (tok/s)": f"{mine.median():,.1f}",
                "best peer here": best,
                "its median (tok/s)": f"{medians[best]:,.1f}",
                "ratio": f"{ratio:.2f}×",
                f"{confidence:.0%} interval": "n < 3" if low is None else f"{low:.2f}–{high:.2f}",
                "repeats above 1": f"{sum(log > 0 for log in logs)} of {len(logs)}",
            }
        )
    return pd.DataFrame(rows)
