"""Ceilings of a run that were measured several times."""

from wholecurve.runs.ceilings import FIRST, rounds_of, with_round


def measured(read, gemm):
    return {
        "source": "measured (cpu)",
        "dtype": "bfloat16",
        "threads": 2,
        "read_bytes_per_s": read,
        "gemm_flops_per_s": gemm,
        "trials": {"read_s": [1 / read]},
    }


def test_a_record_of_one_measurement_is_its_first_round():
    assert rounds_of(measured(1.0, 2.0)) == [{"when": FIRST, **measured(1.0, 2.0)}]


def test_the_best_of_each_rate_counts_and_every_round_stays():
    first = with_round(None, measured(40.0, 900.0), FIRST)
    second = with_round(first, measured(60.0, 850.0), "before repeat 2")
    third = with_round(second, measured(50.0, 800.0), "after the last point")
    assert (third["read_bytes_per_s"], third["gemm_flops_per_s"]) == (60.0, 900.0)
    assert [one["when"] for one in rounds_of(third)] == [FIRST, "before repeat 2", "after the last point"]
    assert [one["read_bytes_per_s"] for one in rounds_of(third)] == [40.0, 60.0, 50.0]
    assert "trials" not in third and third["threads"] == 2


def test_a_record_of_one_measurement_can_be_added_to():
    later = with_round(measured(40.0, 900.0), measured(60.0, 850.0), "after the last point")
    assert [one["when"] for one in rounds_of(later)] == [FIRST, "after the last point"]
    assert later["read_bytes_per_s"] == 60.0
