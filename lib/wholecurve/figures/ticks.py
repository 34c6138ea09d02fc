"""Axes that people read: log2 counts written 8, 16, 32K, and log rates written 5, 20, 3,000; never a power of
ten.
"""

from collections.abc import Iterable
from math import floor, log10

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, MaxNLocator, NullLocator


def format_count(value: float) -> str:
    """Write a count of tokens or requests: 8, 16, 1.5K, 32K with K = 1024; what is no such multiple stays in
    full (1000).
    """
    for size, letter in ((1024**2, "M"), (1024, "K")):
        if value >= size and value * 2 % size == 0:
            return f"{value / size:g}{letter}"
    return f"{value:.10g}"


def format_rate(value: float, _position=None) -> str:
    """Write a rate: 0.25, 12, 3,000, 200k, 1.5M with k = 1000; never a power of ten."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    if value >= 1e5:
        return f"{value / 1e3:g}k"
    if value >= 1000:
        return f"{value:,.0f}"
    return np.format_float_positional(value, precision=4, fractional=False, trim="-") if value else "0"


def format_multiplier(value: float, _position=None) -> str:
    """Write a multiplier: 0.5×, 1×, 1.62×."""
    return f"{value:.3g}×"


class HumanLogLocator(Locator):
    """Ticks on a log axis at numbers that people say (1, 2, 5, 10, …), four to nine of them at any zoom."""

    LADDERS = (
        (1, 2, 5),
        (1, 3),
        (1,),
        (1, 1.5, 2, 3, 4, 6, 8),
        (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
    )

    def __call__(self):
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin, vmax):
        """Return the ticks between two positive limits: those of the first ladder that gives four to nine."""
        low, high = sorted((vmin, vmax))
        decades = 10.0 ** np.arange(floor(log10(low)), floor(log10(high)) + 1)
        for ladder in self.LADDERS:
            ticks = np.outer(decades, ladder).ravel()
            ticks = ticks[(ticks >= low * (1 - 1e-9)) & (ticks <= high * (1 + 1e-9))]
            if 4 <= len(ticks) <= 9:
                return ticks
        ticks = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        return ticks[(ticks >= low) & (ticks <= high)]


def rate_axis(axis: Axis, formatter=format_rate) -> None:
    """Make an axis of rates (or multipliers) logarithmic with human ticks."""
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.set_major_locator(HumanLogLocator())
    axis.set_major_formatter(FuncFormatter(formatter))
    axis.set_minor_locator(NullLocator())


def count_axis(axis: Axis, values: Iterable[float]) -> None:
    """Make an axis of loads or token counts log2 with one tick at every tested value, written 8, 16, 32K.

    Values closer than a twentieth of the span keep their tick and lose their label.
    """
    ticks = np.unique(np.asarray(list(values), dtype=float))
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log", base=2)
    axis.set_major_locator(FixedLocator(ticks))
    span = np.log2(ticks[-1] / ticks[0]) or 1.0
    written, last = [], -np.inf
    for position in np.log2(ticks):
        keep = position - last >= span / 20
        written.append(keep)
        last = position if keep else last
    labels = {tick: format_count(tick) if keep else "" for tick, keep in zip(ticks, written, strict=True)}
    axis.set_major_formatter(FuncFormatter(lambda value, _: labels.get(value, format_count(value))))
    axis.set_minor_locator(NullLocator())


def pad_limits(
    axis: Axis,
    values: Iterable[float],
    pad: float = 0.07,
    reserve: Iterable[tuple[float, float]] = (),
    least_factor: float = 1.6,
) -> None:
    """Set the limits of a log axis around positive values, with `pad` of the span free at both ends.

    Each pair (value, pixels) of `reserve` asks for so many pixels between that value and the far end, for a
    label. Nearly equal values are shown in a span of at least `least_factor`, so that noise does not look
    like a slope.
    """
    values = np.log(np.asarray([v for v in values if np.isfinite(v) and v > 0], dtype=float))
    low, high = values.min(), values.max()
    grow = max(0.0, np.log(least_factor) - (high - low)) / 2
    margin = pad * (high - low + 2 * grow)
    low, high = low - grow - margin, high + grow + margin
    box = axis.axes.get_window_extent()
    length = box.width if axis.axis_name == "x" else box.height
    for value, pixels in reserve:
        high = max(high, low + (np.log(value) - low) / max(0.25, 1 - pixels / length))
    getattr(axis.axes, f"set_{axis.axis_name}lim")(float(np.exp(low)), float(np.exp(high)))
