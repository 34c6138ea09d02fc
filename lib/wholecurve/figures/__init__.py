"""Figures: tidy frame in, Axes out; `save_figure` writes them in light and dark with the hash of their data.

The plotting functions never call `show` and change no global state. Counts on axes are written with K = 1024
(8, 16, 32K), rates with k = 1000 (3,000, 200k).
"""

from wholecurve.figures.curve import throughput_vs_concurrency, throughput_vs_speed
from wholecurve.figures.matched import matched_points
from wholecurve.figures.multipliers import multiplier_plot
from wholecurve.figures.prefill import prefill_throughput
from wholecurve.figures.save import data_sha256, save_figure
from wholecurve.figures.style import contender_colours, dark, light

__all__ = [
    "contender_colours",
    "dark",
    "data_sha256",
    "light",
    "matched_points",
    "multiplier_plot",
    "prefill_throughput",
    "save_figure",
    "throughput_vs_concurrency",
    "throughput_vs_speed",
]
