"""What a workload is made into: its sessions, and what has to be said about them."""

from dataclasses import dataclass, field

from wholecurve.studies.serving.load.turns import Session


@dataclass(frozen=True)
class Prepared:
    """The sessions of one point in the order in which they start.

    ``notes`` are sentences for the record: how exact lengths are, what was left out and why.
    """

    sessions: list[Session]
    notes: list[str] = field(default_factory=list)
