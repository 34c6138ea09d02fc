"""Patterns of strings in JSON: characters that the string could only hold escaped, which a pattern's text cannot be."""

import re

PIECE = re.compile(r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\u\{[0-9a-fA-F]+\}|\\c[A-Za-z]|\\.|.", re.DOTALL)
CONTROL = {"0": 0, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
ESCAPED = {*range(0x20), ord('"'), ord("\\")}


def escaped_character(pattern: str) -> str | None:
    """A character that a pattern asks for and that JSON escapes: xgrammar would write it as it is. None without one.

    A set that leaves characters out is no danger. In a set of ASCII characters xgrammar leaves these out of a range.
    """
    inside, is_negated, members, is_range = False, False, [], False
    for piece in PIECE.findall(pattern):
        code = code_of(piece)
        if not inside:
            if piece == "[":
                inside, is_negated, members, is_range = True, False, [], False
            elif code in ESCAPED:
                return chr(code)
        elif piece == "^" and not members:
            is_negated, members = True, [None]
        elif piece == "]":
            if not is_negated and (found := escaped_member(members)) is not None:
                return chr(found)
            inside = False
        elif piece == "-" and members and members[-1] is not None:
            is_range = True
        elif is_range and code is not None:
            members[-1] = (members[-1][0], code)
            is_range = False
        else:
            members.append(None if code is None else (code, code))
            is_range = False
    return None


def escaped_member(members: list[tuple[int, int] | None]) -> int | None:
    """The first escaped character in the ranges of a set that will not be left out of it."""
    ranges = [member for member in members if member is not None]
    is_ascii = all(last < 0x80 for _, last in ranges)
    for first, last in ranges:
        if first == last or not is_ascii:
            for code in sorted(ESCAPED):
                if first <= code <= last:
                    return code
    return None


def code_of(piece: str) -> int | None:
    """The character that a piece of a pattern stands for, None for a class of characters or a boundary."""
    if len(piece) == 1:
        return ord(piece)
    if piece[1] in "xu" and len(piece) > 2:
        return int(piece[2:].strip("{}"), 16)
    if piece[1] == "c" and len(piece) == 3:
        return ord(piece[2]) % 32
    if piece[1] in CONTROL:
        return CONTROL[piece[1]]
    return None if piece[1].isalnum() else ord(piece[1])
