"""A step taken apart: formulas that add up, cells that are checked, bounds that say when they are passed, records."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from wholecurve.cli import steps as _commands  # noqa: F401  registers them
from wholecurve.cli.app import app
from wholecurve.errors import UserError
from wholecurve.models.bounds import Ceilings
from wholecurve.models.config import ModelConfig
from wholecurve.models.native import llama as native
from wholecurve.models.native import unsupported
from wholecurve.studies.steps import part_ceilings, parts
from wholecurve.studies.steps.comparison import compare_steps
from wholecurve.studies.steps.context import WrongCache
from wholecurve.studies.steps.dummy import dummy_config
from wholecurve.studies.steps.model import DummySource
from wholecurve.studies.steps.part_work import PARTS, WORKING, decode_part_work, prefill_part_work, turning_rows
from wholecurve.studies.steps.parts import Load, PartsOptions, PartsStudy, loads_of, parts_study
from wholecurve.studies.steps.parts_cell import measure_forms
from wholecurve.studies.steps.parts_record import COLUMNS, PartsRecord, open_parts, rows_of_cell
from wholecurve.studies.steps.record import StepRecord
from wholecurve.studies.steps.work import decode_work, prefill_work

RECORDED = Path(__file__).parents[2] / "data" / "steps" / "parts"
CONFIGS = [dummy_config(name) for name in ("tiny", "smollm2-135m", "llama-8b")]
TINY = dict(concurrency=(1, 3), tokens=(100,), context=40, threads=(1,), samples=3, seconds=0.01, ceilings=False)
needs_native = pytest.mark.skipif(
    unsupported(CONFIGS[0], torch.bfloat16) is not None, reason="no native form here: it takes a C++ compiler"
)


def source(dtype=torch.bfloat16):
    return DummySource("tiny", dtype, 0)


def study(out=None, say=lambda _: None, **options):
    return parts_study(source(), PartsOptions(**TINY | options), out, say)


# ---- formulas ----


def totals(work):
    return sum(one.read_bytes for one in work.values()), sum(one.flops for one in work.values())


@pytest.mark.parametrize("config", CONFIGS, ids=["tiny", "135m", "8b"])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_parts_of_a_decode_step_add_up_to_the_models_formulas(config, itemsize):
    for requests, context in ((1, 0), (3, 40), (64, 160)):
        work = decode_part_work(config, itemsize, requests, context)
        read, flops = totals(work)
        weights = config.weight_bytes_per_step(itemsize)
        assert read == weights + requests * context * config.kv_bytes_per_token(itemsize)
        assert flops == config.decode_flops(requests, context + 1)
        whole = decode_work(config, itemsize, requests, context, drafts=0)
        assert (read, flops) == (whole.read_bytes, whole.flops)
        assert tuple(work) == PARTS and [part for part in work if work[part].flops] == list(WORKING)


@pytest.mark.parametrize("config", CONFIGS, ids=["tiny", "135m", "8b"])
def test_parts_of_a_prefill_add_up_to_the_models_formulas_where_all_rows_go_through_the_last_layer(config):
    for tokens in (1, 7, 2048):
        read, flops = totals(prefill_part_work(config, 2, tokens, last_layer_rows=None))
        assert read == config.weight_bytes_per_step(2) and flops == config.prefill_flops(tokens)
        whole = prefill_work(config, 2, [tokens], 0)
        assert (read, flops) == (whole.read_bytes, whole.flops)


@pytest.mark.parametrize("config", CONFIGS, ids=["tiny", "135m", "8b"])
def test_the_last_layer_of_a_prefill_counts_one_row_after_its_keys_and_values(config):
    """What is left out: output, gate, up and down of the other tokens in one layer, and their attention there."""
    tokens = 100
    full, least = (prefill_part_work(config, 2, tokens, rows) for rows in (None, 1))
    wide = config.num_heads * config.head_dim
    matrices = wide * config.hidden_size + 3 * config.hidden_size * config.intermediate_size
    pairs = sum(range(1, tokens))
    assert totals(full)[1] - totals(least)[1] == 2 * (tokens - 1) * matrices + 4 * wide * pairs
    assert totals(full)[0] == totals(least)[0] and full["qkv"] == least["qkv"] and full["head"] == least["head"]
    assert full == prefill_part_work(config, 2, tokens, tokens)


def test_the_work_of_each_part_by_hand():
    """2 layers, hidden 10, 4 heads of size 6 on 2 key-value heads, intermediate 30, vocabulary 50; 2-byte weights."""
    config = ModelConfig(50, 10, 30, 2, 4, 2, 6, 1e-5, 1e4, 512, True)
    work = decode_part_work(config, 2, requests=3, context=7)
    by_hand = {
        "embedding": (0, 0),
        "norm": (2 * 10 * 5, 0),
        "qkv": (2 * 2 * 10 * 48, 2 * 3 * 2 * 10 * 48),
        "attention": (2 * 3 * 7 * 2 * 2 * 12, 3 * 2 * 8 * 4 * (2 * 6 + 2 * 6)),
        "output": (2 * 2 * 24 * 10, 2 * 3 * 2 * 24 * 10),
        "gate_up": (2 * 2 * 10 * 60, 2 * 3 * 2 * 10 * 60),
        "down": (2 * 2 * 30 * 10, 2 * 3 * 2 * 30 * 10),
        "head": (2 * 50 * 10, 2 * 3 * 50 * 10),
        "waiting": (0, 0),
    }
    assert {part: (one.read_bytes, one.flops) for part, one in work.items()} == by_hand
    prefill = prefill_part_work(config, 2, 5)
    assert prefill["attention"].flops == (15 + 5) * 4 * 24 and prefill["head"].flops == 2 * 50 * 10
    assert prefill["down"].flops == 2 * (5 + 1) * 300 and prefill["qkv"].flops == 2 * (5 + 5) * 480
    assert prefill["attention"].read_bytes == 0


def test_products_turn_where_their_bytes_take_as_long_as_their_flops():
    rows = turning_rows(2, read_bytes_per_s=1e9, gemm_flops_per_s=64e9)
    assert rows == 64
    elements = 1000
    assert 2 * elements / 1e9 == pytest.approx(2 * rows * elements / 64e9)
    assert turning_rows(4, 1e9, 64e9) == 128


def test_names_are_those_of_the_native_timers():
    assert PARTS == native.PARTS


# ---- a cell as rows ----


def cell(**changes):
    work = {part: [0, 0.0] for part in PARTS} | {"qkv": [1000, 1.0], "down": [10, 4000.0], "norm": [100, 0.0]}
    times = dict.fromkeys(PARTS, [[0.0, 0.0]] * 3) | {
        "qkv": [[1.0, 3.0], [2.0, 4.0], [0.0, 2.0]],  # means of the threads: 2, 3, 1
        "down": [[8.0, 8.0]] * 3,
        "norm": [[1.0, 1.0]] * 3,
        "waiting": [[0.0, 1.0]] * 3,
    }
    base = dict(kind="decode", model="m", source="measured (cpu)", device="d", dtype="bfloat16", threads=2)
    base |= dict(requests=1, new_tokens=1, cached_tokens=40, step_median_ms=11.0)
    steps = {"native": [11.0, 12.0, 10.0], "native with timers": [12.0, 13.0, 11.0], "torch": [44.0, 22.0, 33.0]}
    return base | dict(steps_ms=steps, parts_ms=times, work=work) | changes


def by_part(rows):
    return {(row["form"], row["part"]): row for row in rows}


def test_a_parts_time_is_the_median_of_the_means_of_the_threads():
    found = by_part(rows_of_cell(cell(), None))
    assert found["native", "qkv"]["median_ms"] == 2 and found["native", "waiting"]["median_ms"] == 0.5
    assert found["native", "qkv"]["p10_ms"] == pytest.approx(1.2) and found["native", "qkv"]["p90_ms"] == 2.8
    assert found["native", "outside"]["median_ms"] == pytest.approx(
        0.5
    )  # 12 − (2 + 8 + 1 + 0.5), the same in each sample
    assert found["native", "step"]["median_ms"] == 11 and found["torch", "step"]["median_ms"] == 33
    assert found["native with timers", "step"]["median_ms"] == 12
    assert all(row["bound_ms"] is None and row["note"] is None for row in found.values())
    assert all(set(row) == set(COLUMNS) and row["n_samples"] == 3 for row in found.values())


def test_the_bound_of_a_step_is_the_sum_of_those_of_its_parts():
    found = by_part(rows_of_cell(cell(), Ceilings(read_bytes_per_s=1e6, gemm_flops_per_s=1e6)))
    assert found["native", "qkv"]["bound_ms"] == pytest.approx(1.0)  # 1,000 bytes
    assert found["native", "qkv"]["bound_by"].startswith("memory")
    assert found["native", "down"]["bound_ms"] == pytest.approx(4.0)  # 4,000 FLOPs
    assert found["native", "down"]["bound_by"].startswith("compute")
    for form, median in (("native", 11), ("torch", 33)):
        step = found[form, "step"]
        assert step["bound_ms"] == pytest.approx(1.0 + 4.0 + 0.1) and step["attained"] == pytest.approx(5.1 / median)
        assert (step["read_bytes"], step["flops"]) == (1110, 4001.0)
    assert found["native", "waiting"]["bound_ms"] is None and found["native", "embedding"]["attained"] is None


def test_more_than_a_ceiling_is_said():
    slow = by_part(rows_of_cell(cell(), Ceilings(read_bytes_per_s=1e6, gemm_flops_per_s=4.5e5)))
    assert slow["native", "down"]["note"] == "error: 111% of the measured compute ceiling"
    assert slow["native", "qkv"]["note"] is None and slow["native", "step"]["note"] is None
    slower = by_part(rows_of_cell(cell(), Ceilings(read_bytes_per_s=1e5, gemm_flops_per_s=4e5)))
    assert slower["native", "step"]["note"] == "error: 191% of the bounds of the parts together"
    assert slower["torch", "step"]["note"] is None


def test_a_cell_without_a_number_is_one_row_that_says_why():
    (row,) = rows_of_cell(cell(note="no number: it leaks", step_median_ms=None), None)
    assert row["note"] == "no number: it leaks" and "median_ms" not in row


def test_a_ceiling_is_the_best_of_all_kinds_before_and_after():
    def measured(threads, read, gemm):
        return {"threads": threads, "read_bytes_per_s": read, "gemm_flops_per_s": gemm}

    record = PartsRecord()
    record.write(
        "ceilings",
        {
            "before": [measured(1, {"a": 5.0, "b": 6.0}, {"c": 70.0, "d": 60.0}), measured(2, {"a": 9.0}, {"c": 1.0})],
            "after": [measured(1, {"a": 7.0, "b": 1.0}, {"c": 50.0, "d": 65.0})],
        },
    )
    assert record.best_ceilings() == {1: Ceilings(7.0, 70.0), 2: Ceilings(9.0, 1.0)}
    kinds = {(row["threads"], row["unit"], row["kind"], row["when"]) for row in record.ceiling_rows()}
    assert (1, "byte/s", "b", "after") in kinds and len(kinds) == 10


# ---- the study ----


def test_every_load_is_measured_on_every_number_of_threads():
    loads = loads_of(PartsOptions(concurrency=(4, 1, 4), tokens=(128,), threads=(2, 1)))
    assert [load.name for load in loads] == [
        *("decode-00001-t1", "decode-00004-t1", "prefill-00128-t1"),
        *("decode-00001-t2", "decode-00004-t2", "prefill-00128-t2"),
    ]
    assert min(load.threads for load in loads_of(PartsOptions())) == 1


@needs_native
def test_a_record_has_raw_samples_of_both_forms_and_of_every_part_on_every_thread(tmp_path):
    record = study(tmp_path / "a", threads=(1, 2), concurrency=(3,), samples=4, seconds=60)
    cells = record.rows()
    assert [(one["kind"], one["threads"], one["new_tokens"]) for one in cells] == [
        ("decode", 1, 3), ("decode", 2, 3), ("prefill", 1, 100), ("prefill", 2, 100),
    ]  # fmt: skip
    for one in cells:
        assert {form: len(samples) for form, samples in one["steps_ms"].items()} == {
            "native": 4, "native with timers": 4, "torch": 4,
        }  # fmt: skip
        assert set(one["parts_ms"]) == set(PARTS)
        assert all(len(sample) == one["threads"] for samples in one["parts_ms"].values() for sample in samples)
        for part in WORKING:
            assert all(sum(sample) > 0 for sample in one["parts_ms"][part]), part
        for index, whole in enumerate(one["steps_ms"]["native with timers"]):
            for thread in range(one["threads"]):
                assert sum(one["parts_ms"][part][index][thread] for part in PARTS) < whole
    assert cells[0]["cached_tokens"] == 40 and cells[2]["cached_tokens"] == 0
    assert cells[0]["model"] == "tiny (random weights)" and cells[0]["source"] == "measured (cpu)"
    with (tmp_path / "a" / "rows.csv").open() as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == list(COLUMNS) and len(table) == 4 * (len(PARTS) + 4)
    assert record.frame().equals(PartsRecord.open(tmp_path / "a").frame())
    json.dumps(record.document(), allow_nan=False)


@needs_native
def test_the_same_command_goes_on_where_it_was_killed(tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr(parts, "measure_part_ceilings", lambda _, threads: counted.append(threads) or ceilings(threads))
    study(tmp_path / "a", concurrency=(1,), ceilings=True)
    before = {path.name: path.read_bytes() for path in (tmp_path / "a" / "cells").iterdir()}
    record = study(tmp_path / "a", ceilings=True)
    after = {path.name: path.read_bytes() for path in (tmp_path / "a" / "cells").iterdir()}
    assert before.items() <= after.items() and set(after) - set(before) == {"decode-00003-t1.json"}
    assert counted == [1] * 4 and len(record.read("ceilings")["after"]) == 2
    study(tmp_path / "a", ceilings=True)
    assert len(counted) == 4  # nothing was missing
    assert set(record.frame()["bound_by"].dropna()) > {"sum of the parts"}


def ceilings(threads):
    return {"threads": threads, "read_bytes_per_s": {"toy": 1e9}, "gemm_flops_per_s": {"toy": 1e12}}


@needs_native
def test_another_plan_does_not_mix_into_a_record(tmp_path):
    study(tmp_path / "a", concurrency=(1,))
    with pytest.raises(UserError, match="another cached_tokens; choose another --out"):
        study(tmp_path / "a", context=32)
    with pytest.raises(UserError, match="another seed"):
        study(tmp_path / "a", seed=1)


@needs_native
def test_threads_of_torch_are_left_as_they_were():
    former = torch.get_num_threads()
    torch.set_num_threads(former + 1)
    try:
        study(threads=(1,), concurrency=(1,))
        assert torch.get_num_threads() == former + 1
    finally:
        torch.set_num_threads(former)


def steps_of(kind):
    made, given = [], PartsStudy(source(), PartsOptions(**TINY), PartsRecord(), lambda _: None)
    given.measure = lambda load, steps: made.append(steps)
    forms = {"native": given.source.native(1), "torch": given.source.torch(torch.device("cpu"))}
    if kind == "decode":
        given.measure_decodes(forms, [Load("decode", 3, 3, 1)])
    else:
        given.measure_prefills(forms, [Load("prefill", 1, 100, 1)])
    return made[0]


@needs_native
def test_forms_that_disagree_have_no_number():
    steps = steps_of("prefill")
    measure_forms(steps, 3, 0.01)
    with torch.no_grad():
        steps["torch"].model.layers[0].mlp.down *= 3.0
    with pytest.raises(WrongCache, match="the forms give other logits"):
        measure_forms(steps, 3, 0.01)


@needs_native
@pytest.mark.parametrize("form", ["native", "torch"])
def test_a_form_that_does_not_choose_the_largest_logit_has_no_number(form, monkeypatch):
    steps = steps_of("decode")

    class Wrong:
        def __init__(self, model):
            self.model = model

        def __call__(self, batch, caches):
            logits = self.model(batch, caches)
            batch.argmax = torch.zeros(3, dtype=torch.int64)
            return logits

    measure_forms(steps, 3, 0.01)
    steps[form].model = Wrong(steps[form].model)
    with pytest.raises(WrongCache, match=f"the {form} form does not choose the largest logit"):
        measure_forms(steps, 3, 0.01)


@needs_native
def test_a_step_without_its_cached_tokens_has_no_number_and_is_tried_again(tmp_path, monkeypatch):
    from wholecurve.studies.steps.decode import DecodeStep

    def one_less(step, batch=DecodeStep.batch):
        made = batch(step)
        made.context_lens = made.context_lens - 1
        return made

    with monkeypatch.context() as patched:
        patched.setattr(DecodeStep, "batch", one_less)
        record = study(tmp_path / "a", concurrency=(1,))
    notes = record.frame()["note"].dropna().tolist()
    assert len(notes) == 1 and notes[0].startswith("no number: sequence 0: ") and not record.has("decode-00001-t1")
    assert study(tmp_path / "a", concurrency=(1,)).frame()["note"].isna().all()


@needs_native
def test_native_products_are_a_ceiling_of_their_own(monkeypatch):
    shape = dummy_config("tiny")
    monkeypatch.setattr(part_ceilings, "ROWS", 64)
    found = part_ceilings.measure_native_products(torch.bfloat16, 1, shape)
    trials = found["trials"]
    assert len(trials["head_s"]) == part_ceilings.TRIALS and trials["head_bytes"] == 2 * 96 * 48
    assert found["read_bytes_per_s"] == trials["head_bytes"] / min(trials["head_s"])
    rates = [trials[f"{part}_flops"] / min(trials[f"{part}_s"]) for part in part_ceilings.PRODUCTS]
    assert found["gemm_flops_per_s"] == max(rates)
    assert trials["gate_up_flops"] == 2 * (64 + 1) * 48 * 2 * 64


def test_without_the_native_form_it_says_so(monkeypatch):
    monkeypatch.setattr(parts, "unsupported", lambda *_: "no library for bfloat16")
    with pytest.raises(UserError, match="only the native form can be taken apart, and it cannot be had: no library"):
        study()


# ---- the command, and what is recorded ----


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["step", *map(str, arguments)])
    if code:
        assert isinstance(result.exception, UserError), (result.output, result.exception)
        return str(result.exception)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


QUICK = ("--dummy", "tiny", "--threads", 1, "--samples", 3, "--seconds", 0.01, "--no-ceilings", "--context", 40)


@needs_native
def test_the_command_prints_steps_parts_and_what_to_doubt(tmp_path):
    text = " ".join(run("parts", *QUICK, "-c", 2, "-n", 100, "--out", tmp_path / "a").split())
    for expected in ("whole steps, threads: 1", "torch / native", "decode by new tokens", "gate, up", "waiting"):
        assert expected in text
    assert "no ceilings were measured" in text and "no part above a measured ceiling" in text
    document = json.loads(run("parts", *QUICK, "-c", 2, "-n", 100, "--out", tmp_path / "a", "--json"))
    assert set(document) == {"step", "provenance", "ceilings", "cells", "rows"} and len(document["cells"]) == 2
    with pytest.raises(UserError, match="a study of parts; decode and prefill steps are compared"):
        compare_steps(StepRecord.open(tmp_path / "a"), StepRecord.open(tmp_path / "a"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name one model, or one size with --dummy"),
        ((*QUICK, "-c", 0), "concurrency is [0]; every value must be at least 1"),
        ((*QUICK, "-n", 0), "tokens is [0]; every value must be at least 1"),
        ((*QUICK, "--threads", 0), "threads is [1, 0]; every value must be at least 1"),
        ((*QUICK, "--context", 0), "context is 0; it must be at least 1"),
        ((*QUICK, "--samples", 0), "samples is 0; it must be at least 1"),
        ((*QUICK, "--seconds", "inf"), "seconds is inf; it must be a number above 0"),
        ((*QUICK, "--seed", -1), "seed is -1; it must lie between 0 and 2**31 - 1"),
        ((*QUICK, "-n", 513), "a sequence of 513 tokens; the model has 512 positions"),
        (("--dummy", "tiny", "--dtype", "int8"), "dtype 'int8'; supported: bfloat16"),
    ],
)
def test_wrong_use_is_one_clear_line(arguments, message):
    said = run("parts", *arguments, code=2)
    assert message in said and "\n" not in said


def test_a_folder_of_another_study_is_named(tmp_path):
    with pytest.raises(UserError, match="not a step study"):
        PartsRecord.open(tmp_path)
    StepRecord(tmp_path).begin({"kind": "decode"})
    with pytest.raises(UserError, match="holds a decode step study; steps taken apart are wanted"):
        PartsRecord.open(tmp_path)


def test_the_recorded_study_loads_and_its_formulas_still_hold(monkeypatch):
    monkeypatch.delenv("MEASURE", raising=False)
    monkeypatch.chdir(RECORDED)
    record = open_parts()
    rows, plan = record.frame(), record.plan
    plan["config"]["eos_token_ids"] = tuple(plan["config"]["eos_token_ids"])
    config = ModelConfig(**plan["config"])
    assert rows["note"].fillna("").str.startswith("no number").sum() == 0
    for threads in (1, 2):
        native = rows[(rows["threads"] == threads) & (rows["form"] == "native")]
        for kind, loads in (("decode", parts.CONCURRENCY), ("prefill", parts.TOKENS)):
            found = native[native["kind"] == kind]
            assert tuple(found.loc[found["part"] == "step", "new_tokens"]) == loads
            for load in loads:
                step = found[(found["new_tokens"] == load) & (found["part"] == "step")].iloc[0]
                if kind == "decode":
                    assert step["flops"] == config.decode_flops(load, plan["cached_tokens"] + 1)
                else:
                    assert 0.9 * config.prefill_flops(load) < step["flops"] < config.prefill_flops(load)
                assert step["read_bytes"] >= config.weight_bytes_per_step(2)
    written = (RECORDED / "rows.csv").read_text(encoding="utf-8").splitlines()
    assert len(written) == 1 + len(rows) and written[0] == ",".join(COLUMNS)


def test_the_recorded_study_is_read_and_drawn_without_torch():
    code = "import sys; sys.modules |= dict.fromkeys(('torch', 'triton')); from pathlib import Path; "
    code += "from wholecurve.studies.steps.parts_record import PartsRecord; "
    code += "from wholecurve.figures import step_parts, step_tables; from matplotlib.figure import Figure; "
    code += "rows = PartsRecord.open(Path(sys.argv[1])).frame(); "
    code += "step_parts.step_parts(rows, Figure().subplots(), kind='decode', threads=2); "
    code += "print(len(step_tables.step_table(rows, 2)))"
    command = [sys.executable, "-c", code, str(RECORDED)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == len(parts.CONCURRENCY) + len(parts.TOKENS)
