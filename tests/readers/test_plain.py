"""The plain table: what it takes, and that every refusal names file, line and field."""

import sys
import types

import pandas as pd
import pytest

from wholecurve.curves import Curve, compare
from wholecurve.errors import UserError
from wholecurve.readers import read_plain

HEADER = "contender,concurrency,decode_speed_tok_per_s,output_throughput_tok_per_s,gpus,repeat"
CELLS = {
    "contender": "vllm",
    "concurrency": "8",
    "decode_speed_tok_per_s": "60",
    "output_throughput_tok_per_s": "450",
    "gpus": "2",
    "repeat": "1",
}
GOOD = "vllm,1,100,95,2,1\nvllm,8,60,450,2,1\nmine,1,120,110,2,1\nmine,8,80,600,2,1\n"


def write(tmp_path, text, name="points.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_plain_file_becomes_the_frame_of_points(tmp_path):
    rows = read_plain(write(tmp_path, f"{HEADER}\n{GOOD}"))
    assert rows.iloc[1].to_dict() == {
        "contender": "vllm",
        "workload": "decode",
        "load_kind": "concurrency",
        "load": 8,
        "repeat": 1,
        "devices": 2,
        "device_kind": "gpu",
        "source": "measured (gpu)",
        "decode_speed_tok_per_s": 60.0,
        "output_throughput_tok_per_s": 450.0,
        "window": "full",
    }
    found = compare(Curve.from_points(rows, "mine"), Curve.from_points(rows, "vllm"))
    assert found.direct["ratio"].tolist() == pytest.approx([110 / 95, 600 / 450])
    assert found.direct["throughput"].tolist() == pytest.approx([95 / 2, 450 / 2])


def test_repeat_may_be_absent_and_no_gpus_means_a_cpu_machine(tmp_path):
    text = "contender,concurrency,decode_speed_tok_per_s,output_throughput_tok_per_s,gpus\nmine,4,10,35,\n"
    (row,) = read_plain(write(tmp_path, text)).itertuples()
    assert (row.repeat, row.devices, row.device_kind, row.source) == (1, 1, "cpu", "measured (cpu)")


def test_workload_is_kept_and_tells_points_apart(tmp_path):
    rows = read_plain(write(tmp_path, f"{HEADER},workload\na,1,10,9,1,1,chat\na,1,12,11,1,1,code\na,1,8,7,1,1,\n"))
    assert rows["workload"].tolist() == ["chat", "code", "decode"]


def test_latencies_come_out_in_ms(tmp_path):
    rows = read_plain(
        write(tmp_path, f"{HEADER},ttft_p50_s,ttft_p90_ms,tpot_p50_s,e2e_p99_ms\na,1,50,45,1,1,0.31,820,0.02,\n")
    )
    assert rows[["ttft_p50_ms", "ttft_p90_ms", "tpot_p50_ms"]].iloc[0].tolist() == pytest.approx([310, 820, 20])
    assert rows["e2e_p99_ms"].isna().all()
    assert not any(column.endswith("_s") and "tok_per" not in column for column in rows)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + f"{HEADER}\n{GOOD}",
        f"{HEADER}\n\n{GOOD}".replace("\n", "\r\n"),
        f"{HEADER}\n{GOOD}".replace(",", " , "),
    ],
    ids=["byte order mark", "blank line and CRLF", "spaces"],
)
def test_harmless_variations_are_read(tmp_path, text):
    assert read_plain(write(tmp_path, text)).equals(read_plain(write(tmp_path, f"{HEADER}\n{GOOD}", "plain.csv")))


@pytest.mark.parametrize("field", HEADER.split(",")[1:])
@pytest.mark.parametrize("cell", ["0", "-4", "nan", "inf", "-Infinity", "OOM", "1_000", '"1,000"', "1e999", "12 ms"])
def test_a_cell_that_is_no_number_above_zero_is_refused(tmp_path, field, cell):
    line = ",".join((CELLS | {field: cell}).values())
    path = write(tmp_path, f"{HEADER}\nvllm,1,100,95,2,1\n\n{line}\n")
    with pytest.raises(UserError, match=f"points.csv, line 4: {field} is "):
        read_plain(path)


@pytest.mark.parametrize("field", ["concurrency", "decode_speed_tok_per_s", "output_throughput_tok_per_s", "repeat"])
def test_an_empty_cell_is_refused_except_for_gpus(tmp_path, field):
    with pytest.raises(UserError, match=f"line 2: {field} is ''"):
        read_plain(write(tmp_path, f"{HEADER}\n{','.join((CELLS | {field: ''}).values())}\n"))


