"""The command line as a user meets it: documents, one-line errors, and how little it imports."""

import json
import os
import subprocess
import sys

import pytest

from wholecurve import __version__

CLI = [sys.executable, "-c", "from wholecurve.cli import main; main()"]

CURVE = """contender,concurrency,decode_speed_tok_per_s,output_throughput_tok_per_s,gpus,repeat
{name},1,{s1},{t1},1,1
{name},2,{s2},{t2},1,1
{name},4,{s4},{t4},1,1
{name},8,{s8},{t8},1,1
"""


def curve(name, scale):
    speeds = {c: scale * 100 / (1 + c / 16) for c in (1, 2, 4, 8)}
    return CURVE.format(
        name=name, **{f"s{c}": s for c, s in speeds.items()}, **{f"t{c}": c * s for c, s in speeds.items()}
    )


@pytest.fixture
def files(tmp_path):
    for name, scale in (("a", 1.2), ("b", 1.0)):
        (tmp_path / f"{name}.csv").write_text(curve(name, scale))
    rows = curve("a", 1.2).splitlines()
    for path, name, hardware in (("a", "a", "H100"), ("h200", "b", "H200")):
        text = [f"{rows[0]},hardware", *(f"{row},{hardware}".replace("a,", f"{name},", 1) for row in rows[1:])]
        (tmp_path / f"{path}.csv").write_text("\n".join(text) + "\n")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "both.csv").write_text(curve("a", 1.2) + curve("b", 1.0).split("\n", 1)[1])
    return tmp_path


def run(*arguments, cwd=None, code=0):
    result = subprocess.run([*CLI, *arguments], capture_output=True, text=True, cwd=cwd, timeout=120)
    assert result.returncode == code, result.stderr
    return result


def test_compare_json_has_the_promised_keys(files):
    document = json.loads(run("compare", "a.csv", "b.csv", "--json", "--at-speed", "82", cwd=files).stdout)
    assert {"direct", "same_speed", "same_throughput", "summary", "warnings"} <= set(document)
    for key, value in (("direct", "ratio"), ("same_speed", "estimate"), ("same_throughput", "estimate")):
        for row in document[key]:
            assert {"load_a", "load_b", "speed", "throughput", value, "low", "high", "floor", "refused"} <= set(row)
    assert [row["ratio"] for row in document["direct"]] == pytest.approx([1.2] * 4)
    stated = document["same_speed"][-1]
    assert stated["stated"] and stated["estimate"] > 1.2
    assert any("n = 1" in warning for warning in document["warnings"])


def test_across_compares_all_the_same_and_says_in_what_they_differ(files):
    document = json.loads(run("compare", "a.csv", "h200.csv", "--across", "--json", cwd=files).stdout)
    assert any(
        w.startswith("conditions-differ: A (a) and B (b) differ in hardware (H100") for w in document["warnings"]
    )
    assert document["direct"][0]["ratio"] == pytest.approx(1.0)


def test_several_baselines_give_one_comparison_each(files):
    found = run("compare", "a.csv", "b.csv", "h200.csv", "--across", "--json", cwd=files).stdout
    document = json.loads(found)
    assert document["a"] == "a" and [one["b"] for one in document["comparisons"]] == ["b [b.csv]", "b [h200.csv]"]
    assert [one["direct"][0]["ratio"] for one in document["comparisons"]] == pytest.approx([1.2, 1.0])
    composite = document["best_baseline"]
    assert "a composite, no one baseline achieves all" in composite["label"]
    assert composite["rows"][0]["ratio"] == pytest.approx(1.0) and composite["rows"][0]["best"] == "b [h200.csv]"


def test_show_prints_canonical_metrics_and_exits_with_2_when_a_file_is_refused(files):
    text = run("show", "a.csv", "b.csv", cwd=files).stdout
    assert "speed tok/s/user" in text and "warning: single-run: a has a single run at every load" in text
    refused = run("show", "a.csv", "empty.json", "--json", cwd=files, code=2)
    assert json.loads(refused.stdout)["curves"][0]["contender"] == "a"
    assert refused.stderr == "wholecurve: empty.json: the file is empty; a result file is needed\n"


