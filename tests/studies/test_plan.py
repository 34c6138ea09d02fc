"""A plan is validated as a whole, and an error names the file and the field."""

import pytest

from wholecurve.errors import UserError
from wholecurve.studies import plan as plan_module
from wholecurve.studies import plan_file
from wholecurve.studies.plan import read_plan


def broken(document, path, value):
    *parents, last = path
    target = document
    for part in parents:
        target = target[part]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["repeats"], 0, r"repeats: .*greater than or equal to 1"),
        (["repeats"], "many", r"repeats: .*integer"),
        (["model"], None, r"model: .*required"),
        (["contender"], [], r"contender: unknown field"),
        (["dtype"], "int4", r"dtype: .*'int4'"),
        (["name"], "Has Spaces", r"name: .*pattern"),
        (["contenders"], [], r"contenders: .*at least 1"),
        (["contenders", 0, "engine"], "sglang", r"contenders\.0\.engine: .*'sglang'"),
        (["contenders", 1, "name"], "ours", r"contenders: the name 'ours' is used twice"),
        (["contenders", 1, "name"], "Ours!", r"contenders: the name 'ours' is not distinct .* as a file name"),
        (["contenders", 1, "name"], "×", r"contenders: the name '×' is not distinct .* as a file name"),
        (["contenders", 1, "control_of"], "nobody", r"contenders: control_of 'nobody'"),
        (["contenders", 0, "control_of"], "ours", r"contenders: 'ours' cannot be its own control"),
        (["contenders", 0, "name"], "a:b", r"contenders\.0\.name: .*pattern"),
        (["decode", "concurrency"], [1, 2, 0], r"decode\.concurrency\.2: .*greater than or equal to 1"),
        (["decode", "concurrency"], [1, 2, 2], r"decode\.concurrency: a load level is listed twice"),
        (["decode", "requests_per_slot"], 1, r"decode\.requests_per_slot"),
        (["decode", "prompt_tokens"], [9, 5], r"decode\.prompt_tokens: the range \[9, 5\] runs backwards"),
        (["decode", "output_tokens"], [4], r"decode\.output_tokens"),
        (["prefill", "step_tokens"], [16, 16], r"prefill\.step_tokens: a load level is listed twice"),
        (["threads"], 0, r"threads: "),
    ],
)
def test_error_names_file_and_field(plan_document, write_plan, path, value, message):
    plan = write_plan(broken(plan_document, path, value))
    with pytest.raises(UserError, match=message) as caught:
        read_plan(plan)
    assert str(caught.value).startswith(f"{plan}: ")
    assert "\n" not in str(caught.value)


def test_plan_without_any_workload_is_refused(plan_document, write_plan):
    del plan_document["decode"], plan_document["prefill"]
    with pytest.raises(UserError, match="decode, prefill, batch: at least one"):
        read_plan(write_plan(plan_document))


@pytest.mark.parametrize(
    ("text", "message"), [("a: [1", "not a YAML file"), ("- 1", "holds list"), ("", "holds NoneType")]
)
def test_files_that_are_no_plan(tmp_path, text, message):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_plan(path)
    with pytest.raises(UserError, match="no such plan file"):
        read_plan(tmp_path / "missing.yaml")


def test_hash_follows_content_and_harness_version(plan_document, write_plan, monkeypatch):
    first = read_plan(write_plan(plan_document)).document()["plan_hash"]
    assert read_plan(write_plan(dict(reversed(plan_document.items())), "other.yaml")).document()["plan_hash"] == first
    plan_document["seed"] += 1
    assert read_plan(write_plan(plan_document, "third.yaml")).document()["plan_hash"] != first
    plan_document["seed"] -= 1
    monkeypatch.setattr(plan_module, "HARNESS_VERSION", plan_module.HARNESS_VERSION + 1)
    assert read_plan(write_plan(plan_document, "fourth.yaml")).document()["plan_hash"] != first


@pytest.mark.parametrize(
    ("features", "dtype"),
    [(["avx2"], "float32"), (["avx512f", "avx512_bf16"], "bfloat16"), (["amx_bf16"], "bfloat16"), ([], "float32")],
)
def test_auto_becomes_the_native_type_before_the_plan_is_hashed(
    plan_document, write_plan, monkeypatch, features, dtype
):
    monkeypatch.setattr(plan_file, "hardware", lambda: {"cpu_features": features})
    plan = read_plan(write_plan({**plan_document, "dtype": "auto"}))
    assert plan.dtype == dtype
    assert plan == read_plan(write_plan({**plan_document, "dtype": dtype}, "explicit.yaml"))


def test_budgets_cover_the_plan(plan_document, write_plan):
    plan = read_plan(write_plan(plan_document))
    assert plan.max_step_tokens == 32
    assert plan.max_concurrency == 4
    assert plan.cache_tokens >= 4 * (9 + 8)
