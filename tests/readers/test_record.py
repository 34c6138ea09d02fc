"""Numbers of a foreign row: each state has its own word, and none of them becomes a number."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholecurve.errors import UserError
from wholecurve.readers.found import Notes, collect, keep_percentiles, number_repeats
from wholecurve.readers.record import Record

STATES = [
    (None, "null"),
    (0, "0"),
    (-0.0, "0"),
    (-3.5, r"negative \(-3.5\)"),
    (math.nan, "NaN"),
    (math.inf, "infinite"),
    (-math.inf, "minus infinite"),
    (10**400, "infinite"),
    ("fast", "the text 'fast'"),
    ("", "the text ''"),
    (True, "true"),
    ([1], "a list of 1"),
    ({"x": 1}, "an object"),
]


@pytest.mark.parametrize(("value", "state"), STATES)
def test_a_value_that_is_no_positive_number_is_refused_by_its_state(value, state):
    with pytest.raises(UserError, match=rf"f, row 1: speed is {state}; a finite number above 0 is needed"):
        Record("f, row 1", {"speed": value}).positive("speed")


def test_missing_is_not_null():
    with pytest.raises(UserError, match="speed is missing"):
        Record("f", {}).positive("speed")
    assert Record("f", {}).optional_positive("speed") is None
    assert Record("f", {"speed": None}).optional_positive("speed") is None
    with pytest.raises(UserError, match="speed is 0"):
        Record("f", {"speed": 0}).optional_positive("speed")


def test_nested_names_and_parts():
    record = Record("f", {"metrics": {"tpot": {"p50": 20}}, "a.b": 3, "list": [1]})
    assert (record.positive("metrics.tpot.p50"), record.number("a.b")) == (20, 3)
    assert not record.has("metrics.ttft.p50") and not record.has("list.0")
    with pytest.raises(UserError, match=r"f, metrics: ttft is missing; an object is needed"):
        record.part("metrics").part("ttft")


def test_numbers_in_cells_are_numbers():
    record = Record("f", {"a": "12.5", "b": "0x10", "c": "1_000", "n": "3", "half": 2.5})
    assert (record.positive("a"), record.count("n")) == (12.5, 3)
    for name in ("b", "c"):
        with pytest.raises(UserError, match="the text"):
            record.positive(name)
    with pytest.raises(UserError, match=r"half is 2.5; a whole number from 0 up"):
        record.count("half")
    with pytest.raises(UserError, match="n is 3; a whole number from 4 up"):
        record.count("n", least=4)


@given(st.one_of(st.floats(), st.integers(), st.text(), st.none(), st.booleans(), st.lists(st.integers())))
def test_positive_gives_a_finite_number_above_zero_or_refuses(value):
    try:
        number = Record("f", {"x": value}).positive("x")
    except UserError:
        return
    assert math.isfinite(number) and number > 0


def point(load, **other):
    return {"contender": "a", "workload": "decode", "load_kind": "concurrency", "load": load, **other}


def test_rows_that_give_no_point_are_dropped_and_named(tmp_path):
    def to_point(record, notes):
        return point(record.count("c", 1))

    rows = [Record("f, row 1", {"c": 1}), Record("f, row 2", {"c": 0}), Record("f, row 3", {"c": 4})]
    found = collect(tmp_path, "tool", rows, Notes(), to_point)
    assert found.points["load"].tolist() == [1, 4]
    assert found.to_document()["dropped"] == ["f, row 2: c is 0; a whole number from 1 up is needed"]
    with pytest.raises(UserError, match=r"f, row 2: c is 0.*\(and 1 more rows"):
        collect(tmp_path, "tool", [rows[1], rows[1]], Notes(), to_point)
    with pytest.raises(UserError, match="holds no results"):
        collect(tmp_path, "tool", [], Notes(), to_point)


def test_repeats_are_numbered_unless_the_file_knows_them():
    import pandas as pd

    notes = Notes()
    frame = pd.DataFrame([point(1), point(8), point(1)])
    assert number_repeats(frame, notes)["repeat"].tolist() == [1, 1, 2]
    assert "up to 2" in next(iter(notes.converted))
    known = pd.DataFrame([point(1, repeat=3), point(1, repeat=7)])
    assert number_repeats(known, notes)["repeat"].tolist() == [3, 7]
    clash = pd.DataFrame([point(1, repeat=3), point(1, repeat=3)])
    assert number_repeats(clash, notes)["repeat"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("completed", "kept"),
    [
        (29, "p50"),
        (30, "p50 p90"),
        (299, "p50 p90"),
        (300, "p50 p90 p99"),
        (None, "p50 p90 p99"),
    ],
)
def test_percentiles_that_few_requests_carry_are_left_out_by_name(completed, kept):
    notes = Notes()
    names = {part: f"ttft_{part}_ms" for part in ("p50", "p90", "p99")}
    left = keep_percentiles({**{name: 1.0 for name in names.values()}, "n_completed": completed}, notes, "row 1")
    assert {part for part, name in names.items() if name in left} == set(kept.split())
    assert len(notes.not_converted) == 3 - len(kept.split())
