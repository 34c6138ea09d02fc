"""Direct labels without overlap: every label tries places around its point and takes the cheapest one.

Places are computed in pixels of the figure as it is at the call, so axis limits and figure size must be final
then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Annotation, Text

LABEL_OVERLAP, MARKER_OVERLAP, LINE_OVERLAP, OUTSIDE = 400.0, 60.0, 12.0, 100.0

# Above, below, then the corners and sides of a label box around its point, then places between them.
DIRECTIONS = (
    (0, 1), (0, -1), (0.8, 0.8), (1, 0), (-1, 0), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8),
    (1, 0.5), (-1, 0.5), (1, -0.5), (-1, -0.5), (0.4, 1), (-0.4, 1), (0.4, -1), (-0.4, -1),
)  # fmt: skip


@dataclass(frozen=True)
class Label:
    """One wanted label: text at a point in data coordinates.

    `side` is "right" for a name at a line end, "around" for a note at a point. A label that is not `required`
    is left out where it would cover something. `shift_px` moves the first choice up or down (see `spread`).
    """

    text: str
    x: float
    y: float
    colour: object
    side: str = "around"
    required: bool = True
    size: float = 9.0
    weight: str = "normal"
    shift_px: float = 0.0


@dataclass
class Obstacles:
    """What a label must not cover, in pixels: boxes [n, 4] of labels and markers (x0, y0, x1, y1), points [m,
    2] of lines.
    """

    labels: list[np.ndarray] = field(default_factory=list)
    markers: list[np.ndarray] = field(default_factory=list)
    lines: list[np.ndarray] = field(default_factory=list)

    def add_marker(self, centre: Sequence[float], radius: float) -> None:
        """Add a square around a marker."""
        x, y = centre
        self.markers.append(np.array([x - radius, y - radius, x + radius, y + radius]))

    def add_path(self, points: np.ndarray, step: float = 4.0) -> None:
        """Add a polyline [n, 2], sampled every `step` pixels."""
        for start, end in pairwise(points):
            count = max(2, int(np.hypot(*(end - start)) / step))
            self.lines.append(start + np.linspace(0, 1, count)[:, None] * (end - start))

    def cost(self, box: np.ndarray, frame: np.ndarray) -> float:
        """Return the price of a label box: 0 when it is free and inside `frame`."""
        outside = np.maximum(0, [frame[0] - box[0], frame[1] - box[1], box[2] - frame[2], box[3] - frame[3]]).sum()
        total = OUTSIDE * outside
        total += LABEL_OVERLAP * _hits(self.labels, box) + MARKER_OVERLAP * _hits(self.markers, box)
        if self.lines:
            total += LINE_OVERLAP * _inside(np.concatenate(self.lines), box)
        return float(total)


def _hits(boxes: list[np.ndarray], box: np.ndarray) -> int:
    if not boxes:
        return 0
    b = np.array(boxes)
    return int(((b[:, 0] < box[2]) & (b[:, 2] > box[0]) & (b[:, 1] < box[3]) & (b[:, 3] > box[1])).sum())


def _inside(points: np.ndarray, box: np.ndarray) -> int:
    x, y = points[:, 0], points[:, 1]
    return int(((x > box[0]) & (x < box[2]) & (y > box[1]) & (y < box[3])).sum())


def spread(centres: Sequence[float], height: float, low: float = -np.inf, high: float = np.inf) -> np.ndarray:
    """Move centres apart to at least `height`, keeping order and the mean of every group that moves.

    A group that would leave the range from `low` to `high` is pushed back into it, which moves no other group
    unless they meet.
    """
    order = np.argsort(centres, kind="stable")
    groups: list[tuple[float, int]] = []  # mean of the wanted centres, number of members
    for centre in np.asarray(centres, dtype=float)[order]:
        groups.append((centre, 1))
        while len(groups) > 1:
            (below, n_below), (above, n_above) = groups[-2:]
            if above - below >= (n_below + n_above) / 2 * height:
                break
            count = n_below + n_above
            groups[-2:] = [((below * n_below + above * n_above) / count, count)]
    placed = np.concatenate([mean + (np.arange(n) - (n - 1) / 2) * height for mean, n in groups])
    steps = np.arange(len(placed)) * height
    placed = np.maximum.accumulate(np.maximum(placed, low) - steps) + steps
    placed = np.minimum.accumulate((np.minimum(placed, high) - steps)[::-1])[::-1] + steps
    result = np.empty(len(order))
    result[order] = placed
    return result


def text_size_px(ax: Axes, text: str, size: float, weight: str = "normal") -> tuple[float, float]:
    """Width and height of a text in pixels of the figure of `ax`."""
    probe = ax.text(0.5, 0.5, text, fontsize=size, fontweight=weight, transform=ax.transAxes)
    box = probe.get_window_extent()
    probe.remove()
    return box.width, box.height


def _candidates(label: Label, width: float, height: float, gap: float):
    """Yield (dx, dy, price) of the centre of the label box relative to its point, in pixels."""
    if label.side == "right":
        for steps in range(13):
            for sign in (1, -1) if steps else (1,):
                dy = label.shift_px + sign * steps * 0.35 * height
                yield gap + width / 2, dy, 1.6 * steps
                yield 2.6 * gap + width / 2, dy, 1.6 * steps + 2
    for ring in range(16 if label.required else 3):
        far = gap * (1 + 0.8 * ring)
        price = 2.2 * ring + (9 if label.side == "right" else 0)
        for rank, (x, y) in enumerate(DIRECTIONS):
            yield x * (far + width / 2), y * (far + height / 2), price + 0.25 * rank


def place_labels(ax: Axes, labels: Sequence[Label], obstacles: Obstacles) -> list[Annotation]:
    """Write the labels on the Axes, in the order given, each clear of the obstacles and of labels before it.

    A label that had to move far gets a thin leader line. Returns the annotations that were written.
    """
    scale = ax.figure.dpi / 72
    gap = 6.0 * scale
    frame = np.array(ax.get_window_extent().extents)
    obstacles.labels += [np.array(text.get_window_extent().extents) for text in ax.texts if text.get_text()]
    written = []
    for label in labels:
        width, height = text_size_px(ax, label.text, label.size, label.weight)
        anchor = ax.transData.transform((label.x, label.y))
        best = None
        for dx, dy, price in _candidates(label, width, height, gap):
            if best is not None and price >= best[0]:
                continue
            half = np.array([width, height]) / 2 + 1.0 * scale
            centre = anchor + np.array([dx, dy])
            box = np.concatenate([centre - half, centre + half])
            covered = obstacles.cost(box, frame)
            if best is None or price + covered < best[0]:
                best = (price + covered, covered, dx, dy, box)
        _, covered, dx, dy, box = best
        if covered and not label.required:
            continue
        written.append(_write(ax, label, (dx, dy), (width, height), scale, gap))
        obstacles.labels.append(box)
        if written[-1].arrow_patch is not None:
            obstacles.add_path(np.array([anchor, np.clip(anchor, box[:2], box[2:])]))
    return written


def _write(ax, label: Label, offset_px, size_px, scale: float, gap: float) -> Annotation:
    (dx, dy), (width, height) = offset_px, size_px
    away_x, away_y = max(0.0, abs(dx) - width / 2), max(0.0, abs(dy) - height / 2)
    arrow, relative = None, (0.5, 0.5)
    if np.hypot(away_x, away_y) > 2.7 * gap or (label.side == "right" and abs(dy) > 0.75 * height):
        relative = (0.5 - 0.5 * np.sign(dx) * (away_x > 0), 0.5 - 0.5 * np.sign(dy) * (away_x == 0))
        arrow = {
            "arrowstyle": "-",
            "linewidth": 0.7,
            "color": label.colour,
            "alpha": 0.6,
            "shrinkA": 1.5,
            "shrinkB": 3.5,
        }
        arrow["relpos"] = relative
    return ax.annotate(
        label.text, (label.x, label.y), xytext=(dx / scale, dy / scale), textcoords="offset points",
        ha="center", va="center", color=label.colour, fontsize=label.size, fontweight=label.weight,
        arrowprops=arrow, annotation_clip=False, zorder=6,
    )  # fmt: skip


def label_boxes(ax: Axes) -> dict[str, np.ndarray]:
    """Boxes of all texts on the Axes in pixels (x0, y0, x1, y1), without leader lines; keys are unique."""
    boxes = {}
    for index, text in enumerate(ax.texts):
        text.get_window_extent()  # an annotation learns its place here; the extent below has no leader
        boxes[f"{index}: {text.get_text()}"] = np.array(Text.get_window_extent(text).extents)
    return boxes
