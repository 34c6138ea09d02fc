"""Machines of a Ray cluster: with a stand-in for Ray, and with Ray where it is installed."""

import socket
import sys
import threading
import types

import pytest
from load_clients import DyingClient, SteadyClient
from virtual_time import ENDPOINT

from wholecurve.errors import UserError
from wholecurve.studies.serving.load import ray_machines as ray_machines_module
from wholecurve.studies.serving.load.kinds import ClosedLoad
from wholecurve.studies.serving.load.machines import run_load_on
from wholecurve.studies.serving.load.ray_machines import ray_machines
from wholecurve.studies.serving.load.turns import Session, Turn

SESSIONS = [Session(f"s{i}", (Turn(f"t{i:03d}", [1, 2], 1),)) for i in range(20)]


class _Answer:
    """A call that runs in a thread of its own, as an actor's does elsewhere."""

    def __init__(self, call, arguments):
        self.value = self.error = None
        self._thread = threading.Thread(target=self._run, args=(call, arguments))
        self._thread.start()

    def _run(self, call, arguments):
        try:
            self.value = call(*arguments)
        except Exception as error:
            self.error = error

    def wait(self):
        self._thread.join()
        return self


class _Actor:
    def __init__(self, made):
        self.made = made

    def __getattr__(self, method):
        return types.SimpleNamespace(remote=lambda *arguments: _Answer(getattr(self.made, method), arguments))


class FakeRay(types.ModuleType):
    """What `ray_machines` uses of Ray, on this machine: two living nodes and a dead one."""

    def __init__(self):
        super().__init__("ray")
        self.places, self.killed, self.is_up = [], [], False
        self.exceptions = types.SimpleNamespace(
            RayError=type("RayError", (Exception,), {}), RayTaskError=type("RayTaskError", (Exception,), {})
        )

    def init(self, address, **_):
        if address == "auto":
            raise ConnectionError("Could not find any running Ray instance.\nmore")
        self.is_up = True

    def nodes(self):
        return [
            {"Alive": alive, "NodeID": node, "NodeManagerAddress": address}
            for alive, node, address in ((True, "n1", "10.0.0.1"), (False, "n2", "10.0.0.2"), (True, "n3", "10.0.0.3"))
        ]

    def remote(self, actor_class):
        def options(num_cpus, scheduling_strategy):
            self.places.append(scheduling_strategy)
            return types.SimpleNamespace(remote=lambda *arguments: _Actor(actor_class(*arguments)))

        return types.SimpleNamespace(options=options)

    def get(self, answer):
        if (error := answer.wait().error) is None:
            return answer.value
        failed = self.exceptions.RayTaskError("traceback of many lines")
        failed.cause = error
        raise failed

    def kill(self, actor):
        actor.made._group.close()
        self.killed.append(actor)

    def shutdown(self):
        self.is_up = False


@pytest.fixture
def fake_ray(monkeypatch):
    ray = FakeRay()
    strategies = types.ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node_id, soft: (node_id, soft)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util", types.ModuleType("ray.util"))
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    return ray


def test_each_living_node_sends_its_part(fake_ray):
    with ray_machines(processes=2) as machines:
        result = run_load_on(machines, ENDPOINT, SESSIONS, ClosedLoad(4), client_factory=SteadyClient)
    assert [machine["machine"] for machine in result.lag["machines"]] == ["machine 10.0.0.1", "machine 10.0.0.3"]
    assert fake_ray.places == [("n1", False), ("n3", False)]
    assert len(result.traces) == 20 and len({trace.finish_reason.split()[2] for trace in result.traces}) == 4
    assert len(fake_ray.killed) == 2 and not fake_ray.is_up


def test_process_that_dies_on_a_machine_is_named_with_it(fake_ray):
    with (
        pytest.raises(UserError, match=r"^machine 10.0.0.\d: process 1 of 1 ended with code -9"),
        ray_machines() as machines,
    ):
        run_load_on(machines, ENDPOINT, SESSIONS, ClosedLoad(2), client_factory=DyingClient)
    assert len(fake_ray.killed) == 2 and not fake_ray.is_up


def test_machine_with_another_version_is_refused(fake_ray, monkeypatch):
    found = iter([{"wholecurve": "2.0"}, {"wholecurve": "1.0"}])
    monkeypatch.setattr(ray_machines_module, "package_versions", lambda names: next(found))
    with pytest.raises(UserError, match=r"machine 10.0.0.1: has .*1\.0.*, but this machine .*2\.0"), ray_machines():
        pass
    assert not fake_ray.is_up


def test_machine_that_is_lost_is_named(fake_ray, monkeypatch):
    def lost(answer):
        raise fake_ray.exceptions.RayError("The actor died unexpectedly\nbefore finishing")

    monkeypatch.setattr(fake_ray, "get", lost)
    with pytest.raises(UserError, match=r"^machine 10.0.0.1 was lost \(The actor died unexpectedly\)$"), ray_machines():
        pass


def test_cluster_that_is_not_there_is_named(fake_ray):
    with pytest.raises(UserError, match=r"no Ray cluster at auto \(Could not find any running Ray instance\.\)$"):  # noqa: SIM117
        with ray_machines("auto"):
            pass
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(UserError, match=f"no Ray cluster at {address} .*refused"), ray_machines(address):
            pass
    assert not fake_ray.is_up


def test_ray_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(UserError, match=r"package ray is not installed: pip install 'wholecurve\[ray\]'"),
        ray_machines(),
    ):
        pass


def test_a_real_cluster_of_one_machine(monkeypatch):
    pytest.importorskip("ray")
    with ray_machines(processes=2) as machines:
        result = run_load_on(machines, ENDPOINT, SESSIONS, ClosedLoad(4), client_factory=SteadyClient)
    assert [trace.request for trace in result.traces] == [f"t{i:03d}" for i in range(20)]
