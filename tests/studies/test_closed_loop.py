"""The closed-loop client against a scripted engine: what is in flight, what is counted, when it is scheduled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholecurve.curves.metrics import reduce_trace
from wholecurve.studies.contenders.base import closed_loop
from wholecurve.studies.workloads import Request


class ScriptedEngine:
    """Gives each running request up to `burst` tokens a step and remembers how many were ever in flight."""

    def __init__(self, burst=1, silent_steps=0):
        self.burst, self.silent_steps = burst, silent_steps
        self.left, self.most, self.sent = {}, 0, []

    def add(self, request):
        assert request.request_id not in self.left
        self.left[request.request_id] = request.output_tokens
        self.sent.append(request.request_id)
        self.most = max(self.most, len(self.left))

    def step(self):
        if self.silent_steps:
            self.silent_steps -= 1
            return []
        outputs = []
        for request_id in list(self.left):
            count = min(self.burst, self.left[request_id])
            self.left[request_id] -= count
            finished = self.left[request_id] == 0
            if finished:
                del self.left[request_id]
            outputs.append((request_id, list(range(count)), finished))
        return outputs


lengths = st.lists(st.integers(1, 12), min_size=1, max_size=30)


@given(lengths, st.integers(1, 8), st.integers(1, 4), st.integers(0, 3))
def test_every_token_counted_and_concurrency_kept(outputs, concurrency, burst, silent):
    requests = [Request(f"r{i}", [1] * (i + 1), n) for i, n in enumerate(outputs)]
    engine = ScriptedEngine(burst, silent)
    traces, tokens = closed_loop(engine.add, engine.step, requests, concurrency)
    assert engine.most == min(concurrency, len(requests))
    assert engine.sent == [r.request_id for r in requests], "requests are sent in their order"
    assert [t.request for t in traces] == engine.sent
    assert [t.output_tokens for t in traces] == outputs
    assert {k: len(v) for k, v in tokens.items()} == {r.request_id: r.output_tokens for r in requests}
    for trace in traces:
        trace.check()
        assert trace.completed and trace.finished_s == trace.arrivals_s[-1]
    finished = {t.finished_s for t in traces}
    assert all(t.scheduled_s in finished for t in traces[concurrency:]), "a slot is refilled when it frees"
    assert all(t.scheduled_s == 0 for t in traces[:concurrency])


def test_trace_reduces_to_a_point_with_the_concurrency_asked_for():
    requests = [Request(f"r{i}", [1, 2], 50) for i in range(12)]
    engine = ScriptedEngine()
    traces, _ = closed_loop(engine.add, engine.step, requests, 4)
    point = reduce_trace(traces, 4)
    assert point["n_completed"] == 12 and point["n_failed"] == 0
    assert point["output_tokens"] == 600
    assert point["achieved_concurrency"] == pytest.approx(4, rel=0.05)
