"""The committed table of compiled kernels: complete, without spills or with their reason, and still true."""

import os

import pandas as pd
import pytest

pytest.importorskip("triton")

from wholecurve.kernels import KERNELS, load_spec, load_subject
from wholecurve.profiling import recorded
from wholecurve.profiling.rows import triton_version
from wholecurve.profiling.static import static_rows

PRODUCTION = ("sm_90", "sm_100")
MATRIX = {"sm_90": "wgmma", "sm_100": "tcgen05"}
TABLE = {name: recorded.static_rows(name) for name in KERNELS}
EXACT = [
    "launch",
    "registers",
    "spill_bytes",
    "stack_bytes",
    "shared_bytes",
    "num_warps",
    "bytes_min",
    "bytes_model",
    "flops",
]


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_bench_case_stands_in_the_table(kernel):
    rows = TABLE[kernel]
    for target in recorded.STATIC_TARGETS:
        assert set(rows.loc[rows["target"] == target, "case"]) == set(load_spec(kernel).BENCH), target
    assert rows["versions"].str.contains("triton").all() or rows["note"].notna().any()


@pytest.mark.parametrize("kernel", KERNELS)
def test_production_cases_do_not_spill_or_the_row_says_why(kernel):
    rows = TABLE[kernel][TABLE[kernel]["target"].isin(PRODUCTION)]
    assert rows["registers"].gt(0).all()  # none was refused
    spilled = rows[rows["spill_bytes"].gt(0)]
    assert spilled["note"].notna().all(), spilled[["case", "launch", "target", "spill_bytes"]]


@pytest.mark.parametrize("kernel", ["prefill_attention", "grouped_gemm", "fp8_gemm"])
def test_products_of_production_cases_use_the_matrix_unit_of_the_target(kernel):
    rows, cases = TABLE[kernel], load_spec(kernel).BENCH
    for target, family in MATRIX.items():
        used = rows[(rows["target"] == target) & rows["matrix"].fillna("").str.contains(family)]
        assert len(set(used["case"])) >= max(2, len(cases) // 2), f"{family} in {sorted(set(used['case']))}"


@pytest.mark.parametrize("target", PRODUCTION)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_table_is_what_the_compiler_says_now(kernel, target):
    """The first bench case of each kernel; WHOLECURVE_ALL_CASES=1 compiles all of them."""
    rows = TABLE[kernel][TABLE[kernel]["target"] == target]
    if not rows["versions"].str.startswith(triton_version()).all():
        pytest.skip(f"the table is of {rows['versions'].iloc[0]}, here is {triton_version()}")
    subject = load_subject(kernel)
    names = list(subject.spec.BENCH) if os.environ.get("WHOLECURVE_ALL_CASES") == "1" else list(subject.spec.BENCH)[:1]
    for name in names:
        made = pd.DataFrame(static_rows(subject, name, subject.spec.BENCH[name], target))
        stored = rows[rows["case"] == name]
        assert made[EXACT].astype(str).values.tolist() == stored[EXACT].astype(str).values.tolist(), "run `make static`"
