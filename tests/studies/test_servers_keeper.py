"""Nothing of a server outlives the study, however the study, the keeper or the server ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wholecurve.studies.serving.servers.process import KeptProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

TOY = Path(__file__).with_name("toy_server.py")


def is_gone(pid):
    """Whether a process has ended; one of which only the code is left has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def wait_until(happens, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if happens():
            return True
        time.sleep(0.02)
    return False


def states(pids):
    return [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] for pid in pids]


def family_of(path):
    """Process ids that the toy's family wrote; empty until both are there."""
    lines = path.read_text().split() if path.exists() else []
    return [int(line) for line in lines] if len(lines) == 2 else []


def python(code, *arguments):
    return [sys.executable, "-c", code, *arguments]


SLEEPS = python("import time; print('up', flush=True); time.sleep(120)")


def deaf_family(path):
    """A command that ignores SIGTERM, with a child and a grandchild that do as well, the latter in its own session."""
    code = (
        "import signal, subprocess, sys, time, toy_server\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', toy_server.FAMILY, sys.argv[1], toy_server.FAMILY])\n"
        "time.sleep(120)\n"
    )
    return python(code, str(path))


WITH_TOY = {"PYTHONPATH": str(TOY.parent)}


@pytest.fixture
def leftovers():
    """Processes that a failed test would leave."""
    pids = []
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_stop_ends_descendants_that_do_not_listen_and_left_the_session(tmp_path, leftovers):
    path = tmp_path / "family"
    with KeptProcess(deaf_family(path), WITH_TOY, tmp_path / "log", grace_s=0.3) as process:
        assert wait_until(lambda: family_of(path))
        leftovers += [*process.pids(), *family_of(path)]
        assert set(family_of(path)) <= set(process.pids()) and len(process.pids()) == 3
    assert all(is_gone(pid) for pid in leftovers)
    assert process.poll() == 128 + signal.SIGKILL


def test_a_study_that_is_killed_takes_all_of_it_along(tmp_path, leftovers):
    path = tmp_path / "family"
    script = (
        "import sys, time; from pathlib import Path\n"
        "from wholecurve.studies.serving.servers.process import KeptProcess\n"
        f"p = KeptProcess({deaf_family(path)!r}, {WITH_TOY!r}, Path({str(tmp_path / 'log')!r}), grace_s=0.3)\n"
        "print(p.pid, flush=True); time.sleep(120)\n"
    )
    study = subprocess.Popen(python(script), stdout=subprocess.PIPE, text=True)
    try:
        keeper = int(study.stdout.readline())
        assert wait_until(lambda: family_of(path))
        leftovers += [keeper, *family_of(path)]
    finally:
        study.kill()
        study.wait()
    assert wait_until(lambda: all(is_gone(pid) for pid in leftovers)), "something outlived the study"


def test_a_study_whose_pipe_somebody_else_holds_is_missed_as_well(tmp_path, leftovers):
    """A child that inherited the study's end of the pipe keeps it open; the keeper sees that its parent is another."""
    script = (
        "import os, subprocess, sys, time; from pathlib import Path\n"
        "from wholecurve.studies.serving.servers.process import KeptProcess\n"
        f"p = KeptProcess({SLEEPS!r}, {{}}, Path({str(tmp_path / 'log')!r}), grace_s=5)\n"
        "while not p.pids(): time.sleep(0.01)\n"
        "holds = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(120)'],\n"
        "                         pass_fds=[p._keeper.stdin.fileno()])\n"
        "print(p.pid, p.pids()[0], holds.pid, flush=True); time.sleep(120)\n"
    )
    study = subprocess.Popen(python(script), stdout=subprocess.PIPE, text=True)
    try:
        leftovers += map(int, study.stdout.readline().split())
    finally:
        study.kill()
        study.wait()
    keeper, server, holds = leftovers
    assert wait_until(lambda: is_gone(keeper) and is_gone(server))
    assert not is_gone(holds)


def test_a_server_goes_with_a_keeper_that_is_killed(tmp_path, leftovers):
    with KeptProcess(SLEEPS, {}, tmp_path / "log") as process:
        assert wait_until(lambda: process.log_text() == "up\n")
        leftovers += process.pids()
        os.kill(process.pid, signal.SIGKILL)
        assert wait_until(lambda: is_gone(leftovers[0]))


def test_sigterm_to_the_keeper_is_a_stop(tmp_path, leftovers):
    with KeptProcess(SLEEPS, {}, tmp_path / "log") as process:
        assert wait_until(lambda: process.log_text() == "up\n")
        leftovers += process.pids()
        os.kill(process.pid, signal.SIGTERM)
        assert wait_until(lambda: process.poll() is not None)
        assert process.how_it_ended() == "was killed by SIGTERM"
    assert is_gone(leftovers[0])


def test_a_server_is_asked_before_it_is_killed(tmp_path):
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(7)))\n"
        "print('up', flush=True); time.sleep(120)"
    )
    with KeptProcess(python(code), {}, tmp_path / "log") as process:
        assert wait_until(lambda: process.log_text() == "up\n")
    assert process.poll() == 7 and process.log_text() == "up\nbye\n"


