"""Tables that are canonical already: read as they are, and every wrong cell refused by line and field."""

import pandas as pd
import pytest

from wholecurve.errors import UserError
from wholecurve.files import published_folder
from wholecurve.readers import read_file, read_source

COLUMNS = {
    "contender": "a",
    "workload": "1024 in / 1024 out",
    "load_kind": "concurrency",
    "load": "8",
    "repeat": "1",
    "devices": "4",
    "device_kind": "gpu",
    "source": "published",
    "decode_speed_tok_per_s": "50",
    "output_throughput_tok_per_s": "380",
    "e2e_p90_ms": "",
    "n_failed": "0",
    "cache_hit_rate": "0",
    "reference": "somewhere",
}


def table(tmp_path, **changes):
    cells = COLUMNS | changes
    path = tmp_path / "points.csv"
    path.write_text(",".join(cells) + "\n" + ",".join(cells.values()) + "\n")
    return path


def test_a_row_is_read_as_it_is_and_an_empty_cell_is_absent(tmp_path):
    found = read_file(table(tmp_path))
    (row,) = found.points.to_dict("records")
    assert found.format == "table of canonical points"
    assert (row["load"], row["devices"], row["decode_speed_tok_per_s"]) == (8, 4, 50)
    assert "e2e_p90_ms" not in row and row["reference"] == "somewhere"
    assert row["n_failed"] == 0 and row["cache_hit_rate"] == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"decode_speed_tok_per_s": "0"}, "decode_speed_tok_per_s is 0; a finite number above 0"),
        ({"output_throughput_tok_per_s": "nan"}, "output_throughput_tok_per_s is NaN"),
        ({"e2e_p90_ms": "-3"}, r"e2e_p90_ms is negative \(-3\)"),
        ({"devices": "2.5"}, "devices is 2.5; a whole number from 1 up"),
        ({"devices": ""}, "devices is missing"),
        ({"load": ""}, "load is missing"),
        ({"load_kind": "users"}, "load_kind is the text 'users'; one of concurrency"),
        ({"device_kind": "tpu"}, "device_kind is the text 'tpu'; one of gpu"),
        ({"source": ""}, "source is missing"),
        ({"cache_hit_rate": "inf"}, "cache_hit_rate is infinite"),
    ],
)
def test_a_wrong_cell_is_refused_by_line_and_field(tmp_path, change, says):
    with pytest.raises(UserError, match=rf"points.csv, line 2: {says}"):
        read_file(table(tmp_path, **change))


def test_the_published_points_are_read_and_make_curves():
    path = published_folder() / "inferencex_points.csv"
    found = read_file(path)
    assert len(found.points) == len(pd.read_csv(path)) and not found.notes.dropped
    source = read_source(f"{path}:MI300X FP8")
    assert source.curve("1024 in / 1024 out").points["load"].tolist() == [4, 8, 16, 32, 64]
