"""Result files of other tools, each turned into the frame of points that ``wholecurve.curves`` takes.

One file per foreign format. A reader converts what can be converted, and refuses the rest with file, row
and field.
"""

from wholecurve.readers.plain import read_plain
from wholecurve.readers.specs import Source, read_points, read_source

__all__ = ["Source", "read_plain", "read_points", "read_source"]
