"""What nbval cannot see: stripped or stale outputs, mistyped tags, figures without a checked table, long cells."""

import importlib.util
import json
import re
from pathlib import Path
from statistics import median

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
TAGS = {"nbval-check-output", "nbval-ignore-output", "nbval-skip"}

spec = importlib.util.spec_from_file_location("render", FOLDER / "render.py")
render = importlib.util.module_from_spec(spec)
spec.loader.exec_module(render)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_promised_notebooks_are_there():
    assert {
        "00_first_study",
        "10_norm_rope_activation",
        "11_decode_attention",
        "12_prefill_attention",
        "13_mixture_of_experts",
        "14_fp8_gemm",
        "15_sampling_and_verification",
        "16_engram",
        "17_gated_deltanet",
        "18_latent_and_sparse_attention",
        "19_write_your_own_kernel",
        "20_decode_concurrency",
        "21_prefill_step_size",
        "22_how_fast_can_a_step_be",
        "23_serving_under_load",
        "24_agent_sessions",
        "30_matched_points",
        "31_headline_audit",
        "32_cost_and_latency",
        "33_other_peoples_files",
        "41_methodology_card",
    } <= {path.stem for path in NOTEBOOKS}


def test_all_code_cells_were_run_in_order_without_error(notebook):
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert not [output for output in cell.outputs if output.output_type == "error"]
        assert not [o for o in cell.outputs if o.output_type == "stream" and o.name == "stderr"], cell.source


def test_outputs_belong_to_the_code_that_is_there(notebook):
    assert notebook.metadata["wholecurve"]["source_sha256"] == render.source_sha256(notebook), "run `make notebooks`"


def test_tags_are_known_and_markers_are_not_comments(notebook):
    checked = 0
    for cell in notebook.cells:
        tags = set(cell.metadata.get("tags", []))
        assert tags <= TAGS
        checked += "nbval-check-output" in tags
        assert not re.search(r"#\s*(NBVAL|PYTEST_VALIDATE)", cell.source)
    assert checked >= 2, "a notebook without checked cells can only fail by an exception"


def test_each_figure_is_followed_by_a_checked_table(notebook):
    cells = code_cells(notebook)
    for cell, after in zip(cells, [*cells[1:], None]):
        if any("image/png" in output.get("data", {}) for output in cell.outputs):
            assert after is not None and "nbval-check-output" in after.metadata.get("tags", []), cell.source
            assert any("text/plain" in output.get("data", {}) for output in after.outputs), after.source


def test_each_drawing_cell_shows_its_figure(notebook):
    drawing = [cell for cell in code_cells(notebook) if cell.source.rstrip().endswith(";")]
    assert drawing, "a notebook without a figure"
    for cell in drawing:
        assert any("image/png" in output.get("data", {}) for output in cell.outputs), cell.source


def test_shape_of_a_readable_notebook(notebook):
    cells = code_cells(notebook)
    lengths = [len(cell.source.splitlines()) for cell in cells]
    assert len(notebook.cells) - len(cells) >= len(cells)
    assert median(lengths) <= 5 and max(lengths) <= 20
    assert sum(len(re.findall(r"^def ", cell.source, re.MULTILINE)) for cell in cells) <= 2
    text = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert text[0].startswith("# ") and text[0].splitlines()[0].endswith("?"), "the title is a question"
    assert any("prediction" in part.lower() for part in text)
    assert any(part.startswith("## What this does not show") for part in text)
    for cell in cells:
        assert "sys.path" not in cell.source and not cell.source.lstrip().startswith(("!", "%"))


def test_committed_size_and_content(notebook, request):
    text = json.dumps(notebook)
    assert len(text.encode()) < 300_000
    assert notebook.metadata["kernelspec"]["name"] == "python3"
    assert not re.search(r"/(root|home|Users)/", text)