def test_what_a_dead_server_left_is_ended_at_once(tmp_path, leftovers):
    path = tmp_path / "family"
    code = (
        "import subprocess, sys, time, toy_server; from pathlib import Path\n"
        "subprocess.Popen([sys.executable, '-c', toy_server.FAMILY, sys.argv[1], toy_server.FAMILY])\n"
        "while not Path(sys.argv[1]).exists() or len(Path(sys.argv[1]).read_text().split()) < 2: time.sleep(0.02)\n"
        "print('last words'); sys.exit(5)\n"
    )
    with KeptProcess(python(code, str(path)), WITH_TOY, tmp_path / "log") as process:
        assert wait_until(lambda: process.poll() is not None)
        leftovers += family_of(path)
        assert (process.poll(), process.log_tail(1)) == (5, "last words")
        assert process.how_it_ended() == "ended with code 5"
        assert len(leftovers) == 2 and all(is_gone(pid) for pid in leftovers)


def test_a_killed_server_is_said_to_be_killed(tmp_path):
    with KeptProcess(SLEEPS, {}, tmp_path / "log") as process:
        assert wait_until(lambda: process.log_text() == "up\n")
        os.kill(process.pids()[0], signal.SIGKILL)
        assert wait_until(lambda: process.poll() is not None)
        assert process.how_it_ended() == "was killed by SIGKILL (out of memory?)"


def test_a_program_that_is_not_there_is_named(tmp_path):
    with KeptProcess(["/no/such/program"], {}, tmp_path / "log") as process:
        assert wait_until(lambda: process.poll() is not None)
        assert process.poll() == 127
        assert process.log_tail() == "/no/such/program: it cannot be started (No such file or directory)"


def test_every_process_of_a_server_is_stopped_and_goes_on(tmp_path, leftovers):
    path = tmp_path / "family"
    with KeptProcess(deaf_family(path), WITH_TOY, tmp_path / "log", grace_s=0.3) as process:
        assert wait_until(lambda: family_of(path))
        pids = process.pids()
        leftovers += pids
        process.pause()
        assert wait_until(lambda: states(pids) == ["T"] * 3) and process.is_paused
        process.resume()
        assert wait_until(lambda: "T" not in states(pids)) and not process.is_paused


def test_a_paused_server_ends_by_itself_when_it_is_told_to(tmp_path):
    """SIGTERM does not reach a stopped process until it goes on; it must not be killed after the grace instead."""
    with KeptProcess(SLEEPS, {}, tmp_path / "log", grace_s=60) as process:
        assert wait_until(lambda: process.log_text() == "up\n")
        process.pause()
    assert process.poll() == 128 + signal.SIGTERM


def test_processor_time_and_memory_are_those_of_all_processes(tmp_path):
    child = (
        "import time; block = bytearray(64 * 2**20); sum(range(3 * 10**7)); print('done', flush=True); time.sleep(99)"
    )
    code = "import subprocess, sys\nfor _ in range(2): subprocess.Popen([sys.executable, '-c', sys.argv[1]])\n"
    code += "import time; time.sleep(120)"
    with KeptProcess(python(code, child), {}, tmp_path / "log") as process:
        assert wait_until(lambda: process.log_text() == "done\ndone\n", 120)
        cpu_s, held = process.cpu_seconds(), process.resident_bytes()
        one = max(
            int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11]) for pid in process.pids()
        ) / os.sysconf("SC_CLK_TCK")
    assert cpu_s > 1.5 * one > 0, "the time of one child is not that of both"
    assert 128 * 2**20 < held < 300 * 2**20


def test_processor_time_of_children_that_ended_stays_counted(tmp_path):
    child = "import time; sum(range(4 * 10**7)); print('used', time.process_time(), flush=True)"
    code = (
        "import subprocess, sys, time; subprocess.run([sys.executable, '-c', sys.argv[1]]); print('done', flush=True)\n"
    )
    code += "time.sleep(120)"
    with KeptProcess(python(code, child), {}, tmp_path / "log") as process:
        assert wait_until(lambda: "done" in process.log_text(), 120)
        used_s = float(process.log_text().split()[1])
        assert process.cpu_seconds() > used_s > 0


def test_variables_are_laid_over_and_taken_away(tmp_path, monkeypatch):
    monkeypatch.setenv("TAKEN_AWAY", "secret")
    code = "import os; print(os.environ.get('TAKEN_AWAY'), os.environ['ADDED'])"
    with KeptProcess(python(code), {"TAKEN_AWAY": None, "ADDED": "x"}, tmp_path / "log") as process:
        assert wait_until(lambda: process.poll() == 0)
    assert process.log_text() == "None x\n"


def test_a_log_is_continued_and_only_the_own_part_is_quoted(tmp_path):
    log = tmp_path / "deep" / "log"
    for word in ("first", "second"):
        with KeptProcess(python(f"print('{word}')"), {}, log) as process:
            assert wait_until(lambda process=process: process.poll() == 0)
    assert process.log_tail() == "second" and log.read_text() == "first\nsecond\n"
