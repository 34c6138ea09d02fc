"""The committed figures of published claims and costs show the data that are committed beside them."""

import json
from pathlib import Path

import pytest

from wholecurve.figures.foreign_figure import foreign_figure
from wholecurve.figures.kernel_figures import kernel_figure
from wholecurve.figures.published_figures import foreign_folder, published_costs, published_figures
from wholecurve.figures.save import data_sha256
from wholecurve.files import published_folder
from wholecurve.readers.published import read_claims

FIGURES = Path(__file__).parents[2] / "figures"


def sidecar(name):
    return json.loads((FIGURES / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def drawn():
    return {figure.name: figure for figure in published_figures(read_claims(published_folder()))}


def test_every_published_figure_is_committed_with_its_data(drawn):
    assert len(drawn) == 6
    for name, figure in drawn.items():
        assert sidecar(name)["data_sha256"] == data_sha256(figure.data), f"{name}: run `make figures`"
        assert all((FIGURES / file).is_file() for file in sidecar(name)["files"])


def test_the_figures_of_costs_are_committed_with_their_data():
    costs = published_costs().costs
    assert costs["contender"].nunique() >= 3 and costs["usd_per_million_tokens"].notna().all()
    for name in ("tokens_per_dollar_vs_latency", "dollars_per_million_vs_latency"):
        assert sidecar(name)["data_sha256"] == data_sha256(costs), f"{name}: run `make figures`"


def test_the_figure_of_four_tools_is_committed_with_their_points():
    figure = foreign_figure(foreign_folder())
    counts = figure.data.groupby("contender")["load"].nunique()
    assert counts.to_dict() == dict.fromkeys(("AIPerf", "GuideLLM", "SGLang", "vLLM"), 5)
    assert sidecar(figure.name)["data_sha256"] == data_sha256(figure.data), "run `make figures`"


def test_the_figure_of_the_kernels_is_committed_with_their_rows():
    figure = kernel_figure()
    assert figure.data["kernel"].nunique() >= 5 and figure.data["bound_us"].gt(0).all()
    assert sidecar(figure.name)["data_sha256"] == data_sha256(figure.data), "run `make figures`"
