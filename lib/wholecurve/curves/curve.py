"""The points of one contender on one workload, checked, with every repeat kept."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from wholecurve.errors import UserError

# Columns of the input that a curve keeps: what the gates look at and what a comparison states.
KEPT = (
    *("devices", "device_kind", "source", "window", "speed_from", "model", "precision", "hardware", "configuration"),
    *("occupancy", "achieved_concurrency", "achieved_sessions", "n_failed", "n_completed"),
    *("cache_hit_rate", "client_lag_ms"),
    *("mean_input_tokens", "mean_output_tokens", "power_w_per_device"),
    *(f"{name}_{part}_ms" for name in ("ttft", "tpot", "e2e") for part in ("p50", "p90", "p99")),
)


@dataclass(frozen=True)
class Curve:
    """The points of one contender × workload over its load levels.

    ``points`` has one row per (load, repeat), sorted: load, repeat, speed [tok/s/user], throughput
    [tok/s/device], and those columns of ``KEPT`` that the input had. A curve whose
    ``load_kind`` is "step_tokens" is a prefill curve: its throughput is input throughput and its speed is NaN.
    """

    name: str
    workload: str
    load_kind: str
    points: pd.DataFrame

    @classmethod
    def from_points(cls, frame: pd.DataFrame, contender: str | None = None, workload: str = "decode") -> "Curve":
        """The curve of one contender in a frame of point rows.

        ``contender`` may be left out where the frame has only one. Throughput is divided by *all* devices.
        Raises UserError, naming contender, load, repeat and field, for a missing column, an absent,
        non-finite, zero or negative number, a load and repeat that occurs twice, mixed kinds of load or
        device, or no points at all.
        """
        _require(frame, ["contender", "workload", "load_kind", "load", "repeat", "devices"], "the points")
        rows = frame[frame["workload"] == workload]
        if rows.empty:
            raise UserError(f"no points of workload {workload!r}; the frame has {_names(frame['workload'])}")
        name = _pick_contender(rows, contender)
        rows = rows[rows["contender"] == name]
        load_kind = _only(rows, "load_kind", name)
        if "device_kind" in rows:
            _only(rows, "device_kind", name)
        prefill = load_kind == "step_tokens"
        value = "input_throughput_tok_per_s" if prefill else "output_throughput_tok_per_s"
        numbers = ["load", "devices", value] + ([] if prefill else ["decode_speed_tok_per_s"])
        _require(rows, numbers, f"the points of {name}")
        for field in numbers:
            _check_positive(rows, field, name)
        _check_unique(rows, name)
        points = pd.DataFrame(
            {
                "load": rows["load"],
                "repeat": rows["repeat"].astype(int),
                "speed": np.nan if prefill else rows["decode_speed_tok_per_s"].astype(float),
                "throughput": rows[value].astype(float) / rows["devices"].astype(float),
                **{column: rows[column] for column in KEPT if column in rows},
            }
        )
        return cls(name, workload, load_kind, points.sort_values(["load", "repeat"]).reset_index(drop=True))

    @property
    def has_speed(self) -> bool:
        """False for a prefill curve, which has no per-user decode speed."""
        return self.load_kind != "step_tokens"

    @property
    def repeats(self) -> list[int]:
        """The repeat numbers that occur, ascending."""
        return sorted(int(r) for r in self.points["repeat"].unique())

    def by_load(self) -> pd.DataFrame:
        """One row per load: load, speed and throughput (geometric means over repeats), repeats (count)."""
        return self._by_load.copy()

    @cached_property
    def _by_load(self) -> pd.DataFrame:
        # One comparison asks for it several times; the points never change.
        logs = np.log(self.points[["speed", "throughput"]]).assign(load=self.points["load"])
        grouped = logs.groupby("load")
        means = np.exp(grouped[["speed", "throughput"]].mean())
        return means.assign(repeats=grouped.size()).reset_index()

    def only_repeats(self, repeats: Collection[int]) -> "Curve":
        """The same curve with these repeats only."""
        kept = self.points[self.points["repeat"].isin(repeats)].reset_index(drop=True)
        return replace(self, points=kept)


def _names(values: pd.Series) -> str:
    return ", ".join(sorted(str(v) for v in values.unique())) or "nothing"


def _require(frame: pd.DataFrame, columns: list[str], where: str) -> None:
    missing = [c for c in columns if c not in frame]
    if missing:
        raise UserError(
            f"{where}: column {', '.join(missing)} is missing; it has {', '.join(map(str, frame)) or 'none'}"
        )


def _pick_contender(rows: pd.DataFrame, contender: str | None) -> str:
    if contender is None:
        if rows["contender"].nunique() != 1:
            raise UserError(f"several contenders: {_names(rows['contender'])}; name the one the curve is of")
        return rows["contender"].iloc[0]
    if contender not in set(rows["contender"]):
        raise UserError(f"no points of contender {contender!r}; the frame has {_names(rows['contender'])}")
    return contender


def _only(rows: pd.DataFrame, column: str, name: str) -> str:
    if rows[column].nunique(dropna=False) != 1:
        raise UserError(f"{name}: {column} mixes {_names(rows[column])}; the points of one curve share one")
    return rows[column].iloc[0]


def _check_positive(rows: pd.DataFrame, field: str, name: str) -> None:
    values = pd.to_numeric(rows[field], errors="coerce").to_numpy(float)
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        row = rows[bad].iloc[0]
        raise UserError(
            f"{name}, load {row['load']}, repeat {row['repeat']}: {field} is {row[field]}; "
            "a finite number above 0 is needed (leave out a point that was not measured)"
        )


def _check_unique(rows: pd.DataFrame, name: str) -> None:
    twice = rows[rows.duplicated(["load", "repeat"])]
    if not twice.empty:
        row = twice.iloc[0]
        raise UserError(
            f"{name}, load {row['load']}: repeat {row['repeat']} occurs twice; "
            "number repeats apart, and give each configuration its own contender name"
        )
