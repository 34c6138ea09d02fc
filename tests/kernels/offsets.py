"""Finding 32-bit offsets that may wrap, in the TTIR of a compiled kernel."""

import re
from collections import ChainMap

DEFINITION = re.compile(r"^\s*(%\w+)(?::\d+)? = (.+?)(?: loc\(.*)?$")


def offsets_that_may_wrap(ttir):
    """Lines of TTIR where a 32-bit offset could pass 2³¹: rows · width and pages · stride do.

    A pointer may move by i64, by an i32 range (a lane inside one row, bounded by the tile) or by a constant; and no
    i64 may come from an i32 product.
    """
    wrapping, scope = [], ChainMap()
    for text in ttir.splitlines():
        if text.strip().startswith("}"):  # the names of a region end with it, its neighbour may use them anew
            scope = scope.parents
        found = DEFINITION.match(text)
        if found:
            scope[found[1]] = found[2]
            wrapping += [found[2]] * may_wrap(found[2], scope)
        if text.rstrip().endswith("{"):
            scope = scope.new_child()
    return wrapping


def may_wrap(line, definitions):
    """Whether this definition moves a pointer by a 32-bit offset, or widens a 32-bit product."""
    operand = re.match(r"(?:tt\.addptr %\w+, |arith\.extsi )(%\w+)", line)
    if not operand:
        return False
    source = origin(operand[1], definitions)
    if line.startswith("tt.addptr"):
        return line.rstrip(">").endswith("i32") and not source.startswith(("tt.make_range", "arith.constant"))
    return source.startswith("arith.muli")


def origin(value, definitions):
    """The line that made a value, behind the operations that only reshape it."""
    line = definitions.get(value, "")
    reshaped = re.match(r"tt\.(?:expand_dims|broadcast|splat) (%\w+)", line)
    return origin(reshaped[1], definitions) if reshaped else line
