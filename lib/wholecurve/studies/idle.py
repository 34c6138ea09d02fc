"""Does a contender leave the processor alone while another is measured? Looked at, and enforced where it does not."""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wholecurve.studies.serving.live import LiveServer
    from wholecurve.studies.session import Session

# Of one core. Above it, a waiting worker would take time from the one that is measured.
MOST_SHARE = 0.01
_SECONDS = 2.0  # a hundredth of a core is then two ticks of the kernel's clock


def stop_what_spins(
    sessions: "dict[str, Session] | dict[str, LiveServer]", seconds: float = _SECONDS
) -> dict[str, dict]:
    """Watch all sessions idle for a while; those that use the processor are stopped (SIGSTOP) from now on.

    Returns per contender `cpu_share`, in cores, and whether it is `stopped`: None and False where the system does not
    tell what a process uses.
    """
    before = {name: session.worker.cpu_seconds() for name, session in sessions.items()}
    started = time.perf_counter()
    time.sleep(seconds)
    found = {}
    for name, session in sessions.items():
        after, passed = session.worker.cpu_seconds(), time.perf_counter() - started
        known = after is not None and before[name] is not None
        share = (after - before[name]) / passed if known else None
        stopped = share is not None and share > MOST_SHARE
        if stopped:
            session.stops_when_idle = True
            session.worker.pause()
        found[name] = {"cpu_share": share, "stopped": stopped}
    return found
