"""Clocks of several machines: what an exchange tells, and loads merged from machines whose clocks are wrong."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_clients import RefusingClient, SteadyClient
from virtual_time import ENDPOINT

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.clocks import ClockOffset, measure_offset, offset_between, shifted
from wholecurve.studies.serving.load.closed import deal_closed
from wholecurve.studies.serving.load.job import Job, JobResult
from wholecurve.studies.serving.load.kinds import ClosedLoad, OpenLoad
from wholecurve.studies.serving.load.lag import LagSamples
from wholecurve.studies.serving.load.machines import LocalMachine, run_load_on
from wholecurve.studies.serving.load.run import run_load
from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.trace import RequestTrace

SESSIONS = [Session(f"s{i:02d}", (Turn(f"t{i:02d}", [1, 2], 1),)) for i in range(20)]


class Wire:
    """A clock here, one elsewhere, and messages that take the times given, there and back, in turn."""

    def __init__(self, offset_s, trips, drift=0.0):
        self.now, self.offset_s, self.trips, self.drift = 0.0, offset_s, list(trips), drift

    def here(self):
        return self.now

    def there(self):
        out, back = self.trips.pop(0)
        self.now += out
        read = self.now * (1 + self.drift) + self.offset_s
        self.now += back
        return read


@given(
    offset=st.floats(-1e6, 1e6),
    trips=st.lists(st.tuples(st.floats(1e-5, 0.5), st.floats(1e-5, 0.5)), min_size=1, max_size=20),
)
def test_offset_is_within_its_uncertainty_however_lopsided_the_ways(offset, trips):
    wire = Wire(offset, trips)
    found = measure_offset(wire.there, wire.here, len(trips))
    assert abs(found.offset_s - offset) <= found.uncertainty_s + 1e-9
    assert found.uncertainty_s == pytest.approx(min(out + back for out, back in trips) / 2, abs=1e-9)


def test_quickest_exchange_is_the_one_that_counts():
    wire = Wire(7.0, [(0.5, 0.0), (0.001, 0.001), (0.0, 0.5)])
    assert measure_offset(wire.there, wire.here, 3) == ClockOffset(pytest.approx(7.0), pytest.approx(0.001))


@given(drift=st.floats(-1e-3, 1e-3), at=st.floats(0, 1))
def test_drift_within_the_window_is_part_of_the_uncertainty(drift, at):
    wire = Wire(3.0, [(0.001, 0.001)] * 2, drift)
    before = measure_offset(wire.there, wire.here, 1)
    wire.now += 600.0
    after = measure_offset(wire.there, wire.here, 1)
    during = offset_between(before, after)
    true = 3.0 + drift * (0.001 + at * 600.0)
    assert abs(during.offset_s - true) <= during.uncertainty_s + 1e-6


def test_all_times_of_a_request_are_shifted():
    trace = RequestTrace("a", 1, None, 1.0, 2.0, [3.0, 4.0], [1, 1], 5.0, session="s", token_source="usage")
    assert shifted(trace, -0.5) == RequestTrace(
        "a", 1, None, 0.5, 1.5, [2.5, 3.5], [1, 1], 4.5, session="s", token_source="usage"
    )
    assert shifted(RequestTrace("a", 1, None, 1.0, 2.0), 1.0).finished_s is None


@pytest.mark.parametrize("load", [OpenLoad(100.0, seed=1), ClosedLoad(4)])
def test_two_machines_with_wrong_clocks_give_the_times_of_one(load):
    """The fakes write the true clock beside the one that they were given: after merging both say the same."""
    with LocalMachine("ahead", skew_s=5000.0) as ahead, LocalMachine("behind", processes=2, skew_s=-3.25) as behind:
        result = run_load_on([ahead, behind], ENDPOINT, SESSIONS, load, client_factory=SteadyClient)
    assert [trace.request for trace in result.traces] == [f"t{i:02d}" for i in range(20)]
    uncertainty_s = result.lag["clock_uncertainty_ms"] / 1e3
    for trace in result.traces:
        before, after, _ = trace.finish_reason.split()
        on_this_clock = result.began_monotonic_s + trace.finished_s
        assert float(before) - uncertainty_s - 1e-6 <= on_this_clock <= float(after) + uncertainty_s + 1e-6
        trace.check()
    assert len({trace.finish_reason.split()[2] for trace in result.traces}) == 3
    machines = {machine["machine"]: machine for machine in result.lag["machines"]}
    assert machines["ahead"]["clock_offset_s"] == pytest.approx(5000.0, abs=uncertainty_s + 1e-6)
    assert machines["behind"]["clock_offset_s"] == pytest.approx(-3.25, abs=uncertainty_s + 1e-6)
    assert [machines[name]["processes"] for name in ("ahead", "behind")] == [1, 2]
    assert result.lag["processes"] == 3 and uncertainty_s > 0
    if isinstance(load, OpenLoad):
        one = run_load(ENDPOINT, SESSIONS, load, client_factory=SteadyClient)
        apart = [abs(a.scheduled_s - b.scheduled_s) for a, b in zip(result.traces, one.traces)]
        assert max(apart) <= 2 * uncertainty_s + 1e-6


def test_machines_without_a_share_stay_out_of_it():
    with LocalMachine("a") as a, LocalMachine("b") as b, LocalMachine("c") as c:
        result = run_load_on([a, b, c], ENDPOINT, SESSIONS[:4], ClosedLoad(2), client_factory=SteadyClient)
        assert c.pids == []
    assert [machine["machine"] for machine in result.lag["machines"]] == ["a", "b"]


def test_machine_that_fails_is_named():
    with (
        LocalMachine("a") as a,
        LocalMachine("b") as b,
        pytest.raises(UserError, match="a: process 1 of 1: base_url 'nonsense'"),
    ):
        run_load_on([a, b], ENDPOINT, SESSIONS, ClosedLoad(2), client_factory=RefusingClient)


def test_impossible_machines_are_named():
    with pytest.raises(UserError, match="there are no machines"):
        run_load_on([], ENDPOINT, SESSIONS, ClosedLoad(1))
    with LocalMachine("a", processes=0) as a, pytest.raises(UserError, match="machine a: processes are 0"):
        run_load_on([a], ENDPOINT, SESSIONS, ClosedLoad(1))


def test_offset_measured_against_a_process_holds_its_true_skew():
    share = deal_closed(ClosedLoad(1), SESSIONS[:1], 1)[0]
    with LocalMachine("a", skew_s=12.5) as machine:
        machine.prepare([Job(ENDPOINT, share, SteadyClient, None, None)])
        found = measure_offset(machine.now, time.monotonic, 5)
    assert abs(found.offset_s - 12.5) <= found.uncertainty_s + 1e-6


class DriftingMachine:
    """Its clock is 10 s ahead before the load and 10.5 s after it; its request is over at second 1 of its window."""

    name, processes = "drifting", 1

    def __init__(self):
        self.ahead_s, self.jobs = 10.0, []

    def prepare(self, jobs):
        self.jobs = jobs

    def now(self):
        return time.monotonic() + self.ahead_s

    def begin(self, start):
        self.start = start

    def results(self):
        self.ahead_s = 10.5
        turn = self.jobs[0].share.sessions[0].turns[0]
        return [
            JobResult(
                {turn.turn_id: RequestTrace(turn.turn_id, 2, None, 0.25, 0.5, [1.0], [1], 1.0)}, LagSamples(), None
            )
        ]


def test_times_are_merged_by_the_offset_within_the_window_not_by_the_one_before_it():
    machine = DriftingMachine()
    result = run_load_on([machine], ENDPOINT, SESSIONS[:1], ClosedLoad(1))
    assert machine.start == pytest.approx(result.began_monotonic_s + 10.0, abs=0.1)
    trace = result.traces[0]
    assert (trace.scheduled_s, trace.sent_s, trace.arrivals_s[0], trace.finished_s) == pytest.approx(
        (0.0, 0.25, 0.75, 0.75), abs=0.1
    )
    assert result.lag["machines"][0]["clock_offset_s"] == pytest.approx(10.25, abs=0.1)
    assert result.lag["clock_uncertainty_ms"] == pytest.approx(250, abs=100)
