"""One load from several machines, merged onto the clock of the one that leads.

    from wholecurve.studies.serving.load.machines import run_load_on
    from wholecurve.studies.serving.load.ray_machines import ray_machines

    with ray_machines(address="auto", processes=4) as machines:
        result = run_load_on(machines, endpoint, sessions, ClosedLoad(512))

`run_load_on` is `run_load` in every other respect. The machines of a Ray cluster come from `ray_machines`; a
`LocalMachine` is one simulated on this one, by processes whose clock is wrong on purpose.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Protocol

from wholecurve.errors import UserError
from wholecurve.studies.serving.client.endpoint import Endpoint
from wholecurve.studies.serving.load.clocks import ClockOffset, measure_offset, offset_between, shifted
from wholecurve.studies.serving.load.job import ClientFactory, Job, JobResult
from wholecurve.studies.serving.load.kinds import Load
from wholecurve.studies.serving.load.processes import ProcessGroup
from wholecurve.studies.serving.load.run import LoadResult, dealt, merged_result
from wholecurve.studies.serving.load.turns import Session

_LEAD_S = 1.0  # from when all are ready to second 0: longer than a message takes to the farthest machine


class Machine(Protocol):
    """A machine that sends a part of a load. Its methods are called in this order."""

    name: str
    processes: int  # that it can send from

    def prepare(self, jobs: Sequence[Job]) -> None:
        """Open a client per job."""

    def now(self) -> float:
        """Its monotonic clock; also asked after `results`."""

    def begin(self, start: float) -> None:
        """Let second 0 be a moment of its clock; returns at once."""

    def results(self) -> list[JobResult]:
        """Wait until its jobs are done."""


class LocalMachine(ProcessGroup):
    """A machine simulated on this one: `processes` processes, by a clock that is `skew_s` ahead. Used as a context."""

    def __init__(self, name: str, processes: int = 1, skew_s: float = 0.0):
        super().__init__(name, skew_s)
        self.processes = processes


def run_load_on(
    machines: Sequence[Machine],
    endpoint: Endpoint,
    sessions: Sequence[Session],
    load: Load,
    *,
    until_s: float | None = None,
    grace_s: float | None = None,
    client_factory: ClientFactory | None = None,
) -> LoadResult:
    """`run_load` from several machines: sessions dealt round robin to all their processes, begun at one moment.

    Times are merged onto this machine's clock; `lag["clock_uncertainty_ms"]` is the most that one machine's may be
    wrong by, and `lag["machines"]` tells each one's offset. Raises UserError as `run_load` does.
    """
    if not machines:
        raise UserError("load: there are no machines to send from")
    hands = _hands(machines)
    shares = dealt(sessions, load, len(hands), until_s, grace_s)
    jobs: dict[int, list[Job]] = {}
    for hand, share in zip(hands, shares, strict=False):
        jobs.setdefault(hand, []).append(Job(endpoint, share, client_factory, until_s, grace_s))
    used = {index: machines[index] for index in jobs}
    for index, machine in used.items():
        machine.prepare(jobs[index])
    before = {index: measure_offset(machine.now, time.monotonic) for index, machine in used.items()}
    start = time.monotonic() + _LEAD_S
    for index, machine in used.items():
        machine.begin(start + before[index].offset_s)
    results = {index: machine.results() for index, machine in used.items()}
    during = {
        index: offset_between(before[index], measure_offset(machine.now, time.monotonic))
        for index, machine in used.items()
    }
    merged = [
        _on_this_clock(result, before[index].offset_s - during[index].offset_s)
        for index, own in results.items()
        for result in own
    ]
    total = merged_result(sessions, merged, start, max(offset.uncertainty_s for offset in during.values()))
    described = [_described(machine, len(jobs[index]), during[index]) for index, machine in used.items()]
    return dataclasses.replace(total, lag={**total.lag, "machines": described})


def _hands(machines: Sequence[Machine]) -> list[int]:
    """For each process the number of its machine: all first processes, then all second ones."""
    if wrong := [machine for machine in machines if machine.processes < 1]:
        raise UserError(f"machine {wrong[0].name}: processes are {wrong[0].processes}; at least 1 is needed")
    turns = range(max(machine.processes for machine in machines))
    return [index for turn in turns for index, machine in enumerate(machines) if turn < machine.processes]


def _on_this_clock(result: JobResult, seconds: float) -> JobResult:
    # Their second 0 was set by the offset as it was before the window; what is known after it is closer.
    return dataclasses.replace(
        result, traces={turn_id: shifted(trace, seconds) for turn_id, trace in result.traces.items()}
    )


def _described(machine: Machine, processes: int, offset: ClockOffset) -> dict:
    return {
        "machine": machine.name,
        "processes": processes,
        "clock_offset_s": offset.offset_s,
        "clock_uncertainty_ms": 1e3 * offset.uncertainty_s,
    }
