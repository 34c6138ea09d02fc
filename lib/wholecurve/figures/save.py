"""Write one figure as light SVG, dark SVG, PNG and a JSON sidecar, byte for byte the same every time."""

import hashlib
import io
import json
import re
import subprocess
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from wholecurve.errors import UserError
from wholecurve.figures.style import dark, light, muted_colour
from wholecurve.files import write_bytes

MARGIN_INCH, GAP_INCH = 0.12, 0.10
TITLE_SIZE, SOURCE_SIZE = 12.5, 8.0

Data = pd.DataFrame | Mapping[str, pd.DataFrame]


def canonical_csv(data: Data) -> str:
    """Write frames as CSV whose bytes depend on the content only: not on the order of columns or rows, nor on
    the index.
    """
    if not isinstance(data, pd.DataFrame):
        return "".join(f"# {name}\n{canonical_csv(data[name])}" for name in sorted(data))
    ordered = data[sorted(data.columns, key=str)]
    header, *rows = ordered.to_csv(index=False, lineterminator="\n", float_format=repr_float).splitlines()
    return "\n".join([header, *sorted(rows)]) + "\n"


def repr_float(value: float) -> str:
    """Shortest decimal that gives the same float back."""
    return repr(float(value))


def data_sha256(data: Data) -> str:
    """sha256 of the canonical CSV of a frame, or of several frames by name."""
    return hashlib.sha256(canonical_csv(data).encode()).hexdigest()


def git_commit(folder: Path) -> str | None:
    """Commit checked out where the folder lies, or None without git, a repository, or a first commit."""
    command = ["git", "-C", str(folder), "rev-parse", "--verify", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def save_figure(
    make: Callable[..., object],
    name: str,
    folder: str | Path,
    *,
    title: str,
    caption: str,
    alt: str,
    source: str,
    data: Data,
    panels: tuple[int, int] = (1, 1),
) -> dict[str, Path]:
    """Draw and write `<name>.light.svg`, `<name>.dark.svg`, `<name>.png` (light) and `<name>.json` in
    `folder`.

    `make(ax)` draws on the Axes that it is given, once in the light and once in the dark style; with `panels`
    (rows, columns) it gets the array of Axes. Title and source line are on the figure; caption, alt text,
    both lines, sha256 of `data` and the git commit (or null) are in the sidecar. Nothing is written when
    drawing fails, and no pyplot figure stays open. Returns the paths by kind: "light", "dark", "png", "json".
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise UserError(f"figure name {name!r} must be lower-case letters, digits, '-' and '_'")
    for field, text in (("title", title), ("caption", caption), ("alt", alt), ("source", source)):
        if not text.strip():
            raise UserError(f"figure {name!r}: its {field} is empty; every figure says what it shows")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sha = data_sha256(data)
    paths = {kind: folder / f"{name}.{end}" for kind, end in
             (("light", "light.svg"), ("dark", "dark.svg"), ("png", "png"), ("json", "json"))}  # fmt: skip
    svg = {
        "Title": title,
        "Description": alt,
        "Source": source,
        "Identifier": f"sha256:{sha}",
        "Date": None,
        "Creator": None,
    }
    png = {"Title": title, "Description": alt, "Source": source, "data_sha256": sha, "Software": None}
    contents = {}
    for theme, style in (("light", light), ("dark", dark)):
        with style():
            figure = _draw(make, panels, title, source)
            contents[theme] = _render(figure, "svg", svg)
            if theme == "light":
                contents["png"] = _render(figure, "png", png)
    rows = {"data": len(data)} if isinstance(data, pd.DataFrame) else {key: len(data[key]) for key in sorted(data)}
    sidecar = {
        "name": name, "title": title, "caption": caption, "alt": alt, "source": source, "data_sha256": sha,
        "data_rows": rows, "git_commit": git_commit(folder),
        "files": sorted(path.name for kind, path in paths.items() if kind != "json"),
    }  # fmt: skip
    contents["json"] = (json.dumps(sidecar, indent=1, ensure_ascii=False) + "\n").encode()
    for kind, path in paths.items():
        write_bytes(path, contents[kind])
    return paths


def _draw(make: Callable[..., object], panels: tuple[int, int], title: str, source: str) -> Figure:
    figure = Figure()
    rows, columns = panels
    if panels != (1, 1):
        width, height = figure.get_size_inches()
        figure.set_size_inches(width * (1 + 0.75 * (columns - 1)), height * (1 + 0.9 * (rows - 1)))
        figure.subplots_adjust(hspace=0.5, wspace=0.3)
    with _closing_new_pyplot_figures():
        make(figure.subplots(rows, columns))
    _grow_to_fit(figure, title, source)
    return figure


class _closing_new_pyplot_figures:
    """Close pyplot figures that a drawing function opened by the way."""

    def __enter__(self):
        import matplotlib.pyplot as plt

        self.plt, self.before = plt, set(plt.get_fignums())

    def __exit__(self, *_):
        for number in set(self.plt.get_fignums()) - self.before:
            self.plt.close(number)


def _grow_to_fit(figure: Figure, title: str, source: str) -> None:
    """Add title and source and grow the figure; the Axes keep their size in inches, and so their labels."""
    dpi = figure.dpi
    boxes = [ax.get_tightbbox() for ax in figure.axes]
    left, right = min(box.x0 for box in boxes) / dpi, max(box.x1 for box in boxes) / dpi
    bottom, top = min(box.y0 for box in boxes) / dpi, max(box.y1 for box in boxes) / dpi
    old_width, old_height = figure.get_size_inches()
    shift_x = max(0.0, MARGIN_INCH - left)
    width = max(old_width, right + shift_x + MARGIN_INCH)
    heading = _wrapped(figure, title, width, fontsize=TITLE_SIZE, fontweight="bold", va="top")
    footer = _wrapped(figure, source, width, fontsize=SOURCE_SIZE, color=muted_colour(), va="bottom")
    heading_height, footer_height = (text.get_window_extent().height / dpi for text in (heading, footer))
    shift_y = MARGIN_INCH + footer_height + GAP_INCH - bottom
    height = top + shift_y + GAP_INCH + heading_height + MARGIN_INCH
    inches = [(ax, ax.get_position().bounds) for ax in figure.axes]
    figure.set_size_inches(width, height)
    for ax, (x, y, w, h) in inches:
        ax.set_position([(x * old_width + shift_x) / width, (y * old_height + shift_y) / height,
                         w * old_width / width, h * old_height / height])  # fmt: skip
    heading.set_position((MARGIN_INCH / width, 1 - MARGIN_INCH / height))
    footer.set_position((MARGIN_INCH / width, MARGIN_INCH / height))


def _wrapped(figure: Figure, text: str, width_inch: float, **style):
    """Write a text on the figure, broken into lines that fit into the width."""
    written = figure.text(0, 0, text, ha="left", **style)
    room = 0.96 * (width_inch - 2 * MARGIN_INCH) * figure.dpi  # SVG renderers set text a little wider
    characters = len(text)
    while written.get_window_extent().width > room and characters > 20:
        characters = min(characters - 1, int(characters * 0.97))
        written.set_text(textwrap.fill(text, characters))
    return written


def _render(figure: Figure, kind: str, metadata: dict) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()
