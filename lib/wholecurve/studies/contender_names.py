"""Names of contenders: each one distinct, as text and as part of a file name, and controls that repeat another one."""

from collections.abc import Sequence
from typing import Any

from wholecurve.files import slug


def check_contenders(contenders: Sequence[Any], runs: str) -> None:
    """ValueError where two names are one, or a control repeats nothing that there is.

    `runs` is the field that says what a contender runs: "engine" or "server". A control has the same one.
    """
    names = [contender.name for contender in contenders]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"contenders: the name {doubled[0]!r} is used twice")
    # Points are files named by the contender: two names that become one file would pass for each other's points.
    slugs = [slug(name) for name in names]
    for name, as_file in zip(names, slugs):
        if not as_file or slugs.count(as_file) > 1:
            raise ValueError(f"contenders: the name {name!r} is not distinct from the others as a file name")
    kinds = {contender.name: getattr(contender, runs) for contender in contenders}
    for contender in contenders:
        if contender.control_of is not None and kinds.get(contender.control_of) != getattr(contender, runs):
            raise ValueError(
                f"contenders: control_of {contender.control_of!r} of {contender.name!r} must name another "
                f"contender with the same {runs}"
            )
        if contender.control_of == contender.name:
            raise ValueError(f"contenders: {contender.name!r} cannot be its own control")
