"""The tables that notebooks show, from committed rows and from formulas."""

import pandas as pd
import pytest

from wholecurve.errors import UserError
from wholecurve.profiling import recorded, tables
from wholecurve.profiling.rows import COLUMNS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """`data/kernels` of this test."""
    monkeypatch.setattr(recorded, "data_folder", lambda name: tmp_path)
    monkeypatch.delenv("MEASURE", raising=False)
    return tmp_path


def write(path, *rows):
    path.parent.mkdir(exist_ok=True)
    pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(path, index=False)


def timed(form, us, **fields):
    times = dict(
        median_us=us,
        p10_us=us and 0.9 * us,
        p90_us=us and 1.1 * us,
        bound_us=1.0,
        cache="warm",
        threads=2,
        device="a CPU",
    )
    return dict(kernel="toy", case="small", form=form, source="measured (cpu)") | times | fields


def test_times_are_set_against_the_unfused_form(folder):
    write(folder / "cpu.csv", timed("cpu", 10.0), timed("eager", 25.0), timed("cpu", 3.0, kernel="other"))
    found = tables.cpu_table("toy")
    assert list(found["form"]) == ["cpu", "eager"] and list(found["× eager"]) == ["2.50", "1.00"]
    assert list(found["median µs"]) == ["10.0", "25.0"] and found["p10–p90 µs"][0] == "9.0–11.0"


def test_a_form_without_a_time_is_absent(folder):
    write(folder / "cpu.csv", timed("cpu", 10.0), timed("eager", None, note="worst at (3, 7)"))
    found = tables.cpu_table("toy")
    assert list(found["form"]) == ["cpu"] and found["× eager"][0] == "–"


def test_ratios_are_within_one_number_of_threads(folder):
    rows = [timed(form, us, threads=count) for count, form, us in
            [(1, "cpu", 10.0), (1, "eager", 30.0), (2, "cpu", 5.0), (2, "eager", 10.0)]]  # fmt: skip
    write(folder / "cpu.csv", *rows)
    assert list(tables.cpu_table("toy")["× eager"]) == ["3.00", "1.00", "2.00", "1.00"]


def test_a_kernel_that_no_cpu_timed_says_so(folder):
    write(folder / "cpu.csv", timed("cpu", 10.0))
    assert tables.cpu_table("other")["recorded"][0] == "other was not timed on a CPU"


def test_gpu_rows_of_all_days_or_a_row_that_says_there_are_none(folder):
    assert "no GPU has run toy yet" in tables.gpu_table("toy")["recorded"][0]
    write(folder / "day-1" / "rows.csv", timed("triton", 4.0, source="measured (gpu)", threads=None))
    assert list(tables.gpu_table("toy")["threads"]) == ["–"]
    assert list(recorded.gpu_rows("toy")["recorded"]) == ["day-1"]


def test_a_missing_or_foreign_file_is_named(folder):
    with pytest.raises(UserError, match=r"static\.csv: missing"):
        recorded.static_rows("toy")
    (folder / "static.csv").write_text("kernel,case\ntoy,small\n")
    with pytest.raises(UserError, match=r"static\.csv: lacks the columns launch, form"):
        recorded.static_rows("toy")


def test_the_static_table_has_units(folder):
    row = dict(kernel="toy", case="small", launch="toy_kernel", target="sm_90", registers=40, spill_bytes=0)
    write(folder / "static.csv", row | dict(shared_bytes=2048, occupancy=0.5), row | dict(target="sm_80"))
    found = tables.static_table("toy").iloc[0]
    assert (found["shared KiB"], found["occupancy"], found["matrix"], found["registers"]) == ("2.0", "50%", "–", 40)
    assert len(tables.static_table("toy")) == 1


def test_predictions_gates_and_counts_of_a_real_kernel():
    pytest.importorskip("triton")
    found = tables.prediction_table("rms_norm", ["h200-sxm"]).set_index("case")
    assert found.loc["8192x4096", "compulsory"] == "268 MB"
    assert found.loc["8192x4096", "at least, H200 SXM"] == "55.9 µs (memory)"
    gates = tables.gate_table("rms_norm")
    assert (gates["verdict"] == "all right").all() and (gates["cases"] == gates["passed"]).all()
    counts = tables.count_table("rms_norm", cases=2)
    assert list(counts["equal"]) == ["yes", "yes"] and (counts["loads"] == counts["loads by formula"]).all()


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0 "), (999, "999 "), (1000, "1 k"), (4.2e9, "4.2 G"), (2e13, "20 T")]
)
def test_amounts_have_decimal_prefixes(amount, text):
    assert tables.scaled(amount) == text
