"""How requests ended, as bars: what did not complete is shown, because every latency is of those that did."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from wholecurve.errors import UserError
from wholecurve.figures.series import write_key
from wholecurve.figures.style import CONTROL_COLOUR, OKABE_ITO, drawing
from wholecurve.trace import OUTCOMES

COMPLETED, *FAILURES = OUTCOMES
# Six colours for nine failures: the hatched ones come last.
_LOOKS = [(colour, "") for colour in OKABE_ITO.values()] + [(colour, "////") for colour in OKABE_ITO.values()]


def outcome_counts(points: pd.DataFrame) -> pd.DataFrame:
    """Requests by contender and load (rows, in the order of the points) and by how they ended (columns), all repeats.

    Only outcomes that occurred are columns, completed first. UserError where the rows do not tell outcomes.
    """
    if "outcomes" not in points or points["outcomes"].isna().any():
        raise UserError("the points do not tell how their requests ended (column 'outcomes')")
    names = list(dict.fromkeys(points["contender"]))
    order = sorted(range(len(points)), key=lambda i: (names.index(points["contender"].iloc[i]), points["load"].iloc[i]))
    counts: dict[tuple[str, float], dict[str, int]] = {}
    for row in points.iloc[order].itertuples():
        own = counts.setdefault((row.contender, row.load), {})
        for outcome, n in row.outcomes.items():
            own[outcome] = own.get(outcome, 0) + n
    frame = pd.DataFrame.from_dict(counts, orient="index").fillna(0).astype(int)
    frame.index = pd.MultiIndex.from_tuples(counts, names=["contender", "load"])
    known = [outcome for outcome in (*OUTCOMES, "failed") if outcome in frame]
    return frame[known]


def outcome_bars(points: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the shares of the outcomes of every contender and load that had a failure; the counts stand beside the bars.

    UserError where every request completed: then there is nothing to show. Returns the Axes.
    """
    counts = outcome_counts(points)
    failing = counts[counts.drop(columns=COMPLETED, errors="ignore").sum(axis=1) > 0]
    if failing.empty:
        raise UserError("every request of these points completed; there are no failures to draw")
    shown = [name for name in failing if failing[name].any()]
    looks = dict(zip([name for name in shown if name != COMPLETED], _LOOKS))
    total = failing.sum(axis=1)
    places = range(len(failing))[::-1]
    with drawing(ax) as axes:
        start = pd.Series(0.0, index=failing.index)
        for name in shown:
            share = failing[name] / total
            colour, hatch = looks.get(name, (CONTROL_COLOUR, ""))
            axes.barh(places, share, 0.62, start, color=colour, hatch=hatch, edgecolor=axes.get_facecolor(), gid=name)
            start = start + share
        for place, (_, row), n in zip(places, failing.iterrows(), total):
            failed = n - row.get(COMPLETED, 0)
            axes.annotate(f"{failed:,} of {n:,}", (1, place), xytext=(5, 0), textcoords="offset points", va="center")
        axes.set_yticks(list(places), [f"{contender}, load {load:g}" for contender, load in failing.index])
        axes.set_xlim(0, 1)
        axes.set_ylim(min(-0.6, (len(failing) - 5) / 2), max(len(failing) - 0.4, (len(failing) + 3) / 2))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlabel("share of requests, all repeats")
        axes.grid(False, axis="y")
        patches = [
            Patch(facecolor=looks.get(name, (CONTROL_COLOUR, ""))[0], hatch=looks.get(name, ("", ""))[1], label=name)
            for name in shown
        ]
        axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(0, -0.16), ncols=4, handlelength=1.2)
        write_key(axes, f"{len(failing)} of {len(counts)} points had failures  ·  right: how many did not complete")
    return axes
