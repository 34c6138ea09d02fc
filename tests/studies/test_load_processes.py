"""A load from several processes: nothing is lost or doubled, one start, and a process that dies is named."""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_clients import (
    BrokenClient,
    DyingClient,
    ExitingClient,
    PatientClient,
    RefusingClient,
    SteadyClient,
)
from virtual_time import ENDPOINT

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.closed import deal_closed
from wholecurve.studies.serving.load.job import Job
from wholecurve.studies.serving.load.kinds import ClosedLoad, OpenLoad
from wholecurve.studies.serving.load.processes import ProcessGroup
from wholecurve.studies.serving.load.run import run_load
from wholecurve.studies.serving.load.turns import Session, Turn


def sessions_of(count, turns=1):
    sessions = []
    for i in range(count):
        first = Turn(f"t{i:03d}", [1, 2], 1)
        rest = tuple(Turn(f"t{i:03d}.{k}", [1, 2], 1, after=(f"t{i:03d}",)) for k in range(1, turns))
        sessions.append(Session(f"s{i:03d}", (first, *rest)))
    return sessions


def worker_of(trace):
    return int(trace.finish_reason.split()[2])


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_closed_load_of_three_processes_is_whole_and_in_order():
    sessions, seen = sessions_of(24, turns=2), []
    result = run_load(
        ENDPOINT, sessions, ClosedLoad(5), processes=3, client_factory=SteadyClient, on_progress=seen.append
    )
    assert [trace.request for trace in result.traces] == [t.turn_id for s in sessions for t in s.turns]
    assert all(trace.completed for trace in result.traces) and result.not_sent == []
    assert sorted(Counter(worker_of(trace) for trace in result.traces).values()) == [16, 16, 16]
    assert os.getpid() not in {worker_of(trace) for trace in result.traces}
    assert result.lag["processes"] == 3 and result.lag["cpu_s"] > 0 and result.lag["clock_uncertainty_ms"] == 0
    assert seen[-1] == 48 and seen == sorted(seen)
    # Each trace stands on the one clock of this machine: second 0 plus its time is when the client read the clock.
    for trace in result.traces:
        before, after, _ = trace.finish_reason.split()
        assert float(before) - 1e-6 <= result.began_monotonic_s + trace.finished_s <= float(after) + 1e-6
        trace.check()


def test_processes_never_hold_more_than_the_concurrency():
    result = run_load(ENDPOINT, sessions_of(30), ClosedLoad(4), processes=2, client_factory=SteadyClient)
    events = sorted([(t.sent_s, 1) for t in result.traces] + [(t.finished_s, -1) for t in result.traces])
    running = peak = 0
    for _, step in events:
        running += step
        peak = max(peak, running)
    assert peak <= 4


def test_open_load_of_two_processes_keeps_one_schedule():
    load = OpenLoad(100.0, seed=4)
    one = run_load(ENDPOINT, sessions_of(20), load, client_factory=SteadyClient)
    two = run_load(ENDPOINT, sessions_of(20), load, processes=2, client_factory=SteadyClient)
    assert [t.scheduled_s for t in two.traces] == [t.scheduled_s for t in one.traces]
    assert all(t.sent_s >= t.scheduled_s for t in two.traces)
    assert len({worker_of(t) for t in two.traces}) == 2


def test_there_are_no_more_processes_than_slots():
    result = run_load(ENDPOINT, sessions_of(6), ClosedLoad(2), processes=8, client_factory=SteadyClient)
    assert result.lag["processes"] == 2


def test_a_notebook_with_an_event_loop_of_its_own_gets_a_process():
    async def cell():
        return run_load(ENDPOINT, sessions_of(3), ClosedLoad(1), client_factory=SteadyClient)

    result = asyncio.run(cell())
    assert len(result.traces) == 3 and worker_of(result.traces[0]) != os.getpid()


@pytest.mark.parametrize(
    ("client", "text"),
    [
        (DyingClient, r"load: process 2 of 2 ended with code -9 before its load was over$"),
        (ExitingClient, r"load: process 2 of 2 ended with code 3 before .*: out of memory in the client$"),
        (RefusingClient, r"load: process 1 of 2: base_url 'nonsense': not a URL$"),
        (BrokenClient, r"load: process \d of 2: KeyError: 'no such field'$"),
    ],
)
def test_process_that_dies_or_fails_is_named_and_none_stays(client, text, monkeypatch):
    pids = []
    begin = ProcessGroup.begin
    monkeypatch.setattr(ProcessGroup, "begin", lambda group, start: (pids.extend(group.pids), begin(group, start))[1])
    with pytest.raises(UserError, match=text):
        run_load(ENDPOINT, sessions_of(40), ClosedLoad(2), processes=2, client_factory=client)
    assert pids or client is RefusingClient
    assert not any(is_alive(pid) for pid in pids)


def test_what_cannot_go_to_another_process_is_named():
    with pytest.raises(UserError, match=r"the load cannot go to other processes .* names that a module holds"):
        run_load(ENDPOINT, sessions_of(4), ClosedLoad(2), processes=2, client_factory=lambda e, c: SteadyClient(e, c))


def hold_a_load():
    """Begin a load that nothing would end, say who sends it, and wait for it."""
    shares = deal_closed(ClosedLoad(2), sessions_of(4), 2)
    with ProcessGroup() as group:
        group.prepare([Job(ENDPOINT, share, PatientClient, None, None) for share in shares])
        group.begin(time.monotonic())
        print(*group.pids, flush=True)
        group.results()


def test_processes_end_with_a_parent_that_is_killed():
    script = "import test_load_processes; test_load_processes.hold_a_load()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(is_alive(pid) for pid in pids)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids)), "a process outlived the one that started it"


@given(count=st.integers(1, 60), concurrency=st.integers(1, 20), processes=st.integers(1, 9))
def test_dealing_a_closed_load_loses_and_doubles_nothing(count, concurrency, processes):
    concurrency = min(concurrency, count)
    shares = deal_closed(ClosedLoad(concurrency, ramp_s=2.0), sessions_of(count), processes)
    assert sorted(s.session_id for share in shares for s in share.sessions) == [f"s{i:03d}" for i in range(count)]
    slots = sorted(slot for share in shares for slot in share.slots_s)
    assert slots == pytest.approx([2.0 * k / concurrency for k in range(concurrency)], abs=1e-6)
    assert all(0 < len(share.slots_s) <= len(share.sessions) for share in shares)
    assert len(shares) == min(processes, concurrency)
