"""Result files of other tools, each turned into the frame of points that ``wholecurve.curves`` takes.

One file per foreign format. A reader converts what can be converted, and refuses the rest with file, row
and field.
"""

from wholecurve.readers.collection import Collection, read_collection
from wholecurve.readers.found import Found
from wholecurve.readers.plain import read_plain
from wholecurve.readers.recognise import read_file
from wholecurve.readers.specs import Source, read_points, read_source, read_sources

__all__ = [
    "Collection",
    "Found",
    "Source",
    "read_collection",
    "read_file",
    "read_plain",
    "read_points",
    "read_source",
    "read_sources",
]
