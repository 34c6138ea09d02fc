"""The engine's part of the GPU day, piece by piece: what it compiles, what it calls wrong, which cells it runs."""

import pytest
import torch

from wholecurve.profiling import gpu_day_engine as engine_day
from wholecurve.studies.steps.acceptance import Acceptance
from wholecurve.studies.steps.dummy import dummy_config, dummy_model

CEILINGS = {"source": "measured (gpu)", "dtype": "bfloat16", "read_bytes_per_s": 4e12, "gemm_flops_per_s": 7e14}


@pytest.fixture(scope="module")
def model():
    return dummy_model(dummy_config("tiny"), torch.float32, "cpu")


def test_another_token_is_named_by_request_and_place(model):
    expected = engine_day.answers(model, 6)
    assert engine_day.compared(model, "graphs", {}, expected, 6)["problem"] == ""
    expected[2][4] += 1
    problem = engine_day.compared(model, "graphs", {}, expected, 6)["problem"]
    assert problem == "request 2 has another token at place 4"
    assert engine_day.compared(model, "speculation", {"speculation": 4}, expected, 6) == {"problem": problem}


def test_graphs_that_are_never_replayed_are_a_problem(model, monkeypatch):
    monkeypatch.setattr(engine_day.GraphedModel, "holds", lambda *_: False)
    found = engine_day.compared(model, "graphs", {}, engine_day.answers(model, 3), 3)
    assert found == {"problem": "no step was replayed in a graph", "replayed_steps": 0}


def test_an_engine_that_fails_is_a_problem_and_the_day_goes_on(model, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(engine_day, "answers", fails)
    assert engine_day.compared(model, "graphs", {}, [], 3) == {"problem": "RuntimeError: illegal memory access"}


def test_a_day_has_decode_cells_with_and_without_graphs_and_drafts_and_prefill_cells():
    cells = [(folder, cell) for folder, cell, _ in engine_day.cells(engine_day.REAL, CEILINGS)]
    assert len(cells) == len(set(cells)) == 2 * 2 * 2 * 6 + 5
    folders = {folder for folder, _ in cells}
    assert {f"decode-own-context-{k}-drafts-{how}" for k in (0, 3) for how in ("graphs", "eager")} < folders
    decode = {cell for folder, cell in cells if folder == "decode-own-context-3-drafts-graphs"}
    assert decode == {f"decode-c{requests:04d}-r1" for requests in (8, 16, 32, 64, 128, 256)}
    assert {cell for folder, cell in cells if folder == "prefill"} == {
        f"prefill-n{tokens:06d}-r1" for tokens in (4096, 8192, 16384, 32768, 65536)
    }
    assert engine_day.DRAFTS[1] == Acceptance(3, 0.75, "conditional")


@pytest.mark.parametrize("name", engine_day.compile_jobs())
def test_the_steps_of_an_8b_model_compile_ahead(name):
    engine_day.compile_step(name, "sm_90", rehearse=False)
