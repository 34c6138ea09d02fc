"""Rows of measurements: when a share of a ceiling means something, and what is said of an impossible one."""

import pytest

from wholecurve.kernels import load_subject
from wholecurve.kernels.cost import Cost
from wholecurve.profiling.devices import Ceiling, Device, bound
from wholecurve.profiling.measured import CPU_BYTES, CPU_FLOPS, attained, cpu_rows, fits_cpu, measured_rows
from wholecurve.profiling.rows import MEASURED_CPU
from wholecurve.profiling.timing import Timing

SUBJECT = load_subject("rms_norm")
CASE = {"num_tokens": 4, "hidden": 64}
DEVICE = Device(
    "toy",
    None,
    1000,
    (
        Ceiling("memory_bytes_per_s", 1e9, "measured read", "a run"),
        Ceiling("vector_flops_per_s", 1e9, "measured GEMM", "a run"),
    ),
)
KINDS = ("measured read", "measured GEMM")


def timing(us, cold):
    return Timing([us, us, us], 1, "by hand", 0, cold, [])


def test_a_memory_ceiling_says_nothing_about_a_warm_cache():
    memory = bound(Cost(bytes_min=1000, flops=1), DEVICE, KINDS)  # 1 µs
    assert attained(timing(2.0, cold=True), memory) == pytest.approx(0.5)
    assert attained(timing(2.0, cold=False), memory) is None
    matrix = bound(Cost(bytes_min=1, flops=1000), DEVICE, KINDS)
    assert attained(timing(2.0, cold=False), matrix) == pytest.approx(0.5)
    assert attained(timing(2.0, cold=True), None) is None


def rows_of(us, problem="", cold=True):
    cost = SUBJECT.cost(CASE)
    limit = bound(Cost(bytes_min=1000, flops=1), DEVICE, KINDS)
    return measured_rows(
        SUBJECT, "small", CASE, MEASURED_CPU, {"cpu": problem}, {"cpu": timing(us, cold)}, cost, limit, {}
    )[0]


def test_more_than_a_ceiling_is_an_error():
    assert rows_of(2.0)["note"] is None
    assert rows_of(0.5)["note"] == "error: 200% of the ceiling memory_bytes_per_s"


def test_a_wrong_form_has_no_time():
    row = rows_of(2.0, problem="output 0: worst at (3, 7)")
    assert row["median_us"] is None and row["attained"] is None and row["samples_us"] == []
    assert row["note"] == "output 0: worst at (3, 7)"


def test_forms_that_the_gate_refuses_are_not_timed():
    calls = []

    def wrong(**arguments):
        calls.append(1)
        return 2 * SUBJECT.operation(**arguments, form="reference")

    rows = {
        row["form"]: row for row in cpu_rows(SUBJECT, "small", CASE, DEVICE, variants={"wrong": wrong}, seconds=0.01)
    }
    assert rows["wrong"]["median_us"] is None and "worst at" in rows["wrong"]["note"] and len(calls) == 1
    assert rows["eager"]["median_us"] > 0 and rows["eager"]["note"] is None


def test_what_fits_a_cpu():
    assert fits_cpu(SUBJECT, CASE)
    assert not fits_cpu(SUBJECT, {"num_tokens": CPU_BYTES // 2, "hidden": 1})
    gather = load_subject("engram_gather")  # few bytes are read of a table that takes gigabytes
    case = gather.spec.BENCH["64x24x256"]
    assert gather.cost(case).bytes_min < CPU_BYTES and gather.cost(case).flops < CPU_FLOPS
    assert not fits_cpu(gather, case)