@pytest.mark.parametrize("field", ["concurrency", "gpus", "repeat"])
def test_counts_are_whole(tmp_path, field):
    with pytest.raises(UserError, match=f"line 2: {field} is 1.5; a whole number"):
        read_plain(write(tmp_path, f"{HEADER}\n{','.join((CELLS | {field: '1.5'}).values())}\n"))


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        (f"{HEADER}\n", "only column names, no rows"),
        (f"{HEADER}\n{GOOD}mine,16,70,8", "line 6: 4 cells, but line 1 names 6"),
        (f"{HEADER}\nvllm,1,100,95,2,1,9\n", "line 2: 7 cells, but line 1 names 6"),
        (f'{HEADER}\n{GOOD}"mine,16', "line 6: not valid CSV"),
        (f"{HEADER}\n,1,100,95,2,1\n", "line 2: contender is empty"),
        (b"\x93NUMPY\x01\x00\xff", "not text in UTF-8"),
        (
            f"{HEADER}\n{GOOD}mine,8,81,610,2,1\n",
            "line 6: contender 'mine', workload 'decode', concurrency 8, repeat 1 was already .* in line 5",
        ),
        (
            "contender,concurrency,gpus\n",
            "column decode_speed_tok_per_s, output_throughput_tok_per_s is missing",
        ),
        (
            "conc,median_ttft,median_tpot,output_throughput\n4,0.26,0.0214,164.7\n",
            "column contender, concurrency",
        ),
        (f"{HEADER}\n{GOOD}".rstrip(), "line 5: the last line has no line end"),
        (f"{HEADER},repeat\n", "column repeat occurs twice"),
        (f"{HEADER},ttft_p50\n", "column ttft_p50 is unknown; .*unit in the name"),
        (f"{HEADER},repeats\n", "column repeats is unknown"),
        (f"{HEADER},ttft_p50_s,ttft_p50_ms\n", "given in ms and in s at once"),
        (
            f"{HEADER},tpot_p50_ms\nvllm,8,50,380,1,1,0.02\n",
            "line 2: a median TPOT of 0.02 ms means 5e\\+04 tok/s/user, but decode_speed_tok_per_s is 50",
        ),
        (f"{HEADER},tpot_p50_s\nvllm,8,50,380,1,1,20\n", "line 2: a median TPOT of 20000 ms means 0.05"),
        (f"{HEADER},ttft_p90_ms\nvllm,8,50,380,1,1,0\n", "line 2: ttft_p90_ms is 0"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_file_and_place(tmp_path, text, says):
    with pytest.raises(UserError, match=f"points.csv.*{says}"):
        read_plain(write(tmp_path, text))


def test_line_numbers_count_the_lines_of_a_quoted_cell(tmp_path):
    with pytest.raises(UserError, match="line 4: concurrency is 0"):
        read_plain(write(tmp_path, f'{HEADER}\n"a\nb",1,100,95,2,1\na,0,1,1,1,1\n'))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"gone\.csv: cannot be read \(No such file"):
        read_plain(tmp_path / "gone.csv")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"points\.parquet: reading Parquet needs pyarrow"):
        read_plain(write(tmp_path, b"", "points.parquet"))


def fake_pyarrow(monkeypatch, rows):
    """Stands in for pyarrow, so that the path from a table to points is run without it."""
    table = types.SimpleNamespace(column_names=list(rows[0]), to_pylist=lambda: rows)
    parquet = types.SimpleNamespace(read_table=lambda path: table)
    package = types.SimpleNamespace(parquet=parquet, ArrowException=ArithmeticError)
    monkeypatch.setitem(sys.modules, "pyarrow", package)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)


def test_parquet_rows_go_the_same_way_as_lines(tmp_path, monkeypatch):
    row = {
        "contender": "a",
        "concurrency": 8,
        "decode_speed_tok_per_s": 60.5,
        "output_throughput_tok_per_s": 450.0,
        "gpus": None,
        "repeat": 1,
    }
    fake_pyarrow(monkeypatch, [row, row | {"repeat": 2}])
    read = read_plain(tmp_path / "points.parquet")
    assert read["decode_speed_tok_per_s"].tolist() == [60.5] * 2 and set(read["device_kind"]) == {"cpu"}
    fake_pyarrow(monkeypatch, [row, row | {"concurrency": float("nan"), "repeat": 2}])
    with pytest.raises(UserError, match=r"points\.parquet, row 2: concurrency is nan"):
        read_plain(tmp_path / "points.parquet")


def test_a_real_parquet_file_is_read(tmp_path):
    pytest.importorskip("pyarrow")
    rows = read_plain(write(tmp_path, f"{HEADER}\n{GOOD}"))
    path = tmp_path / "points.parquet"
    pd.DataFrame([line.split(",") for line in GOOD.split()], columns=HEADER.split(",")).to_parquet(path)
    assert read_plain(path).equals(rows)
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        read_plain(write(tmp_path, b"PAR1", "broken.parquet"))


def test_conditions_counts_and_power_are_kept_and_zero_failures_are_not_missing(tmp_path):
    columns = f"{HEADER},model,precision,hardware,n_completed,n_failed,power_w_per_device"
    rows = read_plain(write(tmp_path, f"{columns}\na,1,10,9,1,1,m,bf16,H100,40,0,700\na,2,10,18,1,1,m,,H100,,,\n"))
    assert rows.loc[0, ["model", "precision", "hardware"]].tolist() == ["m", "bf16", "H100"]
    assert rows.loc[0, ["n_completed", "n_failed", "power_w_per_device"]].tolist() == [40, 0, 700]
    assert rows.loc[1, ["precision", "n_completed", "n_failed", "power_w_per_device"]].isna().all()


@pytest.mark.parametrize(("column", "cell"), [("n_failed", "-1"), ("n_completed", "2.5"), ("power_w_per_device", "0")])
def test_counts_and_power_that_make_no_sense_are_refused(tmp_path, column, cell):
    with pytest.raises(UserError, match=f"line 2: {column} is {cell}"):
        read_plain(write(tmp_path, f"{HEADER},{column}\na,1,10,9,1,1,{cell}\n"))