def test_a_frontier_is_labelled_and_takes_no_targets(files):
    (found,) = json.loads(run("compare", "both.csv", "b.csv", "--frontier", "--json", cwd=files).stdout)["frontiers"]
    assert "frontier of 2 configurations, not one engine's curve" in found["label"]
    assert found["a"]["configurations"] == ["a", "b"]
    # At b's slowest point a measured one of a is as fast and has a fifth more throughput.
    slowest = min(found["same_speed"], key=lambda row: row["speed"])
    assert slowest["floor"] == pytest.approx(1.2) and slowest["floor_configuration_a"] == "a"
    refused = run("compare", "both.csv", "b.csv", "--frontier", "--at-speed", "80", cwd=files, code=2)
    assert "it takes no targets and no control" in refused.stderr


def test_a_stated_concurrency_is_read_or_refused_but_never_interpolated(files):
    command = ("compare", "a.csv", "b.csv", "--at-concurrency", "4", "--at-concurrency", "3", "--json")
    four, three = json.loads(run(*command, cwd=files).stdout)["direct"][-2:]
    assert four["stated"] and four["ratio"] == pytest.approx(1.2) and not four["refused"]
    assert three["ratio"] is None and "was not measured at load 3" in three["refused"]


def test_costs_come_from_a_rate_and_are_absent_without_one(files):
    document = json.loads(run("cost", "a.csv", "b.csv", "--rate", "3.6", "--json", cwd=files).stdout)
    row = document["costs"][0]
    assert row["usd_per_million_tokens"] * row["throughput_tok_per_s"] == pytest.approx(3.6 / 3600 * 1e6)
    without = json.loads(run("cost", "a.csv", "--json", cwd=files).stdout)["costs"][0]
    assert without["usd_per_million_tokens"] is None and "no rate was given" in without["cost_missing"]
    assert "the rate is -1" in run("cost", "a.csv", "--rate", "-1", cwd=files, code=2).stderr


def test_the_audit_prints_one_document_and_refuses_a_file_that_is_none(files):
    document = json.loads(run("audit", "--json").stdout)
    assert {"id", "text", "source", "verdict", "arithmetic", "checks"} <= set(document["claims"][0])
    assert sum(document["counts"].values()) == len(document["claims"]) > 50
    assert "a.csv: " in run("audit", "a.csv", cwd=files, code=2).stderr
    assert "31% throughput edge" in run("audit").stdout


def test_compare_table_says_n_1_and_reasons(files):
    text = run("compare", "both.csv:a", "both.csv:b", cwd=files).stdout
    assert "n = 1, no interval" in text and "not extrapolated" in text and "same throughput" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "a.csv", "missing.csv"], "missing.csv: no such run folder or file"),
        (["compare", "both.csv", "b.csv"], "both.csv: has 2 contenders, name one: both.csv:a, both.csv:b"),
        (["compare", "both.csv:c", "b.csv"], "both.csv:c: no contender 'c'; there is: a, b"),
        (["compare", "a.csv", "b.csv", "--at-speed", "-3"], "target speed is -3"),
        (["compare", ".", "b.csv"], ".: has 2 contenders, name one: .:a, .:b"),
        (["compare", "a.csv", "a.csv"], "a.csv: is compared with itself"),
        (["compare", "a.csv", "b.csv", "--gpus-b", "8"], "b.csv: states its devices itself (1)"),
        (["compare", "a.csv", "b.csv", "--workload", "chat"], "a.csv: no workload 'chat'; there is: decode"),
        (["compare", "a.csv", "h200.csv"], "differ in hardware (H100 against H200)"),
        (["show", "empty.json"], "empty.json: the file is empty"),
        (["show", "nowhere"], "nowhere: no such run folder"),
        (["study", "nowhere.yaml"], "nowhere.yaml: no such plan file"),
        (["model", "fetch", "gpt-5"], "no embedded model 'gpt-5'"),
        (["generate", "hi", "--model", "no/such.gguf"], "no/such.gguf"),
        (["generate", "hi", "--max-tokens", "0"], "max_new_tokens is 0"),
        (["figures", "nowhere"], "nowhere: no such run folder"),
    ],
)
def test_user_errors_are_one_line(files, arguments, message):
    result = run(*arguments, cwd=files, code=2)
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("wholecurve: ")
    assert message in result.stderr
    assert result.stdout == ""


def test_unknown_options_and_version(files):
    assert run("--version").stdout == f"wholecurve {__version__}\n"
    assert "No such option" in run("compare", "a.csv", "b.csv", "--at-sped", "3", cwd=files, code=2).stderr


