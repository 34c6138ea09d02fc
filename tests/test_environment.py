"""Packaging: one source of truth, nothing swallowed, the README's commands are the real ones."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_environment_yml_is_what_pyproject_generates(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    tool = Path(sys.executable).parent / "pyproject2conda"
    command = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "pyproject2conda project" in line)
    arguments = command.split("pyproject2conda", 1)[1].split()
    subprocess.run([str(tool), *arguments], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "environment.yml").read_text() == (ROOT / "environment.yml").read_text(), (
        "run `make environment`"
    )


def test_every_dependency_is_pinned_by_the_constraints():
    project = pyproject()["project"]
    wanted = project["dependencies"] + [d for extra in project["optional-dependencies"].values() for d in extra]
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            pinned[requirement.name.lower().replace("_", "-")] = requirement
    for text in wanted:
        requirement = Requirement(text)
        pin = pinned.get(requirement.name.lower().replace("_", "-"))
        assert pin is not None, f"{requirement.name} is missing in constraints.txt"
        version = next(iter(pin.specifier)).version
        assert requirement.specifier.contains(version, prereleases=True), f"{pin} does not satisfy {requirement}"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_source_root_and_recorded_runs_are_not_ignored():
    for path in ("lib/wholecurve/x.py", "data/runs/recorded-quick/plan.json", "figures/x.png", "tests/data/x.json"):
        result = subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False)
        assert result.returncode == 1, f"{path} is ignored by git"


def test_readme_shows_exactly_the_two_commands_first():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r"```\w*\n(.*?)```", text, re.DOTALL).group(1)
    assert re.findall(r"^make \w+", first, re.MULTILINE) == ["make study", "make test"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"study", "test", "lab", "figures", "notebooks"} <= set(targets)


def test_ci_runs_the_readme_test_command():
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_tree_has_no_paths_of_one_machine():
    pattern = re.compile(r"/(?:root|home/\w+|Users/\w+|work)/")
    found = []
    for folder in ("lib", "notebooks", "data", "figures", "tests", "plans"):
        for path in (ROOT / folder).rglob("*"):
            text = path.suffix in {".py", ".ipynb", ".json", ".jsonl", ".yaml", ".svg", ".md", ".csv"}
            if text and path != Path(__file__) and pattern.search(path.read_text(encoding="utf-8")):
                found.append(str(path.relative_to(ROOT)))
    assert not found
