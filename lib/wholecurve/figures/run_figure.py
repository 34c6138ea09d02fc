"""One figure of a run, as it is written."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class RunFigure:
    """What `save_figure` needs to write one figure; ``make`` gets one Axes, or with ``panels`` (rows, columns) many."""

    name: str
    title: str
    caption: str
    alt: str
    make: Callable
    data: pd.DataFrame
    panels: tuple[int, int] = (1, 1)
