"""The file of rates: what is read, and every way in which a cell can be wrong."""

import math
from pathlib import Path

import pytest

from wholecurve.errors import UserError
from wholecurve.readers.rates import COLUMNS, read_rates

HEADER = ",".join(COLUMNS)
GOOD = "h200,neocloud,1.74,1.73,a price list,2026-04-03,"
SHIPPED = Path(__file__).parents[2] / "data" / "published" / "rates.csv"


def write(tmp_path, *lines, header=HEADER):
    path = tmp_path / "rates.csv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def test_rows_are_read_with_numbers_and_an_empty_one_is_missing_not_zero(tmp_path):
    frame = read_rates(write(tmp_path, GOOD, "b200,neocloud,,2.17,a price list,2026-04-03,no price yet", ""))
    assert list(frame.columns) == list(COLUMNS) and len(frame) == 2
    assert frame.loc[0, "usd_per_gpu_hour"] == 1.74 and frame.loc[0, "all_in_kw_per_gpu"] == 1.73
    assert math.isnan(frame.loc[1, "usd_per_gpu_hour"]) and frame.loc[1, "note"] == "no price yet"


def test_a_newer_rate_of_the_same_device_and_tier_stands_beside_the_older(tmp_path):
    frame = read_rates(write(tmp_path, GOOD, GOOD.replace("2026-04-03", "2026-09-04").replace("1.74", "2.50")))
    assert frame["usd_per_gpu_hour"].tolist() == [1.74, 2.50]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (GOOD.replace("1.74", "0"), "line 2: usd_per_gpu_hour is 0; .*free"),
        (GOOD.replace("1.74", "-1"), "usd_per_gpu_hour is -1; a finite number above 0"),
        (GOOD.replace("1.74", "nan"), "usd_per_gpu_hour is nan; a finite number above 0"),
        (GOOD.replace("1.74", "inf"), "usd_per_gpu_hour is inf; a finite number above 0"),
        (GOOD.replace("1.74", "$1.74"), "usd_per_gpu_hour is '\\$1.74'; a plain number"),
        (GOOD.replace("1.73", "0"), "all_in_kw_per_gpu is 0"),
        (GOOD.replace("1.73", "1730"), "all_in_kw_per_gpu is 1730; kilowatts"),
        (GOOD.replace("1.74,1.73", ","), "are both empty"),
        (GOOD.replace("h200", ""), "device is empty"),
        (GOOD.replace("h200", "NVIDIA H200"), "device is 'NVIDIA H200'; one word"),
        (GOOD.replace("neocloud", ""), "tier is empty"),
        (GOOD.replace("a price list", ""), "source is empty"),
        (GOOD.replace("2026-04-03", ""), "date is empty"),
        (GOOD.replace("2026-04-03", "2026-13-03"), "date is '2026-13-03'; a day written YYYY-MM-DD"),
        (GOOD.replace("2026-04-03", "20260403"), "date is '20260403'"),
        (GOOD.rpartition(",")[0], "6 cells for 7 columns"),
        (GOOD + '"x', "not valid CSV"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_file_and_line(tmp_path, line, message):
    with pytest.raises(UserError, match=message) as error:
        read_rates(write(tmp_path, line))
    assert "rates.csv, line 2" in str(error.value) and "\n" not in str(error.value)


def test_a_rate_given_twice_names_both_lines(tmp_path):
    with pytest.raises(UserError, match=r"line 4: device 'H200', tier 'neocloud', date 2026-04-03 .* given in line 2"):
        read_rates(write(tmp_path, GOOD, GOOD.replace("h200", "b200"), GOOD.replace("h200", "H200")))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.replace(",tier", ""), "column tier is missing"),
        (HEADER + ",price", "column price is unknown"),
        (HEADER.replace("note", "date"), "column note is missing"),
        (HEADER + ",note", "column note is given twice"),
    ],
)
def test_what_is_wrong_with_the_columns_is_said_by_name(tmp_path, header, message):
    with pytest.raises(UserError, match=message):
        read_rates(write(tmp_path, GOOD, header=header))


def test_a_file_that_is_none_is_said_in_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_rates(tmp_path / "nowhere.csv")
    (tmp_path / "empty.csv").write_text("\n")
    with pytest.raises(UserError, match="the file is empty"):
        read_rates(tmp_path / "empty.csv")
    with pytest.raises(UserError, match="only column names"):
        read_rates(write(tmp_path))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not text in UTF-8"):
        read_rates(tmp_path / "binary.csv")


def test_the_shipped_rates_hold_the_published_constants_and_the_later_paper_apart():
    frame = read_rates(SHIPPED).set_index(["device", "tier", "date"]).sort_index()
    assert frame.loc[("h100", "neocloud", "2026-04-03"), "usd_per_gpu_hour"] == 1.69
    assert frame.loc[("b300", "3-year rental", "2026-04-03"), "note"].startswith("temporary")
    rental = frame.xs(("mi355x", "3-year rental"))
    assert rental["usd_per_gpu_hour"].to_dict() == {"2026-04-03": 2.10, "2026-09-04": 3.00}
    assert rental["all_in_kw_per_gpu"].to_dict() == {"2026-04-03": 2.65, "2026-09-04": 2.09}
    assert frame["source"].str.contains("InferenceX").all()


def test_a_file_that_breaks_off_in_its_last_line_is_refused(tmp_path):
    whole = write(tmp_path, GOOD)
    text = whole.read_text()
    whole.write_text(text.rstrip("\n"))
    with pytest.raises(UserError, match="line 2: the last line has no line end"):
        read_rates(whole)
