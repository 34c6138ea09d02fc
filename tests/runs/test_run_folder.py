"""A run on disk: whole points only, traces that come back, errors that name the file."""

import gzip
import json

import pytest

from wholecurve.curves.metrics import RequestTrace
from wholecurve.errors import UserError
from wholecurve.runs import RunFolder, provenance
from wholecurve.runs.folder import rounded

PLAN = {"plan": {"name": "p"}, "harness_version": 1, "plan_hash": "abc"}
TRACE = RequestTrace("r0", 5, 0, 0.0, 0.0000014, [0.25, 0.5], [1, 2], 0.5, None)


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", PLAN, {"started": "now"})


def test_point_and_trace_come_back(run):
    run.write_point("decode-a-00001-r1", {"order": 1, "load": 1}, [TRACE])
    run.write_point("decode-a-00002-r1", {"order": 0, "load": 2}, [TRACE, TRACE])
    assert run.point_ids() == ["decode-a-00001-r1", "decode-a-00002-r1"]
    assert list(run.points()["load"]) == [2, 1], "points come in the order of measurement"
    back = run.trace("decode-a-00001-r1")
    assert back == [TRACE]
    assert rounded(TRACE) == RequestTrace("r0", 5, 0, 0.0, 0.000001, [0.25, 0.5], [1, 2], 0.5, None)
    assert run.has_point("decode-a-00001-r1") and not run.has_point("decode-a-00003-r1")


def test_what_only_a_client_knows_comes_back_and_is_left_out_where_nobody_knew_it(run):
    served = RequestTrace(
        "r1", 5, None, 0.0, 0.1, outcome="timed out", error="no end within 600 s", wanted_tokens=8, session="s1"
    )
    run.write_point("p", {"order": 0}, [TRACE, served])
    assert run.trace("p") == [TRACE, served]
    path = run.path / "traces" / "p.jsonl.gz"
    first, second = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
    assert "outcome" not in first and first["error"] is None
    assert second["outcome"] == "timed out" and "token_source" not in second
    content = path.read_bytes()
    run.write_point("p", {"order": 0}, [TRACE, served])
    assert path.read_bytes() == content, "the same trace is the same file, whenever it is written"


def test_traces_of_older_runs_are_plain_text(run):
    run.write_point("p", {"order": 0}, [TRACE])
    packed = run.path / "traces" / "p.jsonl.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert run.trace("p") == [TRACE]


def test_a_point_that_cannot_be_written_leaves_no_file(run):
    with pytest.raises(ValueError, match="JSON"):
        run.write_point("bad", {"order": 0, "load": float("nan")}, [TRACE])
    assert run.point_ids() == []
    assert not list(run.path.rglob("*.partial"))


def test_create_again_keeps_the_first_provenance(run):
    again = RunFolder.create(run.path, PLAN, {"started": "later"})
    assert again.provenance == {"started": "now"}
    with pytest.raises(UserError, match="another plan or harness version"):
        RunFolder.create(run.path, {**PLAN, "plan_hash": "other"}, {})


def test_errors_name_the_file(run, tmp_path):
    with pytest.raises(UserError, match="no such run folder"):
        RunFolder.open(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"not a run folder \(it has no plan\.json\)"):
        RunFolder.open(tmp_path / "empty")
    (run.path / "agreement.json").write_text("{")
    with pytest.raises(UserError, match=r"agreement\.json: not valid JSON"):
        run.read("agreement")
    (run.path / "agreement.json").write_text("[]")
    with pytest.raises(UserError, match="holds a JSON list; it must be an object"):
        run.read("agreement")
    with pytest.raises(UserError, match=r"ceilings\.json: missing"):
        run.read("ceilings")
    run.write_point("p", {"order": 0}, [TRACE])
    (run.path / "traces" / "p.jsonl.gz").write_bytes(gzip.compress(b'{"request": "r0"}\n'))
    with pytest.raises(UserError, match=r"p\.jsonl\.gz: line 1 is not a request record"):
        run.trace("p")
    for broken, reason in ((b"no gzip", "Not a gzipped file"), (gzip.compress(b"{}")[:-4], "not a whole trace")):
        (run.path / "traces" / "p.jsonl.gz").write_bytes(broken)
        with pytest.raises(UserError, match=rf"p\.jsonl\.gz: {reason}"):
            run.trace("p")


def test_lock_is_free_again_after_the_block(run):
    with run.locked(), pytest.raises(UserError, match="another study"), RunFolder(run.path).locked():
        pass
    with run.locked():
        pass


def test_provenance_tells_machine_versions_and_commit():
    about = provenance.collect()
    assert json.loads(json.dumps(about)) == about
    assert about["hardware"]["cores"] >= 1 and about["hardware"]["fingerprint"]
    assert about["packages"]["numpy"]
    line = provenance.hardware_line(about["hardware"])
    assert f"{about['hardware']['cores']} cores" in line


def test_git_state_outside_a_checkout_is_absent(tmp_path):
    assert provenance.git_state(tmp_path) is None


def test_what_a_killed_writer_left_half_written_is_removed_by_the_next_one(run):
    run.write("note", {"kept": 1})
    (run.path / "points").mkdir(exist_ok=True)
    leftovers = [run.path / "points" / ".decode-a-00001-r1.json.x1.partial", run.path / ".note.json.x2.partial"]
    for leftover in leftovers:
        leftover.write_text("{")
    with run.locked():
        assert not any(leftover.exists() for leftover in leftovers) and run.read("note") == {"kept": 1}
