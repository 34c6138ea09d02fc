"""Names of contenders: short, without colons, and never shared by two configurations."""

from hypothesis import given
from hypothesis import strategies as st

from wholecurve.readers.contenders import distinguish


def test_a_name_has_only_the_parts_that_tell_rows_of_one_base_apart():
    parts = [{"tp": "tp4", "image": "v1"}, {"tp": "tp4", "image": "v2"}, {"tp": "tp8", "image": "v1"}]
    assert distinguish(["a", "a", "b"], parts) == ["a v1", "a v2", "b"]
    assert distinguish(["a"] * 3, parts) == ["a tp4 v1", "a tp4 v2", "a tp8 v1"]


def test_a_missing_part_is_an_empty_one():
    assert distinguish(["a", "a"], [{"spec": ""}, {}]) == ["a", "a"]
    assert distinguish(["a", "a"], [{"spec": "mtp"}, {}]) == ["a mtp", "a"]


def test_names_that_come_out_equal_are_numbered_apart():
    assert distinguish(["a", "a", "a"], [{"image": "x:1"}, {"image": "x_1"}, {"image": "x:1"}]) == [
        "a x_1",
        "a x_1 (2)",
        "a x_1",
    ]
    assert distinguish(["a", "a b"], [{}, {}]) == ["a", "a b"]


PART = st.dictionaries(st.sampled_from(["tp", "image", "date"]), st.sampled_from(["", "x", "x:", "x_", "x y", "y"]))


@given(st.lists(st.tuples(st.sampled_from(["a", "a x", "b"]), PART), min_size=1, max_size=8))
def test_names_are_equal_exactly_where_base_and_parts_are(rows):
    names = distinguish([base for base, _ in rows], [part for _, part in rows])
    identities = [(base, tuple(sorted((k, v) for k, v in part.items() if v))) for base, part in rows]
    assert len(set(names)) == len(set(identities)) == len(set(zip(names, identities)))
    assert not any(":" in name for name in names)
