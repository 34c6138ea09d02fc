"""What a file holds, by its content: every shape is parsed or refused by name, and nothing that is cut off passes."""

import pytest

from wholecurve.errors import UserError
from wholecurve.readers.content import read_content
from wholecurve.readers.recognise import read_file


def write(tmp_path, text, name="file.json"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [
        ('{"a": 1}', "json", 1),
        ('[{"a": 1}, {"a": 2}]', "json", 2),
        ('{"a": 1}\n{"a": 2}\n', "jsonl", 2),
        ('{\n "a": 1\n}\n{\n "a": 2\n}\n', "jsonl", 2),
        ('{"a": 1}{"a": 2}', "jsonl", 2),
        ('loading model\nwarming up\n[{"a": 1}]\n', "json", 1),
        ("nothing here\n", "text", 0),
    ],
    ids=["object", "list", "lines", "appended objects", "appended without line end", "after log lines", "text"],
)
def test_the_shape_is_found_by_content(tmp_path, text, kind, count):
    content = read_content(write(tmp_path, text))
    assert (content.kind, len(content.records)) == (kind, count)
    assert [record.fields["a"] for record in content.records] == list(range(1, count + 1))


def test_bare_infinity_and_nan_are_numbers_that_are_said_by_name(tmp_path):
    (record,) = read_content(write(tmp_path, '{"rate": Infinity, "x": NaN, "low": -Infinity}')).records
    assert [record.state(name) for name in ("rate", "x", "low")] == ["infinite", "NaN", "minus infinite"]


def test_lines_that_are_no_objects_are_named(tmp_path):
    content = read_content(write(tmp_path, '{"a": 1}\n[2]\n{"a": 3\n', "r.jsonl"))
    assert len(content.records) == 1
    assert [skipped.split(": ")[0][-6:] for skipped in content.skipped] == ["line 2", "line 3"]


def test_appended_objects_that_break_off_keep_the_whole_ones_and_name_the_line(tmp_path):
    content = read_content(write(tmp_path, '{\n"a": 1\n}\n{\n"a": 2'))
    assert [record.fields["a"] for record in content.records] == [1]
    assert "line 4: no valid JSON from here on; 1 objects before it" in content.skipped[0]


def test_what_stands_between_appended_objects_and_is_none_is_named(tmp_path):
    content = read_content(write(tmp_path, '{\n"a": 1\n}\n[7]\n{\n"a": 2\n}\n'))
    assert [record.fields["a"] for record in content.records] == [1, 2]
    assert content.skipped[0].endswith("after object 1: a list of 1; an object is needed")


def test_a_cell_of_a_table_may_hold_a_line_break(tmp_path):
    (record,) = read_content(write(tmp_path, 'a,b\n"one\ntwo",2\n', "a.csv")).records
    assert record.fields == {"a": "one\ntwo", "b": "2"} and record.where.endswith("line 2")


def test_log_lines_before_a_result_are_counted(tmp_path):
    assert "2 log lines" in read_content(write(tmp_path, 'one\ntwo\n{"a": 1}\n', "x.log")).skipped[0]


def test_rows_of_a_list_that_are_no_objects_are_named(tmp_path):
    content = read_content(write(tmp_path, '[{"a": 1}, null, 3]'))
    assert [text.rpartition(", ")[2] for text in content.skipped] == [
        "row 2: is null; an object is needed",
        "row 3: is 3; an object is needed",
    ]


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("", "a.json", "the file is empty"),
        (" \n\n", "a.json", "the file is empty"),
        ('[{"a": 1}, {"a"', "a.json", "not valid JSON .*cut off"),
        ('{"a": 1, "a": 2}', "a.json", "field 'a' occurs twice"),
        ('[1]\n{"a": 1}\n', "a.json", "not valid JSON"),
        (b"\xff\xfe{", "a.json", r"not text in UTF-8 \(byte 0\)"),
        ("[" * 100_000, "a.json", "not valid JSON"),
        ("a,b\n1,2\n3\n", "a.csv", "line 3: 1 cells, but line 1 names 2"),
        ("a,b,a\n1,2,3\n", "a.csv", "column a occurs twice"),
        (",,\n,\n", "a.csv", "the file is empty"),
        ("a,b\n1,2", "a.csv", "line 2: the last line has no line end"),
        ('a,b\n1,"2\n', "a.csv", "not valid CSV"),
        ("a: 1\nb: 12", "a.yaml", "line 2: the last line has no line end"),
        ("a: [1\nb: 2\n", "a.yaml", "not valid YAML"),
    ],
)
def test_what_cannot_be_parsed_is_refused_with_its_place(tmp_path, text, name, says):
    with pytest.raises(UserError, match=f"{name}.*{says}"):
        read_content(write(tmp_path, text, name))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere.json"):
        with pytest.raises(UserError, match="cannot be read"):
            read_content(path)


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ('{"speed": 3}', "a.json", "no known format has the fields speed; a plain table has contender"),
        ("[]", "a.json", "without any result in it"),
        ("hello\n", "a.txt", "plain text, not a result file"),
        ("a,b\n1,2\n", "a.csv", "column contender, concurrency"),
    ],
)
def test_an_unknown_format_is_refused_with_what_was_seen(tmp_path, text, name, says):
    with pytest.raises(UserError, match=f"{name}.*{says}"):
        read_file(write(tmp_path, text, name))
