"""From a name to files, and the forms derived from a GGUF."""

import json
import shutil

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled
from tiny_checkpoints import transformers_model, write_tiny_gguf

from wholecurve.errors import UserError
from wholecurve.models import resolve as resolve_module
from wholecurve.models.folder import read_folder
from wholecurve.models.gguf_file import read_gguf
from wholecurve.models.resolve import ModelFiles, resolve


@pytest.fixture(scope="module")
def theirs():
    return transformers_model()


@pytest.fixture
def gguf_path(theirs, tmp_path, monkeypatch):
    """A tiny GGUF, a cache of its own, and no tokenizer to convert (a tiny vocabulary has none)."""
    monkeypatch.setenv("WHOLECURVE_CACHE", str(tmp_path / "cache"))

    def save_tokenizer(_, folder):
        (folder / "tokenizer.json").write_text("{}")

    monkeypatch.setattr(resolve_module, "save_tokenizer_of_gguf", save_tokenizer)
    return write_tiny_gguf(tmp_path / "tiny.gguf", theirs)


def test_a_gguf_file(gguf_path):
    files = resolve(str(gguf_path))
    assert files == ModelFiles("tiny", gguf_path, None)
    assert files.read()[0].vocab_size == 97


def test_a_folder(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "model")
    files = resolve(str(tmp_path / "model"))
    assert files == ModelFiles("model", None, tmp_path / "model")
    assert files.hf_folder() == tmp_path / "model" and files.read()[0].vocab_size == 97
    with pytest.raises(UserError, match="derived forms are made from GGUF"):
        files.f16_gguf()


def test_derived_forms_hold_the_same_weights_and_are_made_once(gguf_path, tmp_path):
    files = resolve(str(gguf_path))
    folder, f16 = files.hf_folder(), files.f16_gguf()
    assert folder.is_relative_to(tmp_path / "cache") and f16.is_relative_to(tmp_path / "cache")
    (folder_config, in_folder), (gguf_config, in_gguf) = read_folder(folder), read_gguf(f16)
    config, source = files.read()
    assert config == folder_config == gguf_config
    for name, weight in source.items():
        assert torch.equal(in_folder[name], weight.half()), name
        assert torch.equal(in_gguf[name], weight if weight.dim() == 1 else weight.half().float()), name
    assert (folder / "tokenizer.json").exists()
    times = [path.stat().st_mtime_ns for path in (folder / "model.safetensors", f16)]
    again = resolve(str(gguf_path))
    assert (again.hf_folder(), again.f16_gguf()) == (folder, f16)
    assert times == [path.stat().st_mtime_ns for path in (folder / "model.safetensors", f16)]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["hf", "model-f16.gguf"]


def test_transformers_reads_the_derived_folder(gguf_path, theirs):
    from transformers import AutoModelForCausalLM

    again = AutoModelForCausalLM.from_pretrained(resolve(str(gguf_path)).hf_folder(), dtype=torch.float32)
    for name, expected in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], expected.half().float()), name
    assert again.config.rope_parameters["rope_theta"] == 10000.0 and again.config.tie_word_embeddings


def test_a_changed_checkpoint_gets_forms_of_its_own(gguf_path):
    before = resolve(str(gguf_path)).derived_folder()
    write_tiny_gguf(gguf_path, transformers_model(seed=1))
    assert resolve(str(gguf_path)).derived_folder() != before


def test_the_folder_appears_whole(gguf_path, monkeypatch):
    """It is renamed, not copied: another process must not find half of it."""
    made = []
    monkeypatch.setattr(resolve_module, "save_tokenizer_of_gguf", lambda _, folder: made.append(folder.stat().st_ino))
    files = resolve(str(gguf_path))
    assert [files.hf_folder().stat().st_ino] == made


@pytest.mark.parametrize("failure", [KeyboardInterrupt, UserError])
def test_an_interrupted_derivation_leaves_nothing_behind(gguf_path, monkeypatch, failure):
    def fail(*_):
        raise failure

    files = resolve(str(gguf_path))
    with monkeypatch.context() as patch:
        patch.setattr(resolve_module, "save_tokenizer_of_gguf", fail)
        with pytest.raises(failure):
            files.hf_folder()
    assert list(files.derived_folder().iterdir()) == []
    assert read_folder(files.hf_folder())[0].vocab_size == 97


def test_when_two_derive_at_once_the_first_result_stands(gguf_path, monkeypatch):
    files = resolve(str(gguf_path))
    target = files.derived_folder() / "hf"

    def other_is_first(_, folder):
        shutil.copytree(folder, target)
        (target / "first").touch()

    monkeypatch.setattr(resolve_module, "save_tokenizer_of_gguf", other_is_first)
    assert files.hf_folder() == target and (target / "first").exists()
    assert [path.name for path in files.derived_folder().iterdir()] == ["hf"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "no such file or folder"),
        ("no-such-thing", "no such file or folder, and not an embedded model"),
        ("no/such/folder", "no such file or folder"),
        ("no/file.gguf", "no such file or folder"),
        ("~nobody-of-this-name/model", "no such file or folder"),
        ("x" * 5000, "no such file or folder"),
        ("a\0b", "no such file or folder"),
    ],
    ids=lambda text: text[:12].replace("\0", "0"),
)
def test_what_is_nothing_at_all(name, reason, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=reason) as error:
        resolve(name)
    assert "\n" not in str(error.value)


def test_a_single_safetensors_file_is_told_to_be_a_folder(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match="for safetensors give its folder"):
        resolve(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    "failure",
    [
        LocalEntryNotFoundError("Cannot find the files\n\nCheck your connection."),
        OfflineModeIsEnabled("HF_HUB_OFFLINE is set"),
        ConnectionError("name resolution failed"),
        HFValidationError("bad name"),
        OSError(""),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_hub_name_without_a_network_is_one_line(monkeypatch, failure):
    def snapshot_download(*_, **__):
        raise failure

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(UserError) as error:
        resolve("some-organisation/some-model")
    message = str(error.value)
    assert message.startswith("model 'some-organisation/some-model': not on this machine and the hub did not give it (")
    assert "\n" not in message and "()" not in message


def test_a_hub_name_is_a_folder_of_weights_and_tokenizer_only(monkeypatch, tmp_path, theirs):
    asked = []

    def snapshot_download(name, allow_patterns):
        asked.append((name, allow_patterns))
        theirs.save_pretrained(tmp_path / "snapshot")
        return str(tmp_path / "snapshot")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    files = resolve("some-organisation/some-model")
    assert files.folder == tmp_path / "snapshot" and files.read()[0].vocab_size == 97
    assert asked[0][0] == "some-organisation/some-model"
    assert not any(pattern.endswith((".bin", ".pt")) for pattern in asked[0][1])


def test_a_hub_snapshot_of_another_family_is_refused(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(UserError, match="model_type is 'bert'"):
        resolve("some-organisation/some-model").read()
