"""Small PNGs in notebooks: figures embedded with a palette, in a quarter of the bytes."""

import io

from matplotlib.figure import Figure


def palette_png(figure: Figure, colours: int = 128) -> bytes:
    """The figure as PNG with at most so many colours, cut to what is drawn, at its own resolution.

    The palette covers the extremes of the colours, so that the few pixels of a thin line keep theirs.
    """
    from PIL import Image

    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=figure.dpi, bbox_inches="tight", facecolor=figure.get_facecolor())
    image = Image.open(drawn).convert("RGB").quantize(colours, method=Image.Quantize.MAXCOVERAGE)
    image.save(packed, format="png", optimize=True)
    return packed.getvalue()


def inline_with_palette() -> None:
    """Let this notebook embed its figures as `palette_png`, so that many of them fit; elsewhere nothing happens."""
    try:
        from IPython import get_ipython
    except ImportError:
        return
    if (shell := get_ipython()) is None:
        return
    # Once loaded, the inline backend leaves the formats alone; loaded later, it would put its own in place.
    import matplotlib_inline.backend_inline  # noqa: F401

    shell.display_formatter.formatters["image/png"].for_type(Figure, palette_png)
