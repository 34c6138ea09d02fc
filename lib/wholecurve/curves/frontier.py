"""The best of several configurations: a Pareto frontier of measured points, which is no engine's curve."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from wholecurve.curves.curve import Curve
from wholecurve.errors import UserError

POINT_COLUMNS = ("configuration", "load", "speed", "throughput", "n")


@dataclass(frozen=True)
class Frontier:
    """Measured points of several configurations that no other one beats in speed and in throughput at once.

    ``points``, fastest first, has configuration, load, speed [tok/s/user], throughput [tok/s/device] and n (repeats;
    the two numbers are geometric means over them). ``dominated`` has the same columns for the points that another
    one equals or beats in both. ``configurations`` lists every configuration that went in.
    """

    name: str
    workload: str
    load_kind: str
    configurations: tuple[str, ...]
    points: pd.DataFrame
    dominated: pd.DataFrame

    @classmethod
    def from_curves(cls, curves: Sequence[Curve], name: str) -> "Frontier":
        """The frontier over the curves of several configurations, one curve each.

        Raises UserError for no curves, two of one name, a prefill curve, and curves whose workload, kind of load or
        kind of device differ: their points do not compete.
        """
        _check(curves, name)
        rows = pd.concat([curve.by_load().assign(configuration=curve.name) for curve in curves], ignore_index=True)
        rows = rows.rename(columns={"repeats": "n"})[list(POINT_COLUMNS)]
        rows = rows.sort_values(["speed", "throughput"], ascending=False, kind="stable", ignore_index=True)
        # Fastest first, a point is worth having where its throughput exceeds that of every faster one.
        faster = rows["throughput"].cummax().shift(fill_value=0.0)
        kept = rows["throughput"] > faster
        points, dominated = (rows[chosen].reset_index(drop=True) for chosen in (kept, ~kept))
        names = tuple(curve.name for curve in curves)
        return cls(name, curves[0].workload, curves[0].load_kind, names, points, dominated)

    @property
    def label(self) -> str:
        """What it is, to be printed wherever it is shown."""
        return f"frontier of {len(self.configurations)} configurations, not one engine's curve"

    def to_document(self) -> dict:
        """The frontier as JSON values; ``dominated`` counts the points that are not on it."""
        return {
            "name": self.name,
            "label": self.label,
            "workload": self.workload,
            "configurations": list(self.configurations),
            "points": self.points.to_dict("records"),
            "dominated": len(self.dominated),
        }


def frontier_table(frontier: Frontier) -> pd.DataFrame:
    """One row per point of the frontier, with the configuration that reached it."""
    return pd.DataFrame(
        {
            "configuration": frontier.points["configuration"],
            "load": [f"{load:g}" for load in frontier.points["load"]],
            "speed (tok/s/user)": [f"{speed:.4g}" for speed in frontier.points["speed"]],
            "throughput (tok/s/device)": [f"{throughput:.4g}" for throughput in frontier.points["throughput"]],
            "n": frontier.points["n"],
        }
    )


def _check(curves: Sequence[Curve], name: str) -> None:
    if not curves:
        raise UserError(f"{name}: no curves; a frontier needs at least one configuration")
    names = [curve.name for curve in curves]
    if len(set(names)) < len(names):
        twice = sorted({one for one in names if names.count(one) > 1})
        raise UserError(f"{name}: {', '.join(twice)} occurs twice; give each configuration its own name")
    if not all(curve.has_speed for curve in curves):
        raise UserError(f"{name}: prefill curves have no speed, so they have no frontier of speed and throughput")
    kinds = {
        "workload": [curve.workload for curve in curves],
        "load_kind": [curve.load_kind for curve in curves],
        "device_kind": [
            kind for curve in curves if "device_kind" in curve.points for kind in curve.points["device_kind"].unique()
        ],
    }
    for field, values in kinds.items():
        if len(set(values)) > 1:
            mixed = ", ".join(sorted(map(str, set(values))))
            raise UserError(f"{name}: {field} mixes {mixed}; the configurations of one frontier share it")
