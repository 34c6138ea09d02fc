"""Names of contenders: as short as they can be, while two configurations of one file never share one."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence


def distinguish(bases: Sequence[str], parts: Sequence[Mapping[str, str]]) -> list[str]:
    """One name per row: its base, and those parts of its configuration that tell it from rows of the same base.

    ``parts`` maps what is configured ("tp", "image") to how it is written in a name ("tp8"); a part that is missing
    or empty adds nothing. Rows get the same name exactly when base and all parts are equal. A colon is written as
    an underscore, because ``FILE:contender`` uses it.
    """
    groups = defaultdict(list)
    for row, base in enumerate(bases):
        groups[base].append(row)
    names = [""] * len(bases)
    for base, rows in groups.items():
        chosen = _telling(rows, parts)
        for row in rows:
            texts = [base, *(parts[row].get(key, "") for key in chosen)]
            names[row] = " ".join(text for text in texts if text).replace(":", "_")
    stated = [sorted((key, text) for key, text in part.items() if text) for part in parts]
    return _unique(names, list(zip(bases, stated)))


def tell_steps_apart(
    names: Sequence[str],
    loads: Sequence[float],
    tests: Sequence[Mapping[str, int]],
    is_exact: Callable[[int, str], bool],
) -> list[dict[str, str]]:
    """What must be added to the parts of prefill rows so that different tests with steps of one size are no repeats.

    ``tests`` says for each row what sets its step, the same keys in the same order, as {"n_ubatch": 512, "n_prompt":
    2048}. Where tests of one name share a load, the curve runs over the first key that varies, the others name the
    contender, and so does the first in a row for which ``is_exact(row, key)`` says that the load does not tell it.
    """
    made: list[dict[str, str]] = [{} for _ in names]
    for name in dict.fromkeys(names):
        rows = [row for row, other in enumerate(names) if other == name]
        different = defaultdict(set)
        for row in rows:
            different[loads[row]].add(tuple(tests[row].values()))
        if all(len(tests_of_load) == 1 for tests_of_load in different.values()):
            continue
        axis, *others = [key for key in tests[rows[0]] if len({tests[row][key] for row in rows}) > 1]
        for row in rows:
            shown = others if is_exact(row, axis) else [axis, *others]
            made[row] = {key: f"{key} {tests[row][key]}" for key in shown}
    return made


def _telling(rows: list[int], parts: Sequence[Mapping[str, str]]) -> list[str]:
    """The parts, in their order, each of which still splits rows that those before it leave together."""
    chosen, buckets = [], [rows]
    for key in dict.fromkeys(key for row in rows for key in parts[row]):
        finer = [bucket for old in buckets for bucket in _split(old, key, parts)]
        if len(finer) > len(buckets):
            chosen.append(key)
            buckets = finer
    return chosen


def _split(rows: list[int], key: str, parts: Sequence[Mapping[str, str]]) -> list[list[int]]:
    buckets = defaultdict(list)
    for row in rows:
        buckets[parts[row].get(key, "")].append(row)
    return list(buckets.values())


def _unique(names: list[str], identities: list[tuple]) -> list[str]:
    """Names that came out equal for different configurations, as "a:b" and "a_b", are numbered apart."""
    owners: dict[str, list] = defaultdict(list)
    made = []
    for name, identity in zip(names, identities):
        known = owners[name]
        if identity not in known:
            known.append(identity)
        place = known.index(identity)
        made.append(name if place == 0 else f"{name} ({place + 1})")
    return made