@pytest.mark.parametrize("arguments", [["generate", "hi"], ["model", "fetch"], ["study", "plan.yaml"]])
def test_without_the_engine_half_a_command_says_what_to_install(tmp_path, arguments):
    (tmp_path / "plan.yaml").write_text(
        "{name: p, model: m, contenders: [{name: a, engine: wholecurve}], prefill: {step_tokens: [8]}}"
    )
    check = (
        "import sys\nsys.modules |= {name: None for name in ('torch', 'gguf', 'safetensors', 'transformers')}\n"
        f"from wholecurve.cli import main\nsys.argv = ['wholecurve', *{arguments!r}]\nmain()"
    )
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and "pip install 'wholecurve[engine]'" in result.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "import wholecurve",
        "import wholecurve.curves",
        "import wholecurve.readers",
        "import wholecurve.runs",
        "import wholecurve.figures",
        "import wholecurve.figures.roofline",
        "import wholecurve.figures.published_figures",
        "import wholecurve.profiling.tables",
        "import wholecurve.profiling.devices",
        "import wholecurve.report",
        "import wholecurve.studies.plan",
        "import wholecurve.cli",
    ],
)
def test_analysis_never_pulls_torch(statement):
    check = (
        f"{statement}; import sys; print(sorted({{'torch', 'triton', 'transformers', 'openvino'}} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_compare_pulls_no_torch_either(files):
    check = (
        "import sys\nfrom wholecurve.cli import main\n"
        "sys.argv = ['wholecurve', 'compare', 'a.csv', 'b.csv']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'triton', 'transformers', 'matplotlib', 'scipy.interpolate'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=files, check=True)
    assert result.stderr.strip() == "[]"


def test_piped_output_is_not_folded_at_80_columns(files):
    environment = {**os.environ, "COLUMNS": "80"}
    result = subprocess.run(
        [*CLI, "compare", "a.csv", "b.csv"], capture_output=True, text=True, cwd=files, env=environment
    )
    assert any(len(line) > 100 for line in result.stdout.splitlines())


def test_profile_prints_one_json_document():
    pytest.importorskip("triton")
    result = run("profile", "rms_norm", "--case", "64x4096", "--target", "sm_90", "--target", "sm_100", "--json")
    document = json.loads(result.stdout)
    assert [row["target"] for row in document["rows"]] == ["sm_90", "sm_100"]
    for row in document["rows"]:
        assert row["kernel"] == "rms_norm" and row["case"] == "64x4096" and row["source"].startswith("static")
        assert row["registers"] > 0 and row["spill_bytes"] == 0 and row["shared_bytes"] >= 0
        assert row["bytes_min"] <= row["bytes_model"] and row["flops"] > 0 and row["bound_us"] > 0
        assert row["median_us"] is None and row["samples_us"] is None  # nothing ran


def test_profile_writes_csv(tmp_path):
    pytest.importorskip("triton")
    table = tmp_path / "rows.csv"
    result = run("profile", "rms_norm", "--case", "64x4096", "--target", "sm_90", "--out", str(table))
    assert result.stdout == "" and str(table) in result.stderr
    assert table.read_text().startswith("kernel,case,launch,form,source,target,")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name one kernel, or give --all"),
        (["rms_norm", "--all"], "name one kernel, or give --all"),
        (["--all", "--case", "64x4096"], "--case is a case of one kernel"),
        (["flash"], "there is no kernel 'flash'; there are rms_norm"),
        (["rms_norm", "--case", "tiny"], "rms_norm has no case 'tiny'; it has 1x4096"),
        (["rms_norm", "--target", "cuda"], "no target 'cuda'; there are sm_80"),
        (["rms_norm", "--device", "tpu"], "no device 'tpu' in data/devices; there are b200-sxm"),
    ],
)
def test_profile_refuses_in_one_line(arguments, message):
    pytest.importorskip("triton")
    result = run("profile", *arguments, code=2)
    assert message in result.stderr and result.stderr.count("\n") == 1 and result.stdout == ""


def test_measured_profiles_keep_samples_and_provenance_beside_the_table(tmp_path):
    pytest.importorskip("triton")
    table = tmp_path / "rows.csv"
    run("profile", "rms_norm", "--case", "1x4096", "--target", "cpu", "--threads", "1", "--out", str(table))
    beside = json.loads(table.with_suffix(".json").read_text())
    assert beside["provenance"]["hardware"]["cpu"] and beside["left_out"] == []
    assert {sample["form"] for sample in beside["samples"]} >= {"cpu", "eager"}
    assert all(sample["threads"] == 1 and len(sample["samples_us"]) > 3 for sample in beside["samples"])
