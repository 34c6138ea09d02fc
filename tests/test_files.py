"""Files that are whole or absent."""

import json
import os

import pytest

from wholecurve import files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_target_appears_whole(tmp_path):
    target = tmp_path / "new" / "folder" / "a.txt"
    with files.replacing(target) as partial:
        partial.write_text("half")
        assert not target.exists() and partial.parent == target.parent
        partial.write_text("whole")
    assert target.read_text() == "whole" and names(target.parent) == ["a.txt"]


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_an_exception_keeps_the_old_file_and_leaves_nothing_behind(tmp_path, failure):
    target = tmp_path / "a.txt"
    files.write_text(target, "old")
    with pytest.raises(failure), files.replacing(target) as partial:
        partial.write_text("half of the new")
        raise failure
    assert target.read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_an_exception_without_an_old_file_leaves_no_file(tmp_path):
    with pytest.raises(RuntimeError), files.replacing(tmp_path / "a.txt") as partial:
        partial.write_text("half")
        raise RuntimeError
    assert names(tmp_path) == []


def test_a_failed_rename_leaves_nothing_behind(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(OSError):
        files.write_text(tmp_path / "taken", "text")
    assert names(tmp_path) == ["taken"] and names(tmp_path / "taken") == ["file"]


def test_the_content_is_synced_before_it_takes_the_place(tmp_path, monkeypatch):
    """After a power cut the new name must not stand for an empty file."""
    events = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append(os.fstat(handle).st_size), sync(handle))[1])
    path_type = type(tmp_path)
    monkeypatch.setattr(path_type, "replace", lambda self, to: (events.append("replaced"), replace(self, to))[1])
    files.write_text(tmp_path / "a.txt", "12345")
    assert events == [5, "replaced"]


def test_others_may_read_what_was_written(tmp_path):
    files.write_bytes(tmp_path / "a.bin", b"\x00\xff")
    assert (tmp_path / "a.bin").read_bytes() == b"\x00\xff"
    assert (tmp_path / "a.bin").stat().st_mode & 0o777 == 0o644


def test_text_is_utf8_whatever_the_locale(tmp_path):
    files.write_text(tmp_path / "a.txt", "µs – 漢")
    assert (tmp_path / "a.txt").read_bytes() == "µs – 漢".encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_json_that_is_not_strict_is_refused_and_keeps_the_old(tmp_path, value):
    files.write_json(tmp_path / "a.json", {"x": [1, None]})
    with pytest.raises((ValueError, TypeError)):
        files.write_json(tmp_path / "a.json", {"x": value})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [1, None]}
    assert names(tmp_path) == ["a.json"]
