"""The client's own lag: what is sampled, what is merged, and that nothing of the run is left behind."""

import asyncio
import gc
import os
import time

import numpy as np
import pytest
from virtual_time import ENDPOINT, VirtualClock, factory

from wholecurve.studies.serving.load.alarm import make_alarm
from wholecurve.studies.serving.load.kinds import ClosedLoad
from wholecurve.studies.serving.load.lag import LagSamples, LoopWatch, merged_lag
from wholecurve.studies.serving.load.run import run_load
from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.studies.serving.load.window import TimeSource, Window
from wholecurve.trace import RequestTrace

SESSIONS = [Session(f"s{i:03d}", (Turn(f"t{i:03d}", [1], 1),)) for i in range(400)]


def watched(stalls, seconds):
    """Samples of a loop on virtual time whose work stalls it: (moment, length) each."""
    clock = VirtualClock(100.0)
    window = Window(clock.time_source())

    async def main():
        window.begin(100.0)
        watch = LoopWatch(window)
        watch.begin()
        for at_s, length_s in stalls:
            await window.sleep_until(at_s)
            clock.now += length_s  # work that does not yield
        await window.sleep_until(seconds)
        return await watch.end([])

    with asyncio.Runner(loop_factory=clock.new_loop) as runner:
        return runner.run(main())


def test_an_idle_loop_has_no_delay():
    samples = watched([], 1.0)
    assert 199 <= len(samples.loop_delay_s) <= 201
    assert max(samples.loop_delay_s) < 1e-4 and samples.wall_s == pytest.approx(1.0, abs=1e-4)


def test_every_moment_within_a_stall_is_a_late_one():
    """One stall of 0.5 s is 100 samples of up to 0.5 s, not one of 200: it would hide in every percentile."""
    samples = watched([(0.2525, 0.5)], 1.0)
    late = [delay for delay in samples.loop_delay_s if delay > 1e-3]
    assert len(late) == 100
    assert late == pytest.approx(np.arange(0.4975, 0, -0.005), abs=1e-3)
    assert len(samples.loop_delay_s) == pytest.approx(200, abs=1)
    lag = merged_lag([samples, samples])
    assert lag["loop_delay_max_ms"] == pytest.approx(497.5, abs=1)
    assert lag["loop_delay_p50_ms"] == pytest.approx(1.25, abs=1.5)


def test_lag_of_several_processes_is_pooled():
    one = LagSamples([0.001] * 200, [0.0] * 200, cpu_s=1.0, wall_s=10.0)
    two = LagSamples([0.003] * 200, [0.002] * 100 + [0.5], cpu_s=2.5, wall_s=11.0)
    lag = merged_lag([one, two], clock_uncertainty_s=0.00025)
    assert lag == {
        "send_late_p50_ms": pytest.approx(2.0), "send_late_p99_ms": pytest.approx(3.0),
        "send_late_max_ms": pytest.approx(3.0), "loop_delay_p50_ms": 0.0, "loop_delay_p99_ms": pytest.approx(2.0),
        "loop_delay_max_ms": pytest.approx(500.0), "cpu_s": 3.5, "wall_s": 11.0, "processes": 2,
        "clock_uncertainty_ms": pytest.approx(0.25),
    }  # fmt: skip


def test_what_has_too_few_samples_is_absent_and_not_zero():
    lag = merged_lag([LagSamples([0.001] * 299, [])])
    assert lag["send_late_p50_ms"] == pytest.approx(1.0) and lag["send_late_p99_ms"] is None
    assert lag["loop_delay_p50_ms"] is None and lag["loop_delay_max_ms"] is None


def test_sending_late_is_seen_in_the_lag():
    """Each request leaves 7 ms after it could have."""

    class LateClient:
        def __init__(self, clock):
            self.clock = clock

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def send(self, turn, scheduled_s, session=None):
            await asyncio.sleep(0.007)
            return RequestTrace(turn.turn_id, 1, None, scheduled_s, self.clock(), [self.clock()], [1], self.clock())

    result = run_load(
        ENDPOINT, SESSIONS, ClosedLoad(2), client_factory=lambda endpoint, clock: LateClient(clock),
        time_source=VirtualClock().time_source(),
    )  # fmt: skip
    for which in ("p50", "p99", "max"):
        assert result.lag[f"send_late_{which}_ms"] == pytest.approx(7.0, abs=0.1)


def test_no_garbage_is_collected_within_the_window_and_it_is_again_after_it():
    collecting = []
    run_load(
        ENDPOINT, SESSIONS[:1], ClosedLoad(1), time_source=VirtualClock().time_source(),
        client_factory=factory(service_s=lambda turn: collecting.append(gc.isenabled()) or 1.0),
    )  # fmt: skip
    assert collecting == [False] and gc.isenabled() and gc.get_freeze_count() == 0


def test_garbage_is_collected_again_after_an_error():
    def fault(turn):
        raise RuntimeError("fault of the client")

    with pytest.raises(RuntimeError):
        run_load(
            ENDPOINT, SESSIONS[:1], ClosedLoad(1), client_factory=factory(service_s=fault),
            time_source=VirtualClock().time_source(),
        )  # fmt: skip
    assert gc.isenabled() and gc.get_freeze_count() == 0


def on_real_time(main):
    source = TimeSource()
    with asyncio.Runner(loop_factory=source.new_loop) as runner:
        return runner.run(main(Window(source)))


def test_real_waits_never_end_before_their_moment():
    """Timers of an event loop round to milliseconds and may be early; a request may not be sent before its time."""

    async def main(window):
        with window.awake():
            window.begin(time.monotonic())

            async def wait(number):
                at_s = 0.0037 * (number % 17) + 0.00011 * number
                await window.sleep_until(at_s)
                slept = window() - at_s
                reached = await window.reaches(at_s + 0.0123, asyncio.Event())
                return slept, reached, window() - at_s - 0.0123

            return await asyncio.gather(*map(wait, range(60)))

    for slept, reached, waited in on_real_time(main):
        assert slept >= 0 and reached and waited >= 0


def test_a_wait_ends_when_it_is_stopped():
    async def main(window):
        with window.awake():
            window.begin(time.monotonic())
            stopped = asyncio.Event()
            waiting = asyncio.create_task(window.reaches(3600.0, stopped))
            await asyncio.sleep(0.01)
            stopped.set()
            return await waiting, await window.reaches(0.0, stopped)

    assert on_real_time(main) == (False, False)


def test_sleepers_of_an_alarm_wake_in_their_order_and_cancelled_ones_stop_nobody():
    async def main(window):
        alarm, woken = make_alarm(), []
        if alarm is None:
            return [1, 2, 4, 5]

        async def sleep(number):
            await alarm.sleep(0.004 * number)
            woken.append(number)

        sleepers = {number: asyncio.create_task(sleep(number)) for number in (5, 3, 1, 4, 2)}
        await asyncio.sleep(0)
        sleepers.pop(3).cancel()
        await asyncio.gather(*sleepers.values())
        alarm.close()
        return woken

    assert on_real_time(main) == [1, 2, 4, 5]


def test_runs_leave_no_file_open():
    def run():
        run_load(ENDPOINT, SESSIONS[:2], ClosedLoad(1), client_factory=factory(service_s=lambda turn: 0.01))

    run()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run()
    assert len(os.listdir("/proc/self/fd")) == before


def test_before_its_beginning_the_window_stands_at_zero():
    window = Window(VirtualClock(50.0).time_source())
    assert window() == 0.0
    window.begin(52.0)
    assert window() == -2.0
