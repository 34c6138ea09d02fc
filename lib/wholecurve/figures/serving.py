"""Servers under load, a panel for each thing that users and owners feel: speed, waiting, completion, throughput."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from wholecurve.errors import UserError
from wholecurve.figures.curve import draw_against_load
from wholecurve.figures.series import check_points, device_label, window_label
from wholecurve.figures.style import drawing, muted_colour

LOADS = {
    "concurrency": "requests in flight (concurrency)",
    "sessions": "sessions in flight",
    "request_rate": "sessions started per second",
}
UP, DOWN = "up is better ↑", "down is better ↓"
PANEL_INCH = (5.8, 3.8)


@dataclass(frozen=True)
class Measure:
    """One number of a point as people read it: its column, a factor to the unit of the label, which way is better."""

    column: str
    label: str
    higher_is_better: bool
    factor: float = 1.0
    per_device: bool = False

    def of(self, points: pd.DataFrame) -> pd.Series:
        """The values in the unit of the label; NaN where absent."""
        if self.column not in points:
            return pd.Series(np.nan, index=points.index)
        values = pd.to_numeric(points[self.column], errors="coerce") * self.factor
        return values / points["devices"] if self.per_device else values


# A p90 is of the slow side: nine of ten requests are at least as fast, or take at most as long.
MEASURES = {
    "decode speed": Measure("decode_speed_tok_per_s", "decode speed, median (tok/s/user)", True),
    "p90 decode speed": Measure("decode_speed_p90_tok_per_s", "p90 decode speed, 1/p90(TPOT)\n(tok/s/user)", True),
    "p90 end-to-end speed": Measure(
        "e2e_speed_p90_tok_per_s", "p90 end-to-end speed, 1/p90(E2E/n)\n(tok/s/user)", True
    ),
    "TTFT": Measure("ttft_p50_ms", "time to first token, median (s)", False, 1e-3),
    "p90 TTFT": Measure("ttft_p90_ms", "time to first token, p90 (s)", False, 1e-3),
    "p90 completion": Measure("e2e_p90_ms", "completion time (E2E), p90 (s)", False, 1e-3),
    "throughput": Measure("output_throughput_tok_per_s", "output throughput", True, per_device=True),
    "goodput": Measure("goodput_tok_per_s", "goodput: tokens within the objectives", True, per_device=True),
}
SERVING_PANELS = ("decode speed", "TTFT", "p90 completion", "throughput")
SESSION_PANELS = ("p90 decode speed", "p90 end-to-end speed", "p90 TTFT", "throughput")


def measure_of(name: str) -> Measure:
    """One of MEASURES; an unknown name is a UserError that lists the known ones."""
    if name not in MEASURES:
        raise UserError(f"there is no measure {name!r}; it must be one of {', '.join(MEASURES)}")
    return MEASURES[name]


def over_load(
    points: pd.DataFrame,
    measure: str,
    ax: Axes | None = None,
    *,
    control: str | Iterable[str] = (),
    colours: Mapping[str, str] | None = None,
    bound: pd.DataFrame | None = None,
) -> Axes:
    """Draw one of MEASURES over the load (log2), both axes logarithmic: dots are repeats, the line their median.

    ``points`` are rows of one workload under one kind of load. A point without the number (a percentile of too few
    requests, a point where everything failed) is absent, never 0; a contender without any is named. ``bound`` (load,
    label and columns of points, as ``run_bounds`` gives it) is drawn dashed where it has the measure's column. Returns
    the Axes.
    """
    shown = measure_of(measure)
    check_points(points, ())
    has_bound = bound is not None and shown.column in bound
    return draw_against_load(
        points, shown.of(points), ax,
        bound=bound if has_bound else None, bound_column=shown.column, control=control, colours=colours,
        x_label=load_label(points), y_label=_label(shown, points), better=UP if shown.higher_is_better else DOWN,
    )  # fmt: skip


def panels_over_load(
    points: pd.DataFrame,
    measures: Sequence[str] = SERVING_PANELS,
    axes: np.ndarray | None = None,
    *,
    control: str | Iterable[str] = (),
    colours: Mapping[str, str] | None = None,
    bound: pd.DataFrame | None = None,
) -> np.ndarray:
    """Draw several MEASURES over the load, two panels in a row; a measure that no point has says so in its panel.

    ``axes`` has one Axes for each measure, or is None for a new figure. Returns the array of Axes.
    """
    with _grid(axes, len(measures)) as grid:
        for name, ax in zip(measures, grid.ravel(), strict=True):
            if measure_of(name).of(points).notna().any():
                over_load(points, name, ax, control=control, colours=colours, bound=bound)
            else:
                _say_absent(ax, points, measure_of(name))
    return grid


def load_label(points: pd.DataFrame) -> str:
    """What the load of the rows counts, for an axis; several kinds at once are a UserError."""
    kinds = sorted(set(points["load_kind"]))
    if len(kinds) != 1 or kinds[0] not in LOADS:
        raise UserError(f"column 'load_kind' holds {kinds}; one of {', '.join(LOADS)} is needed")
    return LOADS[kinds[0]]


def _label(measure: Measure, points: pd.DataFrame) -> str:
    if not measure.per_device:
        return measure.label
    per, unit = device_label(points)
    return f"{measure.label} {per}\n({unit}{window_label(points)})"


def _say_absent(ax: Axes, points: pd.DataFrame, measure: Measure) -> None:
    with drawing(ax):
        ax.set_xlabel(load_label(points))
        ax.set_ylabel(_label(measure, points))
        ax.set_xticks([])
        ax.set_yticks([])
        text = "not printed: no point has enough\ncompleted requests for it"
        ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=muted_colour())


@contextmanager
def _grid(axes: np.ndarray | None, count: int) -> Iterator[np.ndarray]:
    if axes is not None:
        yield np.asarray(axes)
        return
    rows, columns = -(-count // 2), min(count, 2)
    with drawing(None) as first:
        figure = first.figure
        first.remove()
        figure.set_size_inches(PANEL_INCH[0] * columns, PANEL_INCH[1] * rows)
        grid = figure.subplots(rows, columns, squeeze=False)
        for spare in grid.ravel()[count:]:
            spare.remove()
        figure.subplots_adjust(left=0.09, right=0.985, bottom=0.09, top=0.94, hspace=0.42, wspace=0.27)
        yield grid.ravel()[:count]
