"""Saved figures: the same bytes every time, a complete sidecar, and nothing left behind."""

import hashlib
import json
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from figure_frames import decode_points

from wholecurve.errors import UserError
from wholecurve.figures import data_sha256, save_figure, throughput_vs_speed
from wholecurve.figures import save as save_module
from wholecurve.figures.save import canonical_csv

POINTS = decode_points({"wholecurve": 1.0, "transformers": 0.6})
WORDS = {
    "title": "Two engines",
    "caption": "Decode on a CPU.",
    "alt": "Two falling lines.",
    "source": "Source: a test",
}


def save(folder, data=POINTS, make=None, name="two-engines", **words):
    return save_figure(make or (lambda ax: throughput_vs_speed(data, ax)), name, folder, data=data, **(WORDS | words))


def test_the_same_figure_has_the_same_bytes_whatever_the_settings(tmp_path):
    first = save(tmp_path / "a")
    with matplotlib.rc_context({"font.size": 20, "svg.hashsalt": None, "lines.linewidth": 9, "xtick.direction": "in"}):
        second = save(tmp_path / "b")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "two-engines.dark.svg", "two-engines.json", "two-engines.light.svg", "two-engines.png",
    ]  # fmt: skip
    for kind in ("light", "dark", "png", "json"):
        assert first[kind].read_bytes() == second[kind].read_bytes(), kind


def test_light_and_dark_differ_in_colour_and_carry_no_date_or_stamp(tmp_path):
    paths = save(tmp_path)
    light, dark = paths["light"].read_text(), paths["dark"].read_text()
    assert "#ffffff" in light and "#0d1117" in dark and "#0d1117" not in light
    for text in (light, dark):
        ElementTree.fromstring(text)
        assert "<dc:date>" not in text and matplotlib.__version__ not in text
        assert "<title>Two engines</title>" in text and "Source: a test" in text
    assert b"Software" not in paths["png"].read_bytes()
    assert matplotlib.__version__.encode() not in paths["png"].read_bytes()


def test_title_and_source_are_on_the_figure_and_everything_is_inside(tmp_path, monkeypatch):
    seen = []
    render = save_module._render
    monkeypatch.setattr(save_module, "_render", lambda figure, *rest: seen.append(figure) or render(figure, *rest))
    save(
        tmp_path,
        title="A title that is far too long for one line " * 3,
        source="Source: very long words here " * 8,
    )
    for figure in seen:
        width, height = figure.get_size_inches() * figure.dpi
        assert [text.get_text().split()[0] for text in figure.texts] == ["A", "Source:"]
        heading, footer = (text.get_window_extent() for text in figure.texts)
        axes = figure.axes[0].get_tightbbox()
        assert "\n" in figure.texts[0].get_text()
        assert footer.y0 >= 0 and footer.y1 < axes.y0 and axes.y1 < heading.y0 and heading.y1 <= height
        assert axes.x0 >= 0 and axes.x1 <= width and heading.x1 <= width and footer.x1 <= width


def test_sidecar_is_complete(tmp_path):
    sidecar = json.loads(save(tmp_path)["json"].read_text())
    assert {key: sidecar[key] for key in WORDS} == WORDS
    assert sidecar["data_sha256"] == data_sha256(POINTS) == hashlib.sha256(canonical_csv(POINTS).encode()).hexdigest()
    assert sidecar["data_rows"] == {"data": len(POINTS)}
    assert sidecar["git_commit"] is None
    assert sidecar["files"] == ["two-engines.dark.svg", "two-engines.light.svg", "two-engines.png"]


def test_git_commit_is_that_of_the_folder(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert json.loads(save(tmp_path)["json"].read_text())["git_commit"] is None
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert json.loads(save(tmp_path)["json"].read_text())["git_commit"] == head


def test_the_hash_follows_the_content_only():
    shuffled = POINTS.sample(frac=1, random_state=1)[sorted(POINTS.columns, reverse=True)]
    assert data_sha256(shuffled) == data_sha256(POINTS)
    changed = POINTS.copy()
    changed.loc[0, "decode_speed_tok_per_s"] += 1e-9
    assert data_sha256(changed) != data_sha256(POINTS)
    assert data_sha256(POINTS.rename(columns={"load": "level"})) != data_sha256(POINTS)
    assert data_sha256(POINTS.iloc[1:]) != data_sha256(POINTS)
    assert data_sha256({"a": POINTS, "b": POINTS[:3]}) != data_sha256({"b": POINTS, "a": POINTS[:3]})
    assert canonical_csv(pd.DataFrame({"b": [0.1], "a": [None]})) == "a,b\n,0.1\n"


def test_no_figure_stays_open_and_no_setting_stays_changed(tmp_path):
    before, open_before = dict(matplotlib.rcParams), plt.get_fignums()

    def careless(ax):
        plt.figure()
        throughput_vs_speed(POINTS, ax)

    save(tmp_path, make=careless)
    assert plt.get_fignums() == open_before
    assert dict(matplotlib.rcParams) == before


def test_a_failing_drawing_writes_nothing_and_leaves_the_old_files(tmp_path):
    old = {path.name: path.read_bytes() for path in save(tmp_path).values()}
    calls = []

    def fails_in_dark(ax):
        calls.append(ax)
        plt.figure()
        if len(calls) == 2:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        save(tmp_path, make=fails_in_dark)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == old
    assert plt.get_fignums() == []


def test_an_interrupted_write_leaves_the_old_file_whole(tmp_path, monkeypatch):
    old = {path.name: path.read_bytes() for path in save(tmp_path).values()}

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, title="Another title")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_panels_hand_over_an_array_of_axes(tmp_path):
    shapes = []

    def make(axes):
        shapes.append(axes.shape)
        for ax in axes:
            throughput_vs_speed(POINTS, ax)

    save_figure(make, "panels", tmp_path, data={"left": POINTS, "right": POINTS}, panels=(1, 2), **WORDS)
    assert shapes == [(2,), (2,)]
    assert json.loads((tmp_path / "panels.json").read_text())["data_rows"] == {
        "left": len(POINTS),
        "right": len(POINTS),
    }


@pytest.mark.parametrize("name", ["", "Two Engines", "../up", ".hidden"])
def test_names_must_be_plain(tmp_path, name):
    with pytest.raises(UserError, match="must be lower-case"):
        save(tmp_path, name=name)


def test_empty_words_are_refused(tmp_path):
    with pytest.raises(UserError, match="alt is empty"):
        save(tmp_path, alt=" ")
