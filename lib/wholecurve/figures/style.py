"""How every figure looks: the style contexts, a colour per contender and a marker per source."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from wholecurve.errors import UserError

STYLE_FILE = Path(__file__).with_name("wholecurve.mplstyle")
HASH_SALT = "wholecurve"
DARK_COLOURS = {
    "figure.facecolor": "#0d1117",
    "axes.facecolor": "#0d1117",
    "text.color": "#e6edf3",
    "axes.labelcolor": "#e6edf3",
    "axes.titlecolor": "#e6edf3",
    "axes.edgecolor": "#57606a",
    "xtick.color": "#57606a",
    "ytick.color": "#57606a",
    "xtick.labelcolor": "#9da7b3",
    "ytick.labelcolor": "#9da7b3",
    "grid.color": "#21262d",
}

# Okabe and Ito, "Color Universal Design" (2008), without black and yellow: each vanishes on one background.
OKABE_ITO = {
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
}
HOME_COLOURS = {
    "wholecurve": OKABE_ITO["blue"],
    "openvino-genai": OKABE_ITO["vermillion"],
    "transformers": OKABE_ITO["green"],
    "vllm": OKABE_ITO["orange"],
    "sglang": OKABE_ITO["purple"],
    "llama.cpp": OKABE_ITO["sky"],
}
CONTROL_COLOUR = "#8c959f"


@dataclass(frozen=True)
class SourceStyle:
    """How one source is drawn: marker, its character for the key, filled (measured only) or not, line."""

    marker: str
    glyph: str
    filled: bool
    linestyle: str


SOURCES = {
    "measured (gpu)": SourceStyle("o", "●", True, "-"),
    "measured (cpu)": SourceStyle("s", "■", True, "-"),
    "measured (device unstated)": SourceStyle("h", "⬢", True, "-"),
    "static (compiled, not run)": SourceStyle("D", "◇", False, ":"),
    "model (roofline)": SourceStyle("^", "△", False, "--"),
    "published": SourceStyle("v", "▽", False, "--"),
}


def source_style(source: str) -> SourceStyle:
    """Return how points of this source are drawn; an unknown one is a UserError that lists the known."""
    if source not in SOURCES:
        raise UserError(f"unknown source {source!r} in column 'source'; it must be one of {', '.join(SOURCES)}")
    return SOURCES[source]


def light():
    """Context manager: the light style on top of matplotlib's defaults, whatever matplotlibrc says."""
    return matplotlib.style.context(STYLE_FILE, after_reset=True)


def dark():
    """Context manager: the same style on a dark background."""
    return matplotlib.style.context([STYLE_FILE, DARK_COLOURS], after_reset=True)


@contextmanager
def drawing(ax: Axes | None) -> Iterator[Axes]:
    """Yield the Axes to draw on while one of the two styles is active; nothing global changes afterwards.

    Without an Axes a new pyplot figure is made, so that a notebook shows it. Outside of `light()` and
    `dark()` the style is chosen by the background of the Axes.
    """
    # Only our style sets this salt, so one of the two contexts is active already.
    if matplotlib.rcParams["svg.hashsalt"] == HASH_SALT:
        yield ax if ax is not None else _new_axes()
        return
    on_dark = ax is not None and luminance(ax.get_facecolor()) < 0.2
    with dark() if on_dark else light():
        axes = ax if ax is not None else _new_axes()
        interactive = matplotlib.is_interactive()
        yield axes
    # A notebook's backend turns interactive drawing on when its first figure is made. The style context would undo
    # that at its end, and every figure after the first one would stay invisible.
    matplotlib.interactive(interactive)


def _new_axes() -> Axes:
    import matplotlib.pyplot as plt  # here, because choosing a backend is no business of a plain import

    return plt.subplots()[1]


def contender_colours(names: Iterable[str], control: Iterable[str] = ()) -> dict[str, str]:
    """Give each contender its colour: known engines own one, others take free ones, controls are grey.

    Free colours go out in sorted order of the names. Call it once with all contenders of a figure set, pass
    the result as `colours` to each figure, so that figures with fewer contenders keep the colours. More than
    six is a UserError.
    """
    controls = set(control)
    wanted = sorted({name for name in names if name not in controls})
    if len(wanted) > len(OKABE_ITO):
        raise UserError(f"{len(wanted)} contenders ({', '.join(wanted)}); one figure shows at most {len(OKABE_ITO)}")
    colours = {name: HOME_COLOURS[name] for name in wanted if name in HOME_COLOURS}
    free = [colour for colour in OKABE_ITO.values() if colour not in colours.values()]
    colours.update(zip((name for name in wanted if name not in colours), free, strict=False))
    return colours | dict.fromkeys(sorted(controls), CONTROL_COLOUR)


def resolve_colours(names: Iterable[str], control: Iterable[str], colours: Mapping[str, str] | None) -> dict[str, str]:
    """Return a colour for every name: those in `colours` win, a name missing there is a UserError."""
    if colours is None:
        return contender_colours(names, control)
    missing = sorted(set(names) - set(colours) - set(control))
    if missing:
        raise UserError(f"'colours' has no colour for {', '.join(missing)}; build it with contender_colours(all names)")
    return dict(colours) | dict.fromkeys(control, CONTROL_COLOUR)


def luminance(colour) -> float:
    """Relative luminance of a colour, 0 (black) to 1 (white): WCAG 2.2, definition of relative luminance."""
    channels = np.array(to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(colour, background) -> float:
    """Contrast ratio between two colours, 1 to 21: WCAG 2.2, definition of contrast ratio."""
    high, low = sorted((luminance(colour), luminance(background)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def readable(colour, background, minimum: float = 4.5) -> tuple[float, float, float]:
    """Mix a colour with the text colour until its contrast on `background` suffices for small text."""
    start, end = np.array(to_rgb(colour)), np.array(to_rgb(matplotlib.rcParams["text.color"]))
    for share in np.linspace(0, 1, 21):
        mixed = tuple(float(v) for v in start + share * (end - start))
        if contrast(mixed, background) >= minimum:
            break
    return mixed


def muted_colour() -> str:
    """Colour of secondary text in the active style."""
    return matplotlib.rcParams["xtick.labelcolor"]
