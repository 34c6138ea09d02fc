"""Small texts of the card: ranges, counts, lists of names and loads."""

from collections.abc import Iterable, Sequence


def numbers(values: Iterable[float]) -> str:
    """ "1, 2, 4" of sorted distinct values."""
    return ", ".join(f"{value:g}" for value in sorted(set(values)))


def span(values: Iterable[float | None], digits: int = 2, unit: str = "") -> str:
    """ "0.89–0.96" of the values that exist; one number where all are equal in print, "nothing" without any."""
    known = [value for value in values if value is not None and value == value]
    if not known:
        return "nothing"
    low, high = f"{min(known):,.{digits}f}", f"{max(known):,.{digits}f}"
    return f"{low}{unit}" if low == high else f"{low}–{high}{unit}"


def count(number: int, noun: str) -> str:
    """ "1 point", "3 points"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def names(found: Iterable[str], most: int = 4) -> str:
    """ "a, b, c" and how many more there are."""
    listed = list(dict.fromkeys(found))
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")


def range_text(ends: Sequence[float]) -> str:
    """ "64–128" of [64, 128], "64" of [64, 64]."""
    low, high = ends
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def where(row: dict) -> str:
    """ "vllm, decode 4, repeat 2" of a point."""
    return f"{row['contender']}, {row['workload']} {row['load']:g}, repeat {row['repeat']}"


def places(rows: Sequence[dict], most: int = 3) -> str:
    """The points in words; how many more where they are many."""
    return "; ".join(where(row) for row in rows[:most]) + (f"; {len(rows) - most} more" if len(rows) > most else "")
