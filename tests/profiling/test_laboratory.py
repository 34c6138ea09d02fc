"""`check`, `predict`, `profile` and `compare` on the smallest kernel."""

import pytest
import torch

from wholecurve.errors import UserError
from wholecurve.kernels import load_subject
from wholecurve.kernels.launch import Launch
from wholecurve.profiling.laboratory import check, compare, predict, profile
from wholecurve.profiling.rows import COLUMNS, row
from wholecurve.profiling.static import static_rows

SUBJECT = load_subject("rms_norm")
CASES = SUBJECT.spec.TESTS[2:5]


def doubled(**arguments):
    return tuple(2 * output for output in SUBJECT.operation(**arguments, form="reference"))


def own_launches(**arguments):
    return SUBJECT.launches(arguments)


def test_check_has_a_row_per_case_and_form_with_the_count_beside_the_formula():
    found = check("rms_norm", cases=CASES)
    assert list(found["form"]) == SUBJECT.available_forms("cpu") * len(CASES)
    assert (found["gate"] == "ok").all() and (found["worst"] < 1).all()
    counted = found[found["form"] == "interpret"]
    assert (counted["loads"] == counted["loads by formula"]).all() and (counted["loads"] > 0).all()
    assert (counted["stores"] == counted["stores by formula"]).all()
    assert found.loc[found["form"] == "cpu", "loads"].isna().all()


def test_check_of_a_variant():
    wrong = check("rms_norm", doubled, cases=CASES[:1])
    assert list(wrong["form"]) == ["variant"] and "worst at" in wrong["gate"][0]
    launched = check("rms_norm", own_launches, cases=CASES[:1])
    assert launched["gate"][0] == "ok" and launched["loads"][0] == launched["loads by formula"][0]

    def broken(**arguments):
        raise RuntimeError("no such thing")

    assert check("rms_norm", broken, cases=CASES[:1])["gate"][0] == "RuntimeError: no such thing"


def test_predict_is_the_formula():
    found = predict("rms_norm", ["h200-sxm"], case="8192x4096").iloc[0]
    cost = SUBJECT.cost(SUBJECT.spec.BENCH["8192x4096"])
    assert (found["bytes_min"], found["bytes_model"], found["flops"]) == (cost.bytes_min, cost.bytes_model, cost.flops)
    assert found["bound, H200 SXM"] == f"{cost.bytes_min / 4.8e12 * 1e6:.3g} µs, memory"


def test_static_rows_have_resources_and_bounds_but_no_times():
    found = profile("rms_norm", "64x4096", targets=["sm_90", "sm_100", "sm_80"])
    assert list(found.columns) == list(COLUMNS) and list(found["target"]) == ["sm_90", "sm_100", "sm_80"]
    assert list(found["device"][:2]) == ["H200 SXM", "B200 SXM"] and found["device"].isna()[2]
    assert found["median_us"].isna().all() and (found["registers"] > 8).all()
    assert found["bound_us"][0] > found["bound_us"][1] and found["bound_us"].isna()[2]
    assert found["versions"].str.contains("triton .*, ptxas").all()


def test_measured_rows_are_of_checked_forms_on_named_threads():
    found = profile("rms_norm", "64x4096", targets="cpu", seconds=0.05)
    assert {"cpu", *SUBJECT.baselines} <= set(found["form"])
    assert (found["median_us"] > 0).all() and (found["p10_us"] <= found["p90_us"]).all()
    assert (found["threads"] == torch.get_num_threads()).all() and found["registers"].isna().all()
    assert all(len(samples) == count for samples, count in zip(found.attrs["samples_us"], found["n_samples"]))
    assert found["note"].isna().all()


def test_what_is_too_large_for_a_cpu_is_named():
    found = profile("rms_norm", "8192x7168", targets="cpu")
    assert found.empty and found.attrs["left_out"] == ["rms_norm 8192x7168: too large to check and time on a CPU"]


def test_compare_gives_no_numbers_of_a_wrong_variant():
    found = compare(
        "rms_norm", {"own": own_launches, "doubled": doubled}, "64x4096", targets=["sm_90", "cpu"], seconds=0.05
    )
    red = found[found["form"] == "doubled"]
    assert len(red) == 2 and red["note"].str.startswith("gate is red: ").all()
    assert red[["registers", "median_us", "bound_us"]].isna().all().all()
    static = found[found["target"] == "sm_90"].set_index("form")
    assert static.loc["own", "registers"] == static.loc["triton", "registers"]


def test_compare_sees_what_a_variant_costs():
    """The same kernel with an eighth of the warps takes more registers."""

    def one_warp(**arguments):
        launches, outputs = SUBJECT.launches(arguments)
        return [
            Launch(one.kernel, one.grid, one.arguments, one.options | {"num_warps": 1}) for one in launches
        ], outputs

    found = compare("rms_norm", {"one warp": one_warp}, "8192x4096", targets="sm_90").set_index("form")
    assert found.loc["one warp", "registers"] > found.loc["triton", "registers"]
    assert found.loc["one warp", "num_warps"] == 1


def test_a_compiled_row_is_the_launch():
    """The static profile compiles what a call with real tensors would: same key, with and without memory."""
    from wholecurve.profiling.compile import compile_launch

    case = {"num_tokens": 16, "hidden": 4096, "has_residual": True}
    meta, real = (SUBJECT.launches(SUBJECT.arguments(case, device))[0][0] for device in ("meta", "cpu"))
    assert compile_launch(meta, "sm_90").hash == compile_launch(real, "sm_90").hash
    assert static_rows(SUBJECT, "x", case, "sm_90")[0]["registers"] > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: profile("flash"), "there is no kernel 'flash'; there are rms_norm"),
        (lambda: check("flash"), "there is no kernel 'flash'"),
        (lambda: predict("rms_norm", case="tiny"), "rms_norm has no case 'tiny'; it has 1x4096"),
        (lambda: profile("rms_norm", "tiny"), "rms_norm has no case 'tiny'"),
        (lambda: profile("rms_norm", targets="cuda"), "no target 'cuda'; there are sm_80"),
        (lambda: compare("rms_norm", {}, targets="cuda"), "no target 'cuda'; there are sm_80"),
        (lambda: profile("rms_norm", device="tpu"), "no device 'tpu' in data/devices"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(call, message):
    with pytest.raises(UserError) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_target_is_refused():
    with pytest.raises(UserError, match="torch sees no CUDA device"):
        profile("rms_norm", targets="gpu")


def test_a_row_has_no_other_columns():
    with pytest.raises(ValueError, match="no column speed"):
        row(speed=3)
