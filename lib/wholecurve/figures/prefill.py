"""Prefill: input throughput against the number of new tokens in one step."""

from collections.abc import Iterable, Mapping

import pandas as pd
from matplotlib.axes import Axes

from wholecurve.figures.curve import draw_against_load
from wholecurve.figures.series import check_points, device_label


def prefill_throughput(
    points: pd.DataFrame,
    ax: Axes | None = None,
    bound: pd.DataFrame | None = None,
    *,
    control: str | Iterable[str] = (),
    colours: Mapping[str, str] | None = None,
) -> Axes:
    """Draw input throughput per GPU (or machine) against tokens per step, both logarithmic.

    `points` are rows of a prefill workload (load_kind "step_tokens"); throughput counts non-cached input
    tokens only. `bound` (columns load, input_throughput_tok_per_s per GPU or machine, label) is drawn dashed
    as model (roofline). Returns the Axes.
    """
    check_points(points, ("input_throughput_tok_per_s",), load_kind="step_tokens")
    per, unit = device_label(points)
    return draw_against_load(
        points, points["input_throughput_tok_per_s"] / points["devices"], ax,
        bound=bound, bound_column="input_throughput_tok_per_s", control=control, colours=colours,
        x_label=f"new input tokens per step (tokens{' per GPU' if per == 'per GPU' else ''})",
        y_label=f"input throughput {per}\n({unit}, non-cached)",
    )  # fmt: skip
