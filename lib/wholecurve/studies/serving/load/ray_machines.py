"""The machines of a Ray cluster as senders of a load: an actor on each, with processes of its own.

Every machine needs this package in the same version, and the same Python; Ray is an extra of it:
`pip install 'wholecurve[ray]'`. A cluster is `ray start --head` on one machine and `ray start --address=HEAD:6379` on
the others; without an `address`, one on this machine is started and ended again.
"""

import platform
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from wholecurve.errors import UserError
from wholecurve.runs.provenance import package_versions
from wholecurve.studies.serving.load.job import Job, JobResult
from wholecurve.studies.serving.load.processes import ProcessGroup

_ANSWER_S = 10.0


@contextmanager
def ray_machines(address: str | None = None, processes: int = 1) -> Iterator[list["RayMachine"]]:
    """One `RayMachine` per living node of the cluster at `address`, each with so many processes.

    UserError where Ray is not installed, no cluster answers, or a machine has another version of this package.
    """
    try:
        import ray
    except ImportError:
        raise UserError("machines: package ray is not installed: pip install 'wholecurve[ray]'") from None
    _require_answer(address)
    try:
        ray.init(address=address, logging_level="warning", include_dashboard=False if address is None else None)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(f"machines: no Ray cluster at {address} ({_line(error)})") from None
    machines: list[RayMachine] = []
    try:
        for node in ray.nodes():
            if node["Alive"]:
                machines.append(RayMachine(node["NodeID"], f"machine {node['NodeManagerAddress']}", processes))
        for machine in machines:
            machine.require_same_versions()
        yield machines
    finally:
        for machine in machines:
            machine.close()
        ray.shutdown()


class RayMachine:
    """A `machines.Machine` on one node of a cluster that this process is connected to."""

    def __init__(self, node_id: str, name: str, processes: int):
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.name, self.processes = name, processes
        place = NodeAffinitySchedulingStrategy(node_id, soft=False)
        self._actor = ray.remote(_Hand).options(num_cpus=0, scheduling_strategy=place).remote(name)
        self._running = None

    def require_same_versions(self) -> None:
        """UserError where the machine runs another Python or another version of this package."""
        here, there = _versions(), self._ask("versions")
        if there != here:
            raise UserError(f"{self.name}: has {there}, but this machine {here}; the same versions are needed")

    def prepare(self, jobs: Sequence[Job]) -> None:
        """Open a client per job, in processes of that machine."""
        self._ask("prepare", list(jobs))

    def now(self) -> float:
        """Its monotonic clock."""
        return self._ask("now")

    def begin(self, start: float) -> None:
        """Let second 0 be a moment of its clock."""
        self._running = self._actor.run.remote(start)

    def results(self) -> list[JobResult]:
        """Wait until its jobs are done."""
        return self._get(self._running)

    def close(self) -> None:
        """End the actor, and its processes with it."""
        import ray

        ray.kill(self._actor)

    def _ask(self, method: str, *arguments: object) -> object:
        return self._get(getattr(self._actor, method).remote(*arguments))

    def _get(self, answer: object) -> object:
        import ray

        try:
            return ray.get(answer)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(str(error.cause)) from None
            raise
        except ray.exceptions.RayError as error:
            raise UserError(f"{self.name} was lost ({_line(error)})") from None


class _Hand:
    """The actor: processes on the machine that it runs on."""

    def __init__(self, name: str):
        self._group = ProcessGroup(name)

    def versions(self) -> dict[str, str]:
        return _versions()

    def prepare(self, jobs: Sequence[Job]) -> None:
        self._group.prepare(jobs)

    def now(self) -> float:
        return time.monotonic()

    def run(self, start: float) -> list[JobResult]:
        self._group.begin(start)
        return self._group.results()


def _require_answer(address: str | None) -> None:
    # Ray itself tries for minutes.
    host, _, port = (address or "").rpartition(":")
    if not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except OSError as error:
        raise UserError(f"machines: no Ray cluster at {address} ({_line(error)})") from None


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **package_versions(["wholecurve"])}


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
