"""What `wholecurve show` says about result files: numbers in canonical metrics, by load, and every word about them."""

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from wholecurve.files_report import curve_table, files_document, print_files
from wholecurve.readers import read_collection

VLLM = Path(__file__).parent / "data" / "readers" / "vllm"
HEADER = "contender,concurrency,decode_speed_tok_per_s,output_throughput_tok_per_s,gpus,repeat,n_completed,ttft_p90_s"
ROWS = "a,1,100,95,2,1,40,0.2\na,1,104,99,2,2,40,0.3\na,8,60,900,2,1,12,0.5\n"


@pytest.fixture
def collection(tmp_path):
    (tmp_path / "points.csv").write_text(f"{HEADER}\n{ROWS}")
    (tmp_path / "broken.json").write_text('{"a": ')
    return read_collection([tmp_path])


def shown(collection, width=200):
    text = io.StringIO()
    print_files(Console(file=text, width=width), collection)
    return text.getvalue()


def test_the_document_has_files_curves_warnings_and_refusals(collection):
    document = files_document(collection)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert [one["format"] for one in document["files"]] == ["plain table"]
    assert "broken.json" in document["refused"][0]
    (curve,) = document["curves"]
    assert [point["load"] for point in curve["points"]] == [1, 1, 8]
    assert curve["points"][0]["ttft_p90_ms"] == 200 and "e2e_p50_ms" not in curve["points"][0]
    gates = {warning.split(":")[0] for warning in curve["warnings"]}
    assert gates == {"single-run", "occupancy", "few-requests"}
    assert {"littles-law", "failures", "cached-tokens", "client-lag"} <= set(curve["not_checked"])


def test_the_table_has_medians_ranges_and_per_device_numbers(collection):
    (row, last) = curve_table(collection.points()[0]).to_dict("records")
    assert row["concurrency"] == "1" and row["n"] == "2"
    assert row["speed tok/s/user"] == "102 (100–104)"
    assert row["throughput tok/s/GPU"] == "48.5 (47.5–49.5)"
    assert row["TTFT p90 ms"] == "250 (200–300)"
    assert last["throughput tok/s/GPU"] == "450"
    assert not any("E2E" in column or "input" in column for column in row)


def test_the_middle_of_repeats_is_their_median_and_not_their_mean():
    frame = pd.DataFrame({"load": 1, "load_kind": "concurrency", "device_kind": "gpu", "devices": 1}, index=range(3))
    (row,) = curve_table(frame.assign(decode_speed_tok_per_s=[10.0, 11.0, 30.0])).to_dict("records")
    assert row["speed tok/s/user"] == "11 (10–30)"


def test_a_person_reads_the_same(collection):
    text = shown(collection)
    assert "102 (100–104)" in text and "warning: occupancy: a has occupancy" in text
    assert "not checked, the file lacks what it needs: " in text


def test_a_narrow_terminal_gets_more_tables_and_no_number_that_is_cut_off(collection):
    wide, narrow = shown(collection), shown(collection, width=60)
    cells = [cell.strip() for line in wide.splitlines() if line.startswith("│") for cell in line.split("│")]
    for cell in filter(None, cells):
        assert f" {cell} " in narrow
    assert narrow.count("┃ concurrency ┃") > wide.count("┃ concurrency ┃") and "…" not in narrow


def test_the_same_sentence_of_many_files_is_said_once_with_their_places(tmp_path):
    for i in range(5):
        (tmp_path / f"r{i}.json").write_text((VLLM / "serve_detailed.json").read_text())
    text = shown(read_collection([tmp_path]), width=2000)
    assert text.count("tpot_p99_ms: fewer than 300 completed requests") == 1
    assert "r2.json and 2 more)" in text


@pytest.mark.parametrize(
    ("value", "text"), [(123456.7, "123,457"), (0.0123456, "0.01235"), (99.996, "100"), (16.8, "16.8"), (0.0, "0")]
)
def test_digits_are_significant_ones(value, text):
    frame = pd.DataFrame(
        {"load": [1], "load_kind": "concurrency", "device_kind": "gpu", "devices": 1, "decode_speed_tok_per_s": value}
    )
    assert curve_table(frame)["speed tok/s/user"].tolist() == [text]


def test_points_without_a_decode_speed_are_shown_and_said_to_be_on_no_curve(tmp_path):
    from wholecurve.files_report import shown_curves

    frame = pd.DataFrame(
        {"contender": "a", "workload": "decode", "load_kind": "concurrency", "load": [1, 8], "repeat": 1, "devices": 1}
        | {"device_kind": "gpu", "output_throughput_tok_per_s": [95.0, 450.0], "decode_speed_tok_per_s": None}
    )
    (curve,) = shown_curves(frame)
    assert len(curve.points) == 2 and curve.warnings[0].startswith("no-curve: a: no point of a has a decode speed")
    (curve,) = shown_curves(frame.assign(decode_speed_tok_per_s=[100.0, None]))
    assert curve.warnings[0].startswith("incomplete-points: 1 points of a have no decode speed (load 8)")
